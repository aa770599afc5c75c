"""A module of Python that Windows lacks. Files by ranges need it: ``local_size`` refuses local files there."""

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]  # for checkers it is a module, as on the systems where files are read

__all__ = ["fcntl"]
