"""Which records an output of a pipeline is made of: of the last one, of one that follows a state,
or of any past step.
"""

from gristmill.diagnostics.provenance.explaining import explain
from gristmill.diagnostics.provenance.ledger import Ledger
from gristmill.diagnostics.provenance.records import Provenance, Record, Row

__all__ = ["Ledger", "Provenance", "Record", "Row", "explain"]
