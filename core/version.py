"""The version, from the installed distribution's metadata."""

from importlib import metadata

try:
    __version__: str = metadata.version("gristmill")
except metadata.PackageNotFoundError:  # run from a copy that was never installed
    __version__ = "0.0.0"

__version_info__: tuple[int, ...] = tuple(
    int(part) for part in __version__.split(".") if part.isdigit()
)
