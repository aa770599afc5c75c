"""Finds the place of each element from the names of files and the arguments."""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gristmill.core.errors import add_note
from gristmill.sources.storage.errors import damaged
from gristmill.sources.storage.files import Files, list_files
from gristmill.sources.tokens import megatron_order
from gristmill.sources.tokens.arrangement import Arrangement
from gristmill.sources.tokens.layouts import (
    Chunks,
    Documents,
    Layout,
    Reordered,
    Run,
    Samples,
    Tables,
    Windows,
    shuffled_numbers,
)
from gristmill.sources.tokens.megatron_index import MegatronIndex
from gristmill.sources.tokens.megatron_order import SampleOrder
from gristmill.sources.tokens.tables import (
    ArrayTable,
    FileTable,
    StoredArray,
    Table,
    heads,
    npy_array,
    plain_array,
)

_SAMPLE_TABLES = ("document_index", "sample_index", "shuffle_index")
_HEADER = struct.Struct("<iii")
_HEADER_BYTES = 1024  # 256 int32, of which three are used: magic, version, number of tokens
# Of llm.c: magic and version that stand for GPT-2's tokens, and for Llama 3's.
_HEADERS: dict[tuple[int, int], np.dtype[Any]] = {
    (20240520, 1): np.dtype("<u2"),
    (20240801, 7): np.dtype("<u4"),
}


class Opened(NamedTuple):
    """Files, the first of which have tokens, their type, and the place of each element in them."""

    files: Files
    paths: list[str]
    dtype: np.dtype[Any]
    layout: Layout
    indexes: list[MegatronIndex]


def open_tokens(paths: Any, wanted: Arrangement, filesystem: Any) -> Opened:
    """Raises: as ``TokenSource``."""
    if wanted.format == "megatron":
        data = list_files("paths", _data_of_pairs(paths), filesystem)
        names = data + [f"{path.removesuffix('.bin')}.idx" for path in data]
    else:
        names = data = list_files("paths", paths, filesystem)
    try:
        files = Files(names + _index_paths(wanted), filesystem)
    except FileNotFoundError as error:
        if wanted.format == "megatron":
            add_note(
                error,
                "Megatron's files are pairs, .bin and .idx. Tokens without an index are read with"
                " format='raw'.",
            )
        raise
    try:
        return _opened(files, data, wanted)
    finally:
        files.close()


