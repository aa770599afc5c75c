"""Facts about the streams of Hugging Face's ``datasets`` that are needed to resume them exactly and
to share them out.

A stream is a tree of steps (``_ex_iterable``), which the library itself walks by the names
``ex_iterable`` and ``ex_iterables``. Each step keeps its position in itself, so two iterations of
one stream disturb each other: ``fresh`` gives one with steps of its own.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from typing import Any

from gristmill.core.value import Value

# Steps after whose state the next example is exactly the next one, in any combination: tried with
# streams drawn at random, at every position and twice (tests/dataset/test_hugging_face_stream.py).
# Of others, those of releases to come, nothing is assumed.
_EXACT_STEPS = {
    "ArrowExamplesIterable",
    "BufferShuffledExamplesIterable",  # of one example, others are refused
    "CyclingMultiSourcesExamplesIterable",
    "ExamplesIterable",
    "FilteredExamplesIterable",
    "FormattedExamplesIterable",
    "HorizontallyConcatenatedMultiSourcesExamplesIterable",
    "InterleavedShardsExamplesIterable",
    "MappedExamplesIterable",
    "RandomlyCyclingMultiSourcesExamplesIterable",
    "RebatchedArrowExamplesIterable",
    "RepeatExamplesIterable",
    "SelectColumnsIterable",
    "SkipExamplesIterable",
    "StepExamplesIterable",
    "TakeExamplesIterable",
    "VerticallyConcatenatedMultiSourcesExamplesIterable",
}
_EXACT_SINCE = (5, 2)  # older releases lose or repeat examples in several of them

# Steps of which the examples of all shards together are those of the whole.
_SHARING_STEPS = {
    "ArrowExamplesIterable",
    "ExamplesIterable",
    "FilteredExamplesIterable",
    "FormattedExamplesIterable",
    "MappedExamplesIterable",
    "RebatchedArrowExamplesIterable",
    "SelectColumnsIterable",
    "VerticallyConcatenatedMultiSourcesExamplesIterable",
}
_MAX_SEED_BITS = 64  # what NumPy draws in place of a seed has about 128


class StreamFacts(Value):
    """The facts about a stream.

    Args:
        is_exact: whether the library's states are those of the next example.
        can_share_shards: whether its shards have, together, its examples.
        num_shards: how many there are.
        described: what distinguishes it from others in descriptions of pipelines, the same in every
            run.
    """

    is_exact: bool
    can_share_shards: bool
    num_shards: int
    described: dict[str, Any]


def fresh(stream: Any) -> Any:
    """Returns the same stream at its beginning, with steps of its own, in the same epoch."""
    import datasets

    new = datasets.IterableDataset(
        ex_iterable=_own_steps(stream._ex_iterable),
        info=stream._info.copy(),
        split=stream._split,
        formatting=stream._formatting,
        distributed=copy.copy(stream._distributed),
        token_per_repo_id=stream._token_per_repo_id,
    )
    new.set_epoch(stream.epoch)
    return new


def finish(stream: Any, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """Closes the event loops in which ``async`` functions of a ``fresh`` stream have run: the
    library leaves them open.

    At the end of the interpreter it does nothing: there, names of this module may be gone.
    """
    if is_finalizing():
        return
    import asyncio

    for step in _steps(stream._ex_iterable):
        loops = getattr(step, "_owned_loops_and_tasks", None) or []
        while loops:
            loop, tasks = loops.pop()
            if loop.is_running():  # that of the caller
                continue
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.close()


def sharded(stream: Any, num_shards: int, index: int) -> Any:
    """Returns the shards ``index``, ``index + num_shards``, … of ``stream``."""
    share = stream.shard(num_shards=num_shards, index=index, contiguous=False)
    share.set_epoch(stream.epoch)
    return fresh(share)


def examined(stream: Any) -> StreamFacts:
    """Returns the facts about ``stream``.

    Raises:
        ValueError: it is shuffled in a way that cannot be resumed.
    """
    steps = list(_steps(stream._ex_iterable))
    for step in steps:
        _check_shuffle(step)
    return StreamFacts(
        is_exact=_release() >= _EXACT_SINCE and all(map(_is_exact, steps)),
        can_share_shards=stream._distributed is None and all(map(_shares, steps)),
        num_shards=stream.num_shards,
        described={
            "columns": stream.column_names,
            "format": stream._formatting.format_type if stream._formatting else None,
            "num_shards": stream.num_shards,
            "epoch": stream.epoch,
            "steps": [_short_name(step) for step in steps],
        },
    )


def fits(stream: Any, state: Any) -> bool:
    """True if ``state`` can be one of ``stream``: of the same epoch, and the same steps, each with
    what belongs to it.
    """
    if (
        not isinstance(state, dict)
        or set(state) != {"examples_iterable", "epoch"}
        or state["epoch"] != stream.epoch
    ):
        return False
    reader = fresh(stream)
    # with steps around the others, and in later epochs other ones within
    read = reader._prepare_ex_iterable_for_iteration()
    initial = reader.state_dict()["examples_iterable"]
    known = [form for step in _steps(read) for form in _forms(_own_steps(step)._init_state_dict())]
    return _is_like(state["examples_iterable"], initial, known)


def _forms(state: Any) -> list[Any]:
    """Returns ``state``, and the states in it."""
    if isinstance(state, dict):
        return [state] * ("type" in state) + [
            form for value in state.values() for form in _forms(value)
        ]
    return [form for value in state for form in _forms(value)] if isinstance(state, list) else []


def _is_like(state: Any, initial: Any, known: list[Any], is_whole: bool = True) -> bool:
    """True if ``state`` has the form of ``initial``; where that has nothing yet, that of a step
    among the ``known`` ones, or of some shards of it, which may have shorter lists.
    """
    if isinstance(initial, dict):
        is_same = (
            isinstance(state, dict)
            and set(state) == set(initial)
            and state.get("type") == initial.get("type")
        )
        return is_same and all(
            [_is_like(state[key], value, known, is_whole) for key, value in initial.items()]
        )
    if isinstance(initial, list):
        if not isinstance(state, list) or not is_whole:
            return isinstance(state, list)
        return len(state) == len(initial) and all(
            [_is_like(*pair, known) for pair in zip(state, initial, strict=True)]
        )
    if initial is None:
        return state is None or any([_is_like(state, form, known, False) for form in known])
    if isinstance(initial, int) and not isinstance(initial, bool):
        return isinstance(state, int) and not isinstance(state, bool) and state >= 0
    return type(state) is type(initial)


def _own_steps(step: Any) -> Any:
    own = copy.copy(step)
    own._state_dict = None
    if hasattr(own, "_owned_loops_and_tasks"):
        own._owned_loops_and_tasks = []
    if hasattr(own, "ex_iterable"):
        own.ex_iterable = _own_steps(own.ex_iterable)
    if hasattr(own, "ex_iterables"):
        own.ex_iterables = [_own_steps(inner) for inner in own.ex_iterables]
    return own


def _steps(step: Any) -> Iterator[Any]:
    """Yields ``step`` and those that it draws from."""
    yield step
    for inner in (
        [step.ex_iterable] if hasattr(step, "ex_iterable") else getattr(step, "ex_iterables", ())
    ):
        yield from _steps(inner)


def _short_name(step: Any) -> str:
    return (
        type(step).__name__.removesuffix("ExamplesIterable").removesuffix("Iterable") or "Examples"
    )


def _release() -> tuple[int, ...]:
    import datasets

    return tuple([int(part) for part in datasets.__version__.split(".")[:2] if part.isdecimal()])


def _is_exact(step: Any) -> bool:
    import inspect

    if type(step).__name__ not in _EXACT_STEPS or not _has_one_kind(step):
        return False
    function = getattr(step, "function", None)
    if function is None:
        return True
    if not _is_cut(step.ex_iterable):
        return False
    is_of_tables = getattr(step, "formatting", None) is not None and step.formatting.is_table
    return not (inspect.iscoroutinefunction(function) or (is_of_tables and step.batched))


def _has_one_kind(step: Any) -> bool:
    """True if all that is joined gives tables, or none: the library knows it of the whole, and
    shards of it may be others.
    """
    return len({bool(inner.iter_arrow) for inner in getattr(step, "ex_iterables", ())}) < 2


def _is_cut(step: Any) -> bool:
    """True if examples that a function gets from tables are counted one by one."""
    while type(step).__name__ == "FormattedExamplesIterable":
        step = step.ex_iterable
    return not step.iter_arrow or type(step).__name__ == "RebatchedArrowExamplesIterable"


def _shares(step: Any) -> bool:
    looks_at_others = getattr(step, "batched", False) or getattr(step, "with_indices", False)
    return type(step).__name__ in _SHARING_STEPS and not looks_at_others


def _check_shuffle(step: Any) -> None:
    buffer_size = getattr(step, "buffer_size", 1)
    if buffer_size > 1:
        raise ValueError(
            f"dataset must not be shuffled with a buffer, got shuffle(buffer_size={buffer_size}):"
            " the library loses what is in it when it is resumed. Shuffle the files alone with"
            " dataset.shuffle(seed=..., buffer_size=1), and the examples after it:"
            f" HuggingFaceIterDataset(dataset).window_shuffle({buffer_size}, seed=...)"
        )
    generator = getattr(step, "generator", None)
    entropy = getattr(
        getattr(getattr(generator, "bit_generator", None), "seed_seq", None), "entropy", 0
    )
    if isinstance(entropy, int) and entropy.bit_length() > _MAX_SEED_BITS:
        raise ValueError(
            "dataset must not be shuffled or interleaved without a seed: it could not be resumed in"
            " another run. Give shuffle(seed=...) or interleave_datasets(..., seed=...) a seed"
        )
