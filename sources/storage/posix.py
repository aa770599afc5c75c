"""Modules of Python that Windows lacks. Files by ranges need them: ``local_size`` refuses local files there."""

try:
    import fcntl
    import resource
except ImportError:
    fcntl = resource = None  # type: ignore[assignment]  # for checkers they are modules, as on the systems where files are read

__all__ = ["fcntl", "resource"]
