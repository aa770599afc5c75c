"""Summaries, verdicts, reports, traces and metrics of pipelines, which are observed from
outside.
"""

from gristmill.diagnostics.diagnosis.shuffle_quality import ShuffleQuality, shuffle_quality
from gristmill.diagnostics.diagnosis.verdict import Diagnosis
from gristmill.diagnostics.graph.files import visualize
from gristmill.diagnostics.runtime.ahead import BudgetUse
from gristmill.diagnostics.runtime.metrics.prometheus import start_telemetry, stop_telemetry
from gristmill.diagnostics.runtime.summary import ExecutionSummary, Snapshot, StageSummary
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
