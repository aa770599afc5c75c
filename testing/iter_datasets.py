"""Checks that a user's ``IterDataset`` or ``DatasetIterator`` keeps the promises on which
downstream stages depend.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from gristmill.core.errors import as_int
from gristmill.core.options import MultiprocessingOptions
from gristmill.core.state import shown
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.testing.checkpoints import assert_equal_output_after_checkpoint, shape_of
from gristmill.testing.laws import PICKLES, READABLE, THREADS, Law, copied, in_threads, kept

_THE_END = object()
_STRANGE_STATES: tuple[Any, ...] = (None, 3, "text", [], {}, {"other": 1})

_ITERATORS = Law(
    "iter(ds) is a DatasetIterator, and iter(it) is it",
    "Derive the class of the iterator from gristmill.DatasetIterator.",
)
_INDEPENDENT = Law(
    "every iterator gives the same elements from the beginning, regardless of others",
    "Keep what changes in the iterator, nothing in the dataset, and draw no random numbers but from"
    " a seed.",
)
_KEPT = Law(
    "an element stays as it is when the next one is made",
    "Do not hand out memory that the next element fills again: copy it.",
)
_END = Law(
    "after its end an iterator raises StopIteration at every call",
    "Let __next__ find the end again, from its position.",
)
_JSON = Law(
    "states are JSON-able, and mean the same after it",
    "Use dicts with text as keys, lists, built-in numbers, text, True, False and None: int(x) of a"
    " NumPy integer.",
)
_ALIAS = Law(
    "a state is apart from the iterator",
    "Build a new container in get_state, and keep no container that set_state was given: copy the"
    " lists and dicts in it.",
)
_RESTORING = Law(
    "an iterator continues exactly where a state was taken",
    "Let the state say all that decides the next elements (that of the parent, counters, what is"
    " buffered), and set all of it.",
)
_REFUSAL = Law(
    "a state that does not fit is refused, and leaves the iterator as it was",
    "In set_state read all that is needed from the state before the first change, and raise if it"
    " is not there.",
)
_CLOSING = Law(
    "close may be called twice, and nothing is lost unnoticed after it",
    "After close let __next__ raise ValueError, not StopIteration, and get_state still tell the"
    " position.",
)
_PREFETCH = Law(
    "start_prefetch changes neither position nor elements",
    "Count in states only what next has delivered.",
)
_ERRORS = Law(
    "an error loses nothing: the position stays, and next tries the same element again",
    "Change nothing in __next__ before everything that may raise is done, or take the parents back"
    " to their states.",
)
_SHARED_OUT = Law(
    "workers and threads that compute ahead change no element",
    "The dataset is copied for them; pass parents to super().__init__, and keep each in an"
    " attribute of its own or in none.",
)


def assert_iter_dataset_conforms(
    ds: IterDataset[Any],
    *,
    max_elements: int = 20,
    states_vary: bool = False,
    failing: IterDataset[Any] | None = None,
    workers: Iterable[int] = (),
) -> None:
    """Asserts that ``ds`` is a stream as ``IterDataset`` describes it, on which any stage can
    build.

    Checks its iterators as ``assert_iterator_conforms`` does; copies made by cloudpickle; and eight
    threads that iterate at the same time. Whether the elements are the intended ones is for a test
    of your own.

    Args:
        ds: an instance of your class with at least one element.
        max_elements: how many elements to look at; about the square of it are computed.
        states_vary: as for ``assert_iterator_conforms``.
        failing: the same dataset, but over a source that raises now and then, each time only once,
            and is read without threads (``ReadOptions(num_threads=0)``): asserts that nothing is
            lost by it.
        workers: numbers of worker processes, and of threads, with which the elements must be the
            same: ``(1,)`` for any dataset, ``(1, 2)`` for one in which every element is made of one
            element of a map dataset.

    Raises:
        AssertionError: something is not so; says which law is broken, what was found, and what to
            do.
        TypeError: ``ds`` or ``failing`` is not an ``IterDataset``.
        ValueError: ``failing`` raises nothing.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> assert_iter_dataset_conforms(
        ...     MapDataset.range(10).to_iter_dataset().map(str), workers=[1]
        ... )
        >>> class Letters(IterDataset):
        ...     def __iter__(self):
        ...         return iter("abc")
        >>> assert_iter_dataset_conforms(Letters())  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        AssertionError: broken law: iter(ds) is a DatasetIterator, and iter(it) is it. Found: ...
    """
    for name, value in (("ds", ds), ("failing", failing)):
        if not isinstance(value, IterDataset) and value is not None:
            raise TypeError(
                f"{name} must be an IterDataset, got {shown(value)} of type {type(value).__name__}"
            )
    max_elements = as_int("max_elements", max_elements, minimum=1)
    unused = copied(ds)
    elements, count = _check_iterators(ds, max_elements, states_vary)
    for which, other in (
        ("a copy made before the first use", unused),
        ("a copy made after use", copied(ds)),
    ):
        PICKLES.equal(
            f"the elements of {which}",
            elements,
            PICKLES.run(f"iterating {which}", _first, other, count),
        )
    for got in in_threads(lambda _: THREADS.run("iterating in a thread", _first, ds, count)):
        THREADS.equal(
            "the elements of each of several threads with iterators of their own", elements, got
        )
    if failing is not None:
        _check_errors(failing, elements)
    for num_workers in workers:
        for how, ahead in (
            (
                "worker processes",
                partial(
                    IterDataset.mp_prefetch,
                    ds,
                    MultiprocessingOptions(num_workers, executor="processes"),
                ),
            ),
            ("threads", partial(IterDataset.multithread_prefetch, ds, num_workers, 2)),
        ):
            what = f"the elements by {num_workers} {how}"
            _SHARED_OUT.equal(
                what, elements, _SHARED_OUT.run(what, lambda ahead=ahead: _first(ahead(), count))
            )


def assert_iterator_conforms(
    make: Callable[[], DatasetIterator[Any]], *, max_elements: int = 20, states_vary: bool = False
) -> None:
    """Asserts that the iterators that ``make`` makes know their position, as ``DatasetIterator``
    describes it.

    Checked are the end, which stays; that iterators do not depend on one another, nor elements on
    later elements; states: JSON-able, of one shape, restored at every position, in new and used
    iterators, twice, and after the end; states that do not fit; ``close``, ``start_prefetch``; and
    batches.

    Args:
        make: makes a new iterator at the beginning, at each call the same one.
        max_elements: how many elements to look at; about the square of it are computed.
        states_vary: whether states show what an iterator has in memory, as those of a cache: leaves
            out what compares states of used iterators with those of new ones.

    Raises:
        AssertionError: something is not so; says which law is broken, what was found, and what to
            do.

    Example:
        >>> class Countdown(DatasetIterator):
        ...     def __init__(self, start):
        ...         super().__init__()
        ...         self.left = start
        ...
        ...     def __next__(self):
        ...         if not self.left:
        ...             raise StopIteration
        ...         self.left -= 1
        ...         return self.left
        ...
        ...     def get_state(self):
        ...         return {"left": self.left}
        ...
        ...     def set_state(self, state):
        ...         self.left = state["left"]
        >>> assert_iterator_conforms(lambda: Countdown(5))
    """
    _check_iterators(_Made(make), as_int("max_elements", max_elements, minimum=1), states_vary)


class _Made(IterDataset[Any]):
    """A dataset of iterators that a function makes."""

    def __init__(self, make: Callable[[], DatasetIterator[Any]]) -> None:
        super().__init__()
        self._make = make

    def __iter__(self) -> DatasetIterator[Any]:
        return self._make()


def _check_iterators(
    ds: IterDataset[Any], max_elements: int, states_vary: bool
) -> tuple[list[Any], int]:
    """Returns the first elements of ``ds``, if its iterators obey their laws, and how many to ask
    for to get all of these.
    """
    it = _ITERATORS.run("iter(ds)", iter, ds)
    _ITERATORS.check(isinstance(it, DatasetIterator), f"iter(ds) is a {type(it).__name__}")
    with it:
        _ITERATORS.check(iter(it) is it, "iter(it) is another object")
        elements, ends = _check_elements(it, max_elements)
    bounded = ds if ends else IterDataset.limit(ds, max_elements)
    for law, check in (
        (_INDEPENDENT, _check_independence),
        (_JSON, _check_states),
        (_RESTORING, partial(_check_restoring, bounded, states_vary)),
        (_REFUSAL, _check_refusal),
        (_CLOSING, _check_closing),
        (_PREFETCH, _check_prefetch),
    ):
        try:
            check(ds, elements)
        except AssertionError:
            raise
        except Exception as error:
            raise law.broken(f"{type(error).__name__}: {error!s:.500}") from error
    return elements, len(elements) + ends


def _first(ds: IterDataset[Any], count: int) -> list[Any]:
    with iter(ds) as it:
        return list(islice(it, count))


def _check_elements(it: DatasetIterator[Any], max_elements: int) -> tuple[list[Any], bool]:
    """Returns the first elements of a new iterator, and whether there are no more."""
    handed_out: list[Any] = []
    elements: list[Any] = []
    while (
        len(elements) <= max_elements
        and (element := READABLE.run("next(it)", next, it, _THE_END)) is not _THE_END
    ):
        handed_out.append(element)
        elements.append(kept(element))
    for i, (before, after) in enumerate(zip(elements, handed_out, strict=True)):
        _KEPT.equal(f"element {i}, looked at after later ones,", before, after)
    if not elements:
        raise AssertionError("ds must have at least one element to be checked, it has none")
    if len(elements) > max_elements:
        return elements[:-1], False
    for _ in range(3):
        _END.check(
            (element := next(it, _THE_END)) is _THE_END,
            f"after the end, next(it) gave {element!r:.200}",
        )
    return elements, True


def _check_independence(ds: IterDataset[Any], elements: list[Any]) -> None:
    with iter(ds) as one, iter(ds) as other:
        for i, element in enumerate(elements):
            for it in (one, other):
                _INDEPENDENT.equal(
                    f"element {i} of two iterators that take turns", element, next(it, _THE_END)
                )


def _check_states(ds: IterDataset[Any], elements: list[Any]) -> None:
    """Checks that states are JSON-able, and share nothing with the iterator."""
    taken = []
    with iter(ds) as it:
        for _ in range(len(elements) + 1):
            state = it.get_state()
            _JSON.run(f"json.dumps of the state {state!r:.300}", json.dumps, state)
            taken.append((state, copy.deepcopy(state)))
            next(it, None)
    for step, (state, before) in enumerate(taken):
        _ALIAS.equal(f"the state taken at step {step}, after later steps,", before, state)
    step = len(elements) // 2
    with iter(ds) as it:
        list(islice(it, step))
        before = copy.deepcopy(it.get_state())
        _spoil(it.get_state())
        _ALIAS.equal(
            "get_state(), after the state that it gave before was changed,", before, it.get_state()
        )
        it.set_state(given := copy.deepcopy(before))
        _spoil(given)
        _ALIAS.equal(
            "get_state(), after the state that was set was changed,", before, it.get_state()
        )
        _ALIAS.equal(
            "the elements after that", elements[step:], list(islice(it, len(elements) - step))
        )


def _spoil(state: Any) -> None:
    """Changes all containers of ``state``."""
    for key, value in list(
        state.items()
        if isinstance(state, dict)
        else enumerate(state)
        if isinstance(state, list)
        else ()
    ):
        _spoil(value)
        state[key] = "changed"


def _check_restoring(
    bounded: IterDataset[Any], states_vary: bool, ds: IterDataset[Any], elements: list[Any]
) -> None:
    try:
        assert_equal_output_after_checkpoint(
            bounded,
            at_end=True,
            through_json=True,
            in_place=not states_vary,
            twice=True,
            unchanged=True,
        )
    except AssertionError as error:
        raise _RESTORING.broken(f"{error!s:.1000}") from error


def _check_refusal(ds: IterDataset[Any], elements: list[Any]) -> None:
    step = len(elements) // 2
    with iter(ds) as it:
        start = copy.deepcopy(it.get_state())
        list(islice(it, step))
        before = copy.deepcopy(it.get_state())
        wrong = [state for state in _STRANGE_STATES if shape_of(state) != shape_of(before)]
        incomplete = list(_incomplete(start))
        for state in [*wrong, *incomplete]:
            try:
                it.set_state(copy.deepcopy(state))
            except Exception:
                _REFUSAL.equal(
                    f"get_state(), after the state {state} was refused,", before, it.get_state()
                )
            else:  # what lacks a part may have been written by an older version of the class
                _REFUSAL.check(
                    state in incomplete,
                    f"set_state({state}) raised nothing; right is a state like {before}",
                )
                it.set_state(copy.deepcopy(before))
        _REFUSAL.equal(
            "the elements after wrong states",
            elements[step:],
            list(islice(it, len(elements) - step)),
        )


def _incomplete(state: Any) -> Iterator[Any]:
    """Copies of ``state`` that lack a key of one of its dicts."""
    for key in state if isinstance(state, dict) else ():
        yield {k: value for k, value in state.items() if k != key}
        yield from ({**state, key: part} for part in _incomplete(state[key]))


def _check_closing(ds: IterDataset[Any], elements: list[Any]) -> None:
    step = len(elements) // 2
    it = iter(ds)
    list(islice(it, step))
    before = copy.deepcopy(it.get_state())
    for _ in range(2):
        it.close()
    _CLOSING.equal("get_state() after close()", before, it.get_state())
    try:
        element = next(it)
    except StopIteration:
        raise _CLOSING.broken(
            f"next(it) after close() raised StopIteration, although element {step} was not"
            " there yet"
        ) from None
    except Exception:  # as it should
        return
    _CLOSING.equal("next(it) after close(), unless it raises ValueError,", elements[step], element)


def _check_prefetch(ds: IterDataset[Any], elements: list[Any]) -> None:
    with iter(ds) as it:
        for i, element in enumerate(elements):
            before = copy.deepcopy(it.get_state())
            it.start_prefetch()
            _PREFETCH.equal("get_state() after start_prefetch()", before, it.get_state())
            _PREFETCH.equal(f"element {i} after start_prefetch()", element, next(it, _THE_END))


def _check_errors(failing: IterDataset[Any], elements: list[Any]) -> None:
    got: list[Any] = []
    num_errors = num_in_a_row = 0
    with iter(failing) as it:
        while len(got) < len(elements):
            before = copy.deepcopy(it.get_state())
            try:
                element = next(it, _THE_END)
            except Exception as error:
                num_errors, num_in_a_row = num_errors + 1, num_in_a_row + 1
                _ERRORS.equal(
                    f"get_state() after {error!r:.200} at element {len(got)}",
                    before,
                    it.get_state(),
                )
                _ERRORS.check(
                    num_in_a_row < 4, f"element {len(got)} raised {error!r:.200} again and again"
                )
                if num_in_a_row > 1:  # where a worker failed, the error stays until a state is set
                    it.set_state(before)
                continue
            num_in_a_row = 0
            got.append(element)
            if element is _THE_END:
                break
    if not num_errors:
        raise ValueError(
            f"failing must raise now and then, it raised nothing before element {len(elements)}:"
            " let its source raise earlier, and be read without threads"
            " (ReadOptions(num_threads=0)), which try a block again in which something failed"
        )
    _ERRORS.equal("the elements delivered around the errors", elements, got)
