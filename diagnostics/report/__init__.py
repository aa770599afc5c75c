"""The report of a pipeline as one page."""

from gristmill.diagnostics.report.page import report_html

__all__ = ["report_html"]
