"""A source of rows of equal length, the simplest that reads through ``Files``."""

import operator

from gristmill.core.errors import KeyRangeError
from gristmill.sources.storage.files import Files, list_files


class FixedRows:
    def __init__(self, paths, row_bytes=64, filesystem=None):
        self._files = Files(list_files("paths", paths, filesystem), filesystem)
        self._row_bytes = row_bytes

    def __len__(self):
        return sum(size // self._row_bytes for size in self._files.sizes)

    def _range(self, key):
        key = operator.index(key)
        if not 0 <= key < len(self):
            raise KeyRangeError(
                f"record key must be in [0, {len(self)}), the number of records, got {key}"
            )
        for number, size in enumerate(self._files.sizes):
            if key < size // self._row_bytes:
                return number, key * self._row_bytes, (key + 1) * self._row_bytes
            key -= size // self._row_bytes
        raise AssertionError

    def __getitem__(self, key):
        return self._files.read([self._range(key)])[0]

    def __getitems__(self, keys):
        return self._files.read([self._range(key) for key in keys])

    def __repr__(self):
        return f"FixedRows({self._files.described()}, row_bytes={self._row_bytes})"
