"""Checks that a pipeline continues exactly where a checkpoint was taken."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
from typing import Any

import numpy as np

from gristmill.core import tree
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.node import DatasetNode, ancestors
from gristmill.dataset.descriptions.equality import are_equal


class _TheEnd:
    def __repr__(self) -> str:
        return "the end"


_THE_END = _TheEnd()


def assert_equal_output_after_checkpoint(
    ds: Any,
    *,
    at_end: bool = False,
    through_json: bool = False,
    in_place: bool = False,
    twice: bool = False,
    unchanged: bool = False,
) -> None:
    """Asserts that ``ds``, restored from a state taken before any of its elements, continues with
    that element.

    Iterates once to the end and takes the state before each element. Then restores each state in a
    new iterator, which must give the same state back, and the elements that followed. The states
    must all have one structure, with leaves of the same types and shapes; but for records of
    choices, such as of elements that ``tolerate`` has skipped.

    The number of elements that are computed grows with the square of their number: meant for small
    datasets. One without an end has to be limited first.

    Args:
        ds: anything whose ``iter()`` gives an iterator with ``get_state`` and ``set_state``: a
            dataset, a ``DataLoader``.
        at_end: also restore the state after the last element, and the one after the end.
        through_json: restore the state as read from a checkpoint file:
            ``json.loads(json.dumps(state))``.
        in_place: also restore each state in an iterator that has been used for the other ones
            before.
        twice: set each state twice, one right after the other.
        unchanged: assert that neither restoring a state nor iterating from there changes the object
            that was restored.

    Raises:
        AssertionError: something is not so; names the step, counted from 0, and what was expected.
            Also if ``ds`` has no elements.
        TypeError: the iterator of ``ds`` has no states.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> ds = MapDataset.range(5).shuffle(seed=1).to_iter_dataset().batch(2)
        >>> assert_equal_output_after_checkpoint(ds, at_end=True)
    """
    elements, states = _record(ds, at_end)
    for step, state in enumerate(states):
        spec, first_spec = shape_of(_without_records(state)), shape_of(_without_records(states[0]))
        if spec != first_spec:
            raise AssertionError(
                f"the state at step {step} is like {spec}, the first one like {first_spec}"
            )
    if not elements:
        raise AssertionError("the dataset did not produce any elements")
    with contextlib.ExitStack() as stack:
        used = [_opened(ds, stack)] if in_place else []
        for step, state in enumerate(states):
            with contextlib.ExitStack() as step_stack:
                for it in [_opened(ds, step_stack), *used]:
                    given = json.loads(json.dumps(state)) if through_json else state
                    before = copy.deepcopy(given) if unchanged else None
                    for _ in range(2 if twice else 1):
                        it.set_state(given)
                    _check_state(it, given, step, through_json)
                    _check_elements(it, elements[step:], given, step)
                    if unchanged and not are_equal(given, before):
                        raise AssertionError(
                            f"at step {step} the restored state {before} was changed to {given}"
                        )


def _record(ds: Any, at_end: bool) -> tuple[list[Any], list[Any]]:
    """Return all elements, and the states before them."""
    with contextlib.ExitStack() as stack:
        it = _opened(ds, stack)
        elements: list[Any] = []
        states = [it.get_state()]
        for element in it:
            elements.append(element)
            states.append(it.get_state())
        return elements, [*states, it.get_state()] if at_end else states[:-1]


def _opened(ds: Any, stack: contextlib.ExitStack) -> Any:
    it = iter(ds)
    if not (hasattr(it, "get_state") and hasattr(it, "set_state")):
        raise TypeError(
            "ds must be a dataset whose iterators have get_state and set_state, got one with a"
            f" {type(it).__name__}"
        )
    if hasattr(it, "close") and not _draws_from_an_iterator(ds):
        stack.callback(it.close)
    return it


def _draws_from_an_iterator(ds: Any) -> bool:
    """True if all iterators of ``ds`` move one existing iterator, such as an ``ElasticIterator``,
    which the caller must close.
    """
    return isinstance(ds, DatasetNode) and any(
        isinstance(node, DatasetIterator) for node in ancestors(ds)
    )


def _check_state(it: Any, given: Any, step: int, through_json: bool) -> None:
    got = it.get_state()
    if through_json:
        got = json.loads(json.dumps(got))
    if not are_equal(got, given):
        raise AssertionError(
            f"at step {step} state {given} was restored, and get_state() gives {got}"
        )


def _check_elements(it: Any, expected: list[Any], given: Any, step: int) -> None:
    got = itertools.islice(it, len(expected) + 1)
    for position, (x, y) in enumerate(
        itertools.zip_longest(expected, got, fillvalue=_THE_END), start=step
    ):
        if not are_equal(x, y):
            raise AssertionError(
                f"restored at step {step} from state {given}, element {position} must be {x},"
                f" got {y}"
            )


def _without_records(state: Any) -> Any:
    """Return a state without the records of choices in it, which there are only where something was
    chosen.
    """
    if type(state) is dict:
        return {
            key: _without_records(value)
            for key, value in state.items()
            if key not in ("choices", "from_choices")
        }
    return [_without_records(value) for value in state] if type(state) is list else state


def shape_of(state: Any) -> Any:
    """Returns the structure of a state, and the types and shapes of its leaves."""
    leaves, structure = tree.flatten(state)
    return structure, [(type(leaf).__name__, np.shape(leaf)) for leaf in leaves]
