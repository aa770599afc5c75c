"""``DataLoader``, its iterator, and ``load``."""

from gristmill.loader.data_loader import DataLoader
from gristmill.loader.iterator import DataLoaderIterator
from gristmill.loader.load import load

__all__ = ["DataLoader", "DataLoaderIterator", "load"]
