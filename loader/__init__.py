"""``DataLoader``, its iterator, and ``load``."""

from gristmill.loader import iterator as _iterator
from gristmill.loader.data_loader import DataLoader
from gristmill.loader.iterator import DataLoaderIterator
from gristmill.loader.load import load

vars(_iterator)["DataLoader"] = DataLoader  # for typing.get_type_hints: it cannot be imported there

__all__ = ["DataLoader", "DataLoaderIterator", "load"]
