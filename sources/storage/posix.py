"""A module that Windows lacks, where ``local_size`` refuses local files by ranges."""

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]  # for checkers it is a module, as on the systems where files are read

__all__ = ["fcntl"]
