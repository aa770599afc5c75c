"""Token files of language models: Megatron's pairs of files, and NumPy arrays."""

from __future__ import annotations

import contextlib
import struct
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from gristmill.core.state import shown
from gristmill.prepare.codecs import is_array
from gristmill.prepare.formats.base import Format, RecordWriter

# The index of Megatron Core: magic, version, code of the dtype, numbers of sequences and documents.
_MAGIC = b"MMIDIDX\x00\x00"
_CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


class _TokenFormat(Format):
    """The base of formats whose elements are one-dimensional arrays of integers.

    Lists of integers become arrays of ``dtype``, int32 by default. A dict with one such array or
    list is taken for it.
    """

    option_names: ClassVar[Mapping[str, Any]] = {"dtype": None}

    def __init__(self, options: Mapping[str, Any], fit: Mapping[str, Any] | None = None) -> None:
        super().__init__(options)
        if self.options["dtype"] is not None:
            name = np.dtype(self.options["dtype"]).name
            if name not in _CODES:
                raise ValueError(f"dtype must be one of {', '.join(_CODES)}, got {name}")
            self.options["dtype"] = name
        self._fit = dict(fit or {})

    def described(self) -> dict[str, Any]:
        return {**super().described(), "fit": self._fit}

    def restored(self, saved: Mapping[str, Any], codec: Any) -> Self:
        super().restored(saved, codec)
        return type(self)(self.options, saved["fit"])

    def fitted(self, elements: Sequence[Any]) -> Self:
        first = self._tokens(elements[0] if elements else [])
        is_array = bool(elements) and isinstance(elements[0], np.ndarray)
        dtype = self.options["dtype"] or (first.dtype.name if is_array else "int32")
        if dtype not in _CODES:
            raise TypeError(f"tokens must be of one of {', '.join(_CODES)}, got {dtype}")
        return type(self)(self.options, {"dtype": dtype, "length": len(first)})

    def encode(self, element: Any) -> np.ndarray[Any, Any]:
        dtype = np.dtype(self._fit["dtype"])
        tokens = self._tokens(element)
        if tokens.dtype != dtype:
            limits = np.iinfo(dtype)
            if len(tokens) and not (limits.min <= tokens.min() and tokens.max() <= limits.max):
                raise ValueError(
                    f"a token is not in [{limits.min}, {limits.max}], the range of {dtype}: pass a "
                    "larger dtype="
                )
        return tokens.astype(dtype.newbyteorder("<"), copy=False)

    def size(self, record: np.ndarray[Any, Any]) -> int:
        return record.nbytes

    @staticmethod
    def _tokens(element: Any) -> np.ndarray[Any, Any]:
        """Return the array of an element, of any dtype of integers."""
        tokens = element
        if isinstance(element, list):
            is_plain = element and all([type(token) is int for token in element])
            with contextlib.suppress(ValueError, OverflowError):  # then it stays a list
                tokens = np.array(element, np.int64 if is_plain else None if element else np.int32)
        if not isinstance(tokens, np.ndarray) or not is_array(tokens):
            raise TypeError(
                "it must be a list or a one-dimensional array of integers of at most 64 bits, got "
                f"{shown(element)} of type {type(element).__name__}: select it by a map before"
            )
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise TypeError(
                "it must be a list or a one-dimensional array of integers, got an array of dtype "
                f"{tokens.dtype} and shape {tokens.shape}"
            )
        return tokens


class MegatronFormat(_TokenFormat):
    """A document for each element: ``.bin`` has the tokens, ``.idx`` where they begin."""

    name = "megatron"
    suffixes = (".bin", ".idx")

    def open(self, path: str, number: int) -> RecordWriter:
        return _MegatronWriter(path, np.dtype(self._fit["dtype"]))

    def source(self, paths: Sequence[str], counts: Sequence[int]) -> Any:
        from gristmill.sources.tokens import TokenSource

        return TokenSource(list(paths), "megatron")


class NpyFormat(_TokenFormat):
    """Rows of equal length, one after the other in arrays of one axis."""

    name = "npy"
    suffixes = (".npy",)

    def encode(self, element: Any) -> np.ndarray[Any, Any]:
        tokens = super().encode(element)
        if len(tokens) != self._fit["length"] or not len(tokens):
            raise ValueError(
                f"it must have {self._fit['length']} tokens, as the first element, and at least "
                "1, got "
                f"{len(tokens)}: pack documents into rows before, or write megatron"
            )
        return tokens

    def open(self, path: str, number: int) -> RecordWriter:
        return _NpyWriter(path, np.dtype(self._fit["dtype"]))

    def source(self, paths: Sequence[str], counts: Sequence[int]) -> Any:
        from gristmill.sources.tokens import TokenSource

        return TokenSource(list(paths), "npy", window=self._fit["length"], order="olmo")


class _MegatronWriter:
    def __init__(self, path: str, dtype: np.dtype[Any]) -> None:
        self._index_path = Path(path).with_suffix(".idx")
        self._dtype = dtype
        self._lengths = array("i")
        self._file = Path(path).open("wb")  # noqa: SIM115 - closed by close

    def write(self, record: np.ndarray[Any, Any]) -> None:
        self._file.write(record.tobytes())
        self._lengths.append(len(record))

    def close(self) -> None:
        self._file.close()
        lengths = np.frombuffer(self._lengths, np.intc).astype("<i4")
        ends = np.cumsum(lengths.astype(np.int64) * self._dtype.itemsize)
        pointers = np.concatenate([np.zeros(1, np.int64), ends[:-1]]).astype("<i8")
        documents = np.arange(len(lengths) + 1, dtype="<i8")
        head = struct.pack("<QBQQ", 1, _CODES[self._dtype.name], len(lengths), len(documents))
        parts = [lengths.tobytes(), pointers.tobytes(), documents.tobytes()]
        self._index_path.write_bytes(b"".join([_MAGIC, head, *parts]))


class _NpyWriter:
    """The header has the number of tokens, so it is written again at the end."""

    def __init__(self, path: str, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._num_tokens = 0
        self._file = Path(path).open("wb")  # noqa: SIM115 - closed by close
        self._write_header()

    def write(self, record: np.ndarray[Any, Any]) -> None:
        self._file.write(record.tobytes())
        self._num_tokens += len(record)

    def close(self) -> None:
        try:
            self._file.seek(0)
            self._write_header()
        finally:
            self._file.close()

    def _write_header(self) -> None:
        """NumPy pads a header for arrays that grow, so that its length is the same."""
        shape = (self._num_tokens,)
        values = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, values)
