"""Functions of higher packages that lower ones, which must not import them, get through the
facade.
"""

from __future__ import annotations

import sys
from typing import Any


def new_observer() -> Any:
    """Return an observer of a new pipeline, as options and environment want it (see
    ``gristmill.diagnostics.runtime.automatic``).
    """
    return sys.modules["gristmill"]._new_observer()


def explained(it: Any) -> Any:
    """Return what the last output of an iterator is made of (see ``gristmill.explain``)."""
    return sys.modules["gristmill"].explain(it)


def pipeline_html(pipeline: Any) -> str:
    """Return the HTML that a notebook shows of a dataset or loader (see
    ``gristmill.diagnostics.notebook``).
    """
    html: str = sys.modules["gristmill"]._pipeline_html(pipeline)
    return html
