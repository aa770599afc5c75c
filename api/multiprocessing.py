"""Options of worker processes, and arrays that processes share."""

from gristmill.core.options import MultiprocessingOptions
from gristmill.workers.shared_array import SharedMemoryArray, SharedMemoryArrayMetadata

__all__ = ["MultiprocessingOptions", "SharedMemoryArray", "SharedMemoryArrayMetadata"]