def _opened(files: Files, data: list[str], wanted: Arrangement) -> Opened:
    numbers = range(len(data))
    indexes: list[MegatronIndex] = []
    if wanted.format == "megatron":
        indexes = [MegatronIndex(files, number, len(data) + number) for number in numbers]
        arrays = [
            StoredArray(0, index.num_bytes // index.dtype.itemsize, index.dtype)
            for index in indexes
        ]
    else:
        find = _npy_tokens if wanted.format == "npy" else _raw_tokens
        arrays = [
            find(files, number, head, wanted.dtype)
            for number, head in zip(numbers, heads(files, numbers), strict=True)
        ]
    dtype = _common_dtype(data, arrays, wanted.dtype)
    for index in indexes:
        if wanted.window is None or wanted.order == "megatron":
            index.check_documents()
        else:
            index.check_is_gapless()
    if wanted.window is None:
        return Opened(files, data, dtype, Documents(files, indexes), indexes)
    if wanted.order == "megatron":
        layout: Layout = _samples(files, indexes, wanted)
    else:
        runs = [
            Run(number, array.start, array.num_values)
            for number, array in zip(numbers, arrays, strict=True)
        ]
        layout = _windows(files, runs, dtype.itemsize, wanted)
    return Opened(files, data, dtype, layout, [])


def _data_of_pairs(paths: Any) -> Any:
    """Returns ``paths`` with the names of the files of tokens, where they are prefixes or those of
    indexes.
    """
    if isinstance(paths, str | os.PathLike) or not isinstance(paths, Sequence):
        return _data_of_pair(paths)
    given = [os.fspath(path) for path in paths if isinstance(path, str | os.PathLike)]
    both = {path for path in given if isinstance(path, str) and path.endswith(".bin")}
    for path in given:
        if (
            isinstance(path, str)
            and path.endswith(".idx")
            and f"{path.removesuffix('.idx')}.bin" in both
        ):
            raise ValueError(
                f"paths must name a pair of files once: {path} and the file .bin beside it are both"
                " named"
            )
    return [_data_of_pair(path) for path in paths]


def _data_of_pair(path: Any) -> Any:
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        return path  # refused by list_files
    name: str = os.fspath(path)
    return f"{name.removesuffix('.idx').removesuffix('.bin')}.bin"


def _index_paths(wanted: Arrangement) -> list[str]:
    if wanted.index is None:
        return []
    if wanted.order == "olmo":
        return [wanted.index]
    prefix = wanted.index
    for name in (*(f"-{name}.npy" for name in _SAMPLE_TABLES), "-description.txt"):
        prefix = prefix.removesuffix(name)
    return [f"{prefix}-{name}.npy" for name in _SAMPLE_TABLES]


def _npy_tokens(files: Files, number: int, head: bytes, dtype: np.dtype[Any] | None) -> StoredArray:
    array = npy_array(files, number, head)
    if array is not None:
        return array
    if dtype is None:
        raise ValueError(
            f"dtype must be given: {files.paths[number]} has no header of NumPy's. OLMo's files"
            " have none, in spite of their name: give the dtype that they were written with, such"
            " as numpy.uint16 or numpy.uint32"
        )
    return plain_array(files, number, dtype)


def _raw_tokens(files: Files, number: int, head: bytes, dtype: np.dtype[Any] | None) -> StoredArray:
    path, size = files.paths[number], files.sizes[number]
    magic, version, num_tokens = (
        _HEADER.unpack(head[: _HEADER.size]) if len(head) >= _HEADER_BYTES else (0, 0, 0)
    )
    stored_as = _HEADERS.get((magic, version))
    if stored_as is not None:
        end = _HEADER_BYTES + num_tokens * stored_as.itemsize
        if size != end:
            what = (
                f"its header says that it has {num_tokens} tokens, so {end} bytes, but it has"
                f" {size}"
            )
            raise damaged(path, min(size, max(end, 0)), what, "Copy or write the file again")
        return StoredArray(_HEADER_BYTES, num_tokens, stored_as)
    if head.startswith(b"\x93NUMPY"):
        raise damaged(path, 0, "it begins as a NumPy file does", "Say format='npy'")
    if dtype is None:
        raise ValueError(
            f"dtype must be given: {path} does not say what type its tokens have. nanoGPT's"
            " train.bin and val.bin have numpy.uint16"
        )
    return plain_array(files, number, dtype)


def _common_dtype(
    paths: list[str], arrays: Sequence[StoredArray], dtype: np.dtype[Any] | None
) -> np.dtype[Any]:
    for path, array in zip(paths, arrays, strict=True):
        if dtype is not None and array.dtype != dtype:
            raise ValueError(
                f"dtype must be that of the files, {array.dtype}, as {path} says, got {dtype}"
            )
        if array.dtype != arrays[0].dtype:
            raise ValueError(
                f"paths must name files of one dtype: {paths[0]} has {arrays[0].dtype} and {path}"
                f" has {array.dtype}. Make a source of each, and put a map that converts them"
                " over one"
            )
    return arrays[0].dtype


def _windows(files: Files, runs: Sequence[Run], itemsize: int, wanted: Arrangement) -> Layout:
    assert wanted.window is not None
    layout: Layout
    if wanted.order == "olmo":
        layout = Chunks(runs, itemsize, wanted.window)
    else:
        layout = Windows(runs, itemsize, wanted.window, step=wanted.window - 1)
    if not len(layout):
        most = max if wanted.order == "olmo" else sum
        found = (
            f"{most(run.num_tokens for run in runs)}"
            f" tokens{' in the longest file' if most is max else ''}"
        )
        raise ValueError(
            f"window must be at most the number of tokens, got {wanted.window}, and there are"
            f" {found}"
        )
    if wanted.index is not None:
        number = len(files) - 1
        array = npy_array(files, number, heads(files, [number])[0]) or plain_array(
            files, number, np.dtype("<u4")
        )
        _check_has_elements(files, number, array.num_values)
        return Reordered(
            layout,
            Tables(array.num_values, None, [FileTable(files, number, array)], files, [number]),
        )
    if wanted.seed is None or wanted.order is None:
        return layout
    return Reordered(
        layout, Tables(len(layout), functools.partial(_chunk_tables, len(layout), wanted.seed))
    )


def _chunk_tables(length: int, seed: int) -> list[Table]:
    return [ArrayTable(shuffled_numbers(length, seed))]


def _samples(files: Files, indexes: Sequence[MegatronIndex], wanted: Arrangement) -> Samples:
    assert wanted.window is not None
    if len(indexes) > 1:
        raise ValueError(
            f"paths must name one data set with order='megatron', got {len(indexes)}: make a source"
            " of each, and mix the datasets with grain.MapDataset.mix"
        )
    (index,) = indexes
    if wanted.index is not None:
        return Samples(files, index, wanted.window, _stored_samples(files))
    sequences = range(index.num_sequences)
    if wanted.split is not None:
        sequences = megatron_order.documents_of_part(
            wanted.split, wanted.part or "train", index.num_sequences
        )
    num_tokens, num_inputs = index.num_tokens(sequences.start, sequences.stop), wanted.window - 1
    assert wanted.seed is not None
    num_epochs = num_tokens and megatron_order.needed_epochs(
        num_tokens, num_inputs, wanted.num_samples
    )
    order = SampleOrder(
        sequences, num_tokens, num_epochs, num_inputs, wanted.num_samples, wanted.seed
    )
    if not order.length:
        raise ValueError(
            f"window must be at most the number of tokens, got {wanted.window}, and there are"
            f" {num_tokens} tokens"
        )
    return Samples(
        files,
        index,
        wanted.window,
        Tables(order.length, functools.partial(_sample_tables, order, index)),
    )


def _sample_tables(order: SampleOrder, index: MegatronIndex) -> list[Table]:
    return [ArrayTable(array) for array in order.tables(index)]


def _stored_samples(files: Files) -> Tables:
    numbers = range(len(files) - len(_SAMPLE_TABLES), len(files))
    found = []
    for number, head, columns in zip(numbers, heads(files, numbers), (1, 2, 1), strict=True):
        array = npy_array(files, number, head, columns)
        if array is None:
            raise damaged(
                files.paths[number],
                0,
                "it does not begin as a NumPy file does",
                "Let Megatron write its index again",
            )
        found.append(FileTable(files, number, array, columns))
    num_samples = len(found[1]) - 1
    if len(found[2]) != num_samples:
        what = (
            f"it has an order of {len(found[2])} samples, but {files.paths[numbers[1]]} has"
            f" {num_samples}"
        )
        raise damaged(files.paths[numbers[2]], 0, what, "Take the three files of one index")
    _check_has_elements(files, numbers[2], num_samples)
    return Tables(num_samples, None, found, files, numbers)


def _check_has_elements(files: Files, number: int, num_elements: int) -> None:
    if not num_elements:
        raise ValueError(
            f"index must have at least one element, and {files.paths[number]} has none: name"
            " another order"
        )
