"""Records in an order from elsewhere."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.core.errors import as_int
from gristmill.core.indices import Indices, as_array
from gristmill.core.seeds import check_seed
from gristmill.core.sharding import NoSharding
from gristmill.core.state import shown
from gristmill.samplers.base import BlockSampler


class IterableSampler(BlockSampler):
    """Goes through the indices of an iterable: a list, an array, a sampler of PyTorch.

    The iterable is gone through at construction, once for each epoch, and the indices are kept (8
    bytes each): nothing depends on it later, in no process. Order: that in which the indices came.
    The ``repr``, and with it every state of a ``DataLoader``, has a hash of them, so a state
    continues with the same indices, or is refused. For a random sampler to give the same ones in
    the next run it needs a generator of its own with a seed: in PyTorch ``RandomSampler(dataset,
    generator=torch.Generator().manual_seed(0))``.

    With the ``shard_options`` of a ``DataLoader``, the processes share the indices out among them,
    so all must be given the same ones. A ``DistributedSampler`` shares them out itself: pass no
    ``shard_options``.

    Args:
        indices: positions of records in the source, from 0 on. A method ``set_epoch``, as a
            ``DistributedSampler`` has it, is called before each epoch, with its number. Where it
            never ends, take ``itertools.islice(indices, n)``.
        num_epochs: how many times to go through it, at least 1; an iterator gives its indices only
            once.
        seed: seed of the records' generators (``Philox(key=seed + index)``), an unsigned 32-bit
            integer.

    Raises:
        TypeError: ``indices`` is not an iterable of integers.
        ValueError: an index is negative, an argument is out of range, or no indices came in a later
            epoch.

    Example:
        >>> sampler = IterableSampler([3, 0, 2], num_epochs=2)
        >>> [metadata.record_key for metadata in sampler]
        [3, 0, 2, 3, 0, 2]
        >>> sampler
        IterableSampler(num_indices=6, num_epochs=2, seed=None, content=2380d65413998295)
    """

    def __init__(
        self, indices: Iterable[Any], *, num_epochs: int = 1, seed: int | None = None
    ) -> None:
        self._num_epochs = as_int("num_epochs", num_epochs, minimum=1)
        self._seed = None if seed is None else check_seed(seed, bits=32)
        self._shard_options = NoSharding()
        epochs = [_indices_of(indices, epoch) for epoch in range(self._num_epochs)]
        for epoch, found in enumerate(epochs):
            if len(epochs[0]) and not len(found):
                raise ValueError(
                    f"indices must give its indices in each of {num_epochs} epochs, got none in"
                    f" epoch {epoch}: {type(indices).__name__} can be gone through only once. Pass"
                    " a list, or num_epochs=1"
                )
        self._ends = np.cumsum([len(found) for found in epochs])
        self._order = np.concatenate(epochs)
        self._bound = len(self._order)
        self._num_records = int(self._order.max(initial=-1)) + 1

    def __len__(self) -> int:
        return len(self._order)

    def __repr__(self) -> str:
        import hashlib

        content = hashlib.sha1(
            self._order.astype("<i8").tobytes(), usedforsecurity=False
        ).hexdigest()[:16]
        return (
            f"IterableSampler(num_indices={len(self)}, num_epochs={self._num_epochs},"
            f" seed={self._seed}, content={content})"
        )

    def _keys(self, indices: Indices) -> Indices:
        return self._order[as_array(indices, len(self._order)).astype(np.int64, copy=False)]

    def _epoch(self, index: int) -> int:
        return int(np.searchsorted(self._ends, index, side="right"))


def _indices_of(iterable: Any, epoch: int) -> NDArray[Any]:
    """Returns the indices [n] of an epoch, as int64."""
    if not isinstance(iterable, Iterable):
        raise TypeError(
            "indices must be an iterable of integers (a list, an array, a sampler of PyTorch), "
            f"got {shown(iterable):.100} of type {type(iterable).__name__}"
        )
    if hasattr(iterable, "set_epoch"):
        iterable.set_epoch(epoch)
    # also of JAX and PyTorch, where one element after the other takes long
    if hasattr(iterable, "__array__"):
        found = np.asarray(iterable)
        if found.ndim != 1 or found.dtype.kind not in "iu":
            raise TypeError(
                f"indices must be an array of integers [n], got one of shape {found.shape} and type"
                f" {found.dtype}"
            )
        found = found.astype(np.int64)  # a copy: what is kept must not change
    else:
        found = np.array([_as_index(index, iterable) for index in iterable], np.int64)
    if found.min(initial=0) < 0:
        raise ValueError(f"indices must be positions of records, from 0 on, got {found.min()}")
    return found


def _as_index(index: Any, iterable: Any) -> int:
    try:
        return operator.index(index)
    except TypeError:
        advice = (
            ": batches are made by gristmill.transforms.Batch"
            if isinstance(index, list | tuple)
            else ""
        )
        raise TypeError(
            f"indices must be integers, got {shown(index):.100} of type {type(index).__name__} "
            f"from {type(iterable).__name__}{advice}"
        ) from None
