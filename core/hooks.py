"""What packages above do for those below, which must not import them: the facade says here where it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _missing(*args: Any) -> Any:
    raise ImportError("gristmill is imported in part only: import gristmill")


new_observer: Callable[[], Any] = _missing  # see ``gristmill.diagnostics.automatic``
pipeline_html: Callable[[Any], str] = _missing  # see ``gristmill.diagnostics.notebook``
