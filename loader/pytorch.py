"""Hints on replacing the arguments of PyTorch's ``DataLoader``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec

P = ParamSpec("P")

_BY_POSITION = (
    *(
        "dataset",
        "batch_size",
        "shuffle",
        "sampler",
        "batch_sampler",
        "num_workers",
        "collate_fn",
        "pin_memory",
        "drop_last",
    ),
    *("timeout", "worker_init_fn", "multiprocessing_context", "generator"),
)
_BY_KEYWORD = ("prefetch_factor", "persistent_workers", "pin_memory_device", "in_order")
_THEIRS_ALONE = frozenset({*_BY_POSITION, *_BY_KEYWORD} - {"sampler", "worker_init_fn"})
_OF_LOAD = ("worker_count", "shard_options", "read_options")
_NOT_OF_LOAD = ("worker_buffer_size", "worker_init_fn", "worker_env", "enable_profiling")
_EPOCHS = (
    "one iterator goes through all epochs, and a shuffle has another order in each; None never ends"
)
_SHARES = "each worker makes batches of its own share of the records"
_IN_WORDS = {
    "pin_memory": "call pin_memory() of what comes out, in the training loop",
    "timeout": "leave it out: a worker that dies is reported at once",
    "worker_init_fn": "is called with the index of the worker and the number of workers",
    "multiprocessing_context": "leave it out: workers are new processes, never forks",
    "generator": "give a seed, an integer, to gristmill.load or to the sampler",
    "persistent_workers": "leave it out: an iterator has its workers for all of its epochs",
    "in_order": "leave it out: the order never depends on speed",
}


def refusing_pytorch(init: Callable[P, None]) -> Callable[P, None]:
    """Returns ``init``, a constructor whose arguments are all keywords, with advice for callers
    that pass those of PyTorch.

    Names that neither library has are left to Python.
    """

    @functools.wraps(init)
    def checked(*args: P.args, **arguments: P.kwargs) -> None:
        if len(args) > 1 or not _THEIRS_ALONE.isdisjoint(arguments):
            raise TypeError(advice(args[1:], arguments))
        init(*args, **arguments)

    # for tools that do not unwrap functions
    vars(checked)["__signature__"] = inspect.signature(init)
    return checked


def for_indices(sampler: Any) -> str:
    """Returns a hint for a sampler that yields plain indices, as the end of a message; empty if
    ``sampler`` seems to be no sampler.
    """
    gives_indices = (
        isinstance(sampler, Sequence)
        or hasattr(sampler, "__array__")
        or not hasattr(sampler, "__getitem__")
    )
    is_one = gives_indices and isinstance(sampler, Iterable)
    return (
        ". For indices alone, as samplers of PyTorch give, write"
        " gristmill.samplers.IterableSampler(sampler)"
        if is_one
        else ""
    )


def advice(args: Sequence[Any], arguments: Mapping[str, Any]) -> str:
    """Returns the call to write in place of ``DataLoader(*args, **arguments)``.

    Example:
        >>> print(advice([range(9)], {"num_workers": 2}))  # doctest: +ELLIPSIS
        DataLoader has none of PyTorch's parameters dataset, num_workers. Write
            gristmill.load(dataset, num_epochs=1, batch_size=1, worker_count=2)
        num_epochs: one iterator goes through all epochs, ...
        worker_count: each worker makes batches of its own share of the records
    """
    if (
        _THEIRS_ALONE.isdisjoint(arguments)
        and len(args) > 1
        and not isinstance(args[1], int | None)
    ):
        return (
            "DataLoader takes its arguments by keyword. Write\n"
            "    gristmill.DataLoader(data_source=source, sampler=sampler, operations=[...])"
        )
    written = {**dict(zip(_BY_POSITION, args, strict=False)), **arguments}
    # Without what changes nothing: in_order=True, and None or False of the others.
    given = {
        name: value
        for name, value in written.items()
        if value is not None and value is not (name == "in_order")
    }
    is_batched = "batch_size" in written or "batch_sampler" in given
    if (
        not is_batched
        and not given.keys() & {"data_source", "operations", *_OF_LOAD}
        and for_indices(given.get("sampler", ()))
    ):
        given["batch_size"] = 1  # PyTorch's default
    line = _call(given)
    notes = {"num_epochs": _EPOCHS} if "num_epochs" in line else {}
    notes |= {"worker_count": _SHARES} if "worker_count" in line and "atch" in line else {}
    notes |= {name: words for name, words in _IN_WORDS.items() if name in given}
    names = ", ".join([name for name in written if name in _THEIRS_ALONE])
    lines = [f"{name}: {words}" for name, words in notes.items()]
    return "\n".join(
        [f"DataLoader has none of PyTorch's parameters {names}. Write", f"    {line}", *lines]
    )


def _call(given: Mapping[str, Any]) -> str:
    """Returns the call that does the same; values other than numbers are variables of the names of
    their parameters.
    """
    num_workers = _setting("", "num_workers", given)
    if "batch_sampler" in given:
        collate = "collate_fn" if "collate_fn" in given else "torch.utils.data.default_collate"
        ds = (
            f"source(list(batch_sampler)).map(lambda indices: {collate}([dataset[i] for i in"
            " indices])).to_iter_dataset()"
        )
        workers = [f".mp_prefetch(gristmill.MultiprocessingOptions({n}))" for n in num_workers]
        return f"gristmill.MapDataset.{ds}{''.join(workers)}"
    order = "num_epochs=1, shuffle=True, seed=0" if "shuffle" in given else "num_epochs=1"
    settings = [
        *_setting("worker_count=", "num_workers", given),
        *_setting("worker_buffer_size=", "prefetch_factor", given),
        *[
            setting
            for name in (*_OF_LOAD, *_NOT_OF_LOAD)
            for setting in _setting(f"{name}=", name, given)
        ],
    ]
    size = _setting("", "batch_size", given)
    drop = ["drop_remainder=True"] if size and "drop_last" in given else []
    collate_fn = ["batch_fn=collate_fn"] if size and "collate_fn" in given else []
    batches = (
        [f"gristmill.transforms.Batch({', '.join([*size, *drop, *collate_fn])})"] if size else []
    )
    if not given.keys() & {"sampler", "operations", "prefetch_factor", *_NOT_OF_LOAD}:
        made = (
            [f"transformations=[{batches[0]}]"]
            if collate_fn
            else [*_setting("batch_size=", "batch_size", given), *drop]
        )
        return f"gristmill.load({', '.join(['dataset', order, *made, *settings])})"
    sampler = f"gristmill.samplers.IndexSampler(len(dataset), {order})"
    if "sampler" in given:
        sampler = (
            "gristmill.samplers.IterableSampler(sampler)"
            if for_indices(given["sampler"])
            else "sampler"
        )
    operations = ["*operations"] * ("operations" in given) + batches
    made = [
        "data_source=dataset",
        f"sampler={sampler}",
        *([f"operations=[{', '.join(operations)}]"] if operations else []),
    ]
    return f"gristmill.DataLoader({', '.join([*made, *settings])})"


def _setting(prefix: str, name: str, given: Mapping[str, Any]) -> list[str]:
    """Returns ``prefix`` and a number as it is, anything else as a variable; nothing where it is
    not given, or is no workers.
    """
    value = given.get(name, 0)
    return (
        []
        if isinstance(value, int) and value == 0
        else [f"{prefix}{int(value) if isinstance(value, int) else name}"]
    )
