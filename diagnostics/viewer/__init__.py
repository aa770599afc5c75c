"""Pages to look at what a pipeline gives: ``view`` and ``python -m gristmill view``."""

from gristmill.diagnostics.viewer.serving import Viewer, view

__all__ = ["Viewer", "view"]
