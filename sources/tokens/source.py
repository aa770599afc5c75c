"""Tokens of language models, from the files that trainers have them in."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.core.element_spec import ShapeDtypeStruct
from gristmill.sources.sharded import ShardedSource, ShardMap
from gristmill.sources.storage.files import is_url
from gristmill.sources.tokens.arrangement import Arrangement
from gristmill.sources.tokens.opening import open_tokens


class TokenSource(ShardedSource[NDArray[Any]]):
    """The documents of files of tokens, or windows of equal length over them. Nothing is loaded: an
    element is what is read.

    Elements are writable one-dimensional arrays of the files' dtype. Several files are read one
    after the other, in the order given.

    * **Documents** (the default for Megatron's files): element ``i`` is document ``i``. Other
      formats do not say where documents begin. Where an index has as many documents as sequences,
      each sequence is one.
    * **Windows** of ``window = L + 1`` tokens: element ``i`` has the tokens from ``i * L`` to
      ``i * L + L`` of all files, as they follow one another. The last token of a window is the
      first of the next: each token is a label once, and an input once (``window[1:]`` and
      ``window[:-1]``). Fewer than ``L`` tokens at the end are not used.
    * **Windows in Megatron's order**, ``order="megatron"``: element ``i`` has the tokens that
      ``GPTDataset`` of Megatron Core gives for ``i``: documents shuffled over all epochs, cut into
      samples of ``L + 1`` tokens that overlap by one, and these shuffled. A document is a sequence
      of the index.
    * **Windows in OLMo's order**, ``order="olmo"``: chunks of ``window`` tokens that do not
      overlap; none crosses from a file to the next, and what is left at the end of a file is not
      used. With ``seed`` they are shuffled as OLMo does.

    A process that reads has its files open, at most 128 of them, and nothing of them in memory.
    Orders that are not stored are computed by each process at its first read, and kept: 4 bytes for
    each chunk of OLMo's; for Megatron's 12 bytes for each sample and 4 for each document of each
    epoch, and about four times as much meanwhile.

    Args:
        paths: files or patterns: ``*`` and ``?`` stand for what is there, ``{a,b}`` and
            ``{00..31}`` for all of these. For Megatron prefixes, or either file of a pair.
        format: ``"megatron"`` (``.bin`` and ``.idx``), ``"npy"`` (NumPy files with one axis; and
            OLMo's, which are called so and have no header), or ``"raw"`` (nothing but tokens, as
            nanoGPT's; or a header of llm.c before them).
        dtype: of the tokens. Needed where files do not say it: raw tokens, and OLMo's files.
            Otherwise it must match theirs.
        documents: whether elements are documents.
        window: elements are windows of that many tokens, at least 2 (1 with ``order="olmo"``).
        order: ``None``, ``"megatron"`` or ``"olmo"``, as above.
        seed: with ``order="megatron"``, Megatron's ``--seed``; with ``order="olmo"``, OLMo's seed
            plus the number of the epoch, counted from 0, and ``None`` leaves chunks in order.
        num_samples: with ``order="megatron"``, the number of samples: training steps times
            the global batch. There are as many as whole epochs have, so maybe more. ``None`` is one
            epoch.
        split: with ``order="megatron"``, its ``--split``, such as ``"969,30,1"``. ``None`` takes
            all documents.
        part: which part of ``split``: ``"train"`` (the default), ``"valid"`` or ``"test"``.
        index: an order that is stored: with ``order="megatron"`` the common beginning of the paths
            of ``-document_index.npy``, ``-sample_index.npy`` and ``-shuffle_index.npy`` in
            Megatron's cache; with ``order="olmo"`` its ``global_indices.npy``. It is read as it is
            needed.
        filesystem: an fsspec file system to read all files through. URLs do not need it.

    Raises:
        TypeError, ValueError: an argument is wrong, does not go with another, or files are of
            different dtypes.
        OSError: a file is missing or cannot be read; reads raise it, too.
        DamagedFileError: a file is cut short, foreign, or does not fit its index: names file, byte
            and remedy. If an index has more than 4 million sequences (65 536 in a store), some
            faults are found by reads only.
        ChangedFileError: raised by reads: a file is not what it was when the source was made.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "train.bin")
        >>> np.arange(10, dtype=np.uint16).tofile(path)  # as nanoGPT writes it
        >>> source = TokenSource(path, "raw", dtype=np.uint16, window=5)
        >>> [window.tolist() for window in source]
        [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]
        >>> source
        TokenSource(raw, window=5, uint16, 1 file, 20 bytes, 5e86a305)
    """

    def __init__(
        self,
        paths: Any,
        format: str = "megatron",
        *,
        dtype: Any = None,
        documents: bool | None = None,
        window: int | None = None,
        order: str | None = None,
        seed: int | None = None,
        num_samples: int | None = None,
        split: str | None = None,
        part: str | None = None,
        index: Any = None,
        filesystem: Any = None,
    ) -> None:
        self._wanted = Arrangement(
            format, dtype, documents, window, order, seed, num_samples, split, part, index
        )
        self._files, self.paths, self._dtype, self._layout, self._indexes = open_tokens(
            paths, self._wanted, filesystem
        )
        self._is_local = filesystem is None
        self._shards = ShardMap([len(self._layout)])
        self._start_closed()

    def _read_one(self, number: int, position: int) -> NDArray[Any]:
        (ranges,) = self._layout.ranges([position])
        if len(ranges) == 1:
            file, start, stop = ranges[0]
            piece = self._files.read_one(file, start, stop)
        else:
            piece = b"".join(self._files.read(ranges))
        return np.frombuffer(piece, self._dtype).copy()

    def _read_many(self, places: Sequence[tuple[int, int]]) -> list[NDArray[Any]]:
        elements = self._layout.ranges([position for _, position in places])
        pieces = self._files.read(list(itertools.chain.from_iterable(elements)))
        # some are of several pieces, or of none
        if len(pieces) != len(elements) or not all(elements):
            rest = iter(pieces)
            pieces = [b"".join(itertools.islice(rest, len(element))) for element in elements]
        dtype = self._dtype
        return [np.frombuffer(piece, dtype).copy() for piece in pieces]

    @property
    def lengths(self) -> NDArray[Any]:
        """The number of tokens of each element, without reading tokens: for ``bucket_batch``.

        Documents of one local file: a memory map. Those of several files, or of remote ones, are
        read into memory.

        Raises:
            AttributeError: documents have several sequences, whose lengths would have to be added
                up.
        """
        if self._wanted.window is not None:
            return np.broadcast_to(np.int64(self._wanted.window), len(self))
        for index in self._indexes:
            if not index.has_one_sequence_each:
                raise AttributeError(
                    f"{self!r} has documents of several sequences, and tells no lengths"
                )
        if len(self._indexes) == 1 and len(self) and self._is_local and not is_url(self.paths[0]):
            return self._indexes[0].mapped_lengths()
        return np.concatenate([index.lengths(0, index.num_sequences) for index in self._indexes])

    @property
    def element_spec(self) -> ShapeDtypeStruct:
        """The spec of an element, for ``get_element_spec``."""
        return ShapeDtypeStruct((self._wanted.window,), self._dtype)

    def close(self) -> None:
        """Closes all files of this process. The next read opens them again."""
        super().close()
        self._files.close()

    def __repr__(self) -> str:
        return f"TokenSource({self._wanted}, {self._dtype}, {self._files.described()})"
