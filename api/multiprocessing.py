"""Options of worker processes."""

from gristmill.core.options import MultiprocessingOptions

__all__ = ["MultiprocessingOptions"]
