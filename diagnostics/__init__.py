"""Summaries, verdicts, reports, traces and metrics of pipelines, which are observed from
outside.
"""

from gristmill.diagnostics.ahead import BudgetUse
from gristmill.diagnostics.graph_files import visualize
from gristmill.diagnostics.metrics.prometheus import start_telemetry, stop_telemetry
from gristmill.diagnostics.shuffle_quality import ShuffleQuality, shuffle_quality
from gristmill.diagnostics.summary import ExecutionSummary, Snapshot, StageSummary
from gristmill.diagnostics.verdict import Diagnosis
from gristmill.diagnostics.verification import Check, Report, verify
from gristmill.diagnostics.view import View, diagnose, get_execution_summary, observe

__all__ = [
    "BudgetUse",
    "Check",
    "Diagnosis",
    "ExecutionSummary",
    "Report",
    "ShuffleQuality",
    "Snapshot",
    "StageSummary",
    "View",
    "diagnose",
    "get_execution_summary",
    "observe",
    "shuffle_quality",
    "start_telemetry",
    "stop_telemetry",
    "verify",
    "visualize",
]
