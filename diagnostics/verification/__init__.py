"""True if a pipeline is deterministic: it is run in many ways that must not be observable, and what
comes out is compared.
"""

from gristmill.diagnostics.verification.report import Check, Report
from gristmill.diagnostics.verification.verifier import Verifier, verify

__all__ = ["Check", "Report", "Verifier", "verify"]
