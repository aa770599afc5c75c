"""Checks that a data source keeps the promises on which pipelines depend."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill.core.errors import as_int
from gristmill.core.state import shown
from gristmill.sources.base import RandomAccessDataSource
from gristmill.sources.reading import read_keys
from gristmill.testing.laws import BLOCKS, Law, check_answers, spread

_LENGTH = Law(
    "len(source) is the number of records, always the same",
    "Return a non-negative int that reads do not change.",
)
_RANGE = Law(
    "a key beyond the end raises IndexError or ValueError",
    "Loops over the source end by it, and it shows wrong keys. Check the key in __getitem__, or say"
    " with_range=False if the source means to answer every key.",
)


def assert_source_conforms(
    source: Any,
    *,
    max_records: int = 50,
    with_range: bool = True,
    with_repr: bool = True,
    in_worker: bool = False,
) -> None:
    """Asserts that ``source`` can be read as pipelines read it: any key, any time, from any thread
    and process.

    Checked are the length; reading again, in other orders, in blocks (``__getitems__``, if there is
    one), in eight threads at a time, and from copies made by cloudpickle; keys beyond the end; and,
    except for lists, tuples and arrays, that the ``repr`` has no memory address and is that of a
    copy. Keys are of the built-in ``int``, as in pipelines.

    Args:
        source: a source with at least one record, or the checks say little.
        max_records: how many records to read, spread over all; each is read about 20 times.
        with_range: whether the source has to refuse keys beyond its end.
        with_repr: whether its ``repr`` has to be good for the states of a ``DataLoader``.
        in_worker: also start a worker process and read there.

    Raises:
        AssertionError: something is not so; says which law is broken, what was found, and what to
            do.
        TypeError: ``source`` has no ``__len__`` or no ``__getitem__``.

    Example:
        >>> assert_source_conforms(["a", "b", "c"])
        >>> class Noise:
        ...     def __len__(self):
        ...         return 3
        ...
        ...     def __getitem__(self, key):
        ...         return np.random.default_rng().normal()
        ...
        ...     def __repr__(self):
        ...         return "Noise()"
        >>> assert_source_conforms(Noise())  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        AssertionError: broken law: what comes back depends on what is asked for alone, ...
    """
    if not isinstance(source, RandomAccessDataSource):
        raise TypeError(
            f"source must have __len__ and __getitem__, got {shown(source)} of type"
            f" {type(source).__name__}"
        )
    max_records = as_int("max_records", max_records, minimum=1)
    length = _LENGTH.run("len(source)", len, source)
    check_answers(
        source,
        spread(length, max_records),
        read_keys,
        "source[{}]".format,
        # whose type is what states carry
        with_repr=with_repr and not isinstance(source, list | tuple | np.ndarray),
        in_worker=in_worker,
    )
    if callable(vectored := getattr(source, "__getitems__", None)):
        BLOCKS.equal(
            "source.__getitems__([])", [], list(BLOCKS.run("source.__getitems__([])", vectored, []))
        )
    _LENGTH.equal("len(source) after reads", length, len(source))
    for key in (length, length + 1000) if with_range else ():
        _RANGE.refuses(
            f"source[{key}], with len(source) = {length},",
            (IndexError, ValueError),
            source.__getitem__,
            key,
        )
