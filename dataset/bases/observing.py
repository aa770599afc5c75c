"""Observation of a pipeline from outside: the hooks that stages offer to an observer, and their
reports.

Without an observer nothing of this is called, and no element is checked. An observer

1. gives an object an instrument (``_gm_set_instrument``): a function that is called in place of the
   method that takes elements. No other object has it. Python looks up methods of users' classes in
   the class alone: so the class has another one as long as some of its objects have instruments,
   which does for all others what the class's own does;
2. learns of pipelines that a stage opens (``report_opened``), and of its worker processes
   (``report_pool``);
3. has a stage read another dataset by index, which does the same as its own (``observe_reads``);
4. asks a stage how it works ahead (``work_ahead``); counts how long others wait for a thread, or
   memory, that it needs (``budget_waits``).
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from gristmill.core.indices import Indices, as_ints
from gristmill.core.locks import Lock
from gristmill.dataset.ahead.budget import Budget
from gristmill.dataset.ahead.waits import BudgetWaits

if TYPE_CHECKING:
    from gristmill.dataset.bases.iterator import DatasetIterator
    from gristmill.dataset.bases.node import DatasetNode

# what becomes of an element of the parent
Flow: TypeAlias = Literal["one_to_one", "dropping", "stateful"]
# elements of a stage: as many as the number says, or at the indices
Method: TypeAlias = Callable[[Any, Any], list[Any]]
# the same of one stage, which it does not keep alive
Instrument: TypeAlias = Callable[[Any], list[Any]]
Wrap: TypeAlias = Callable[[Method], Instrument]


class Computed(list[Any]):
    """The first elements of a block, and the error that was raised in place of the next one."""

    error: Exception | None = None

    @classmethod
    def of(cls, elements: Iterable[Any]) -> Computed:
        new = cls()
        try:
            new.extend(elements)
        except Exception as error:
            if not new:
                raise
            new.error = error
        return new

    def given_out(self) -> Iterator[Any]:
        """Iterates over the elements, keeps none, and then raises the error."""
        self.reverse()
        while self:
            yield self.pop()
        if self.error is not None:
            raise self.error


def observed_items(
    wrap: Wrap, items: Callable[[Any, Indices], Iterator[Any]], *, is_read_once: bool
) -> Callable[[Indices], Iterator[Any]]:
    """Returns what takes the place of a method ``_gm_items`` while it is observed: it computes the
    elements of a call at once, or one after another if ``is_read_once``, where something upstream
    cannot be read again.
    """
    instrument: Any = wrap(lambda stage, indices: Computed.of(items(stage, indices)))

    def observed(indices: Indices) -> Iterator[Any]:
        if is_read_once:
            return chain.from_iterable(map(instrument, [[i] for i in as_ints(indices)]))
        elements: Computed = instrument(indices)
        return elements.given_out()

    return observed


class WorkAhead(NamedTuple):
    """The prefetching of a stage.

    Args:
        waits: whether others, threads or processes, compute its elements.
        num_threads: how many threads may do so; ``None`` if that is not for the stage to say.
        num_ready: how many elements it could give at once.
        reads: whether it reads a dataset by index.
    """

    waits: bool
    num_threads: int | None
    num_ready: int
    reads: bool = False


class Observable:
    """Interface of a stream to observers. By default there is nothing to report."""

    flow: Flow = "stateful"
    # What its time is spent for; by default that follows from whether it has parents.
    work_category: Literal["read", "preprocessing", "prefetch"] | None = None
    # of a stage that computes ahead with threads of the pipeline
    budget_waits: BudgetWaits | None = None

    def report_opened(self, report: Callable[[Any], None] | None) -> None:
        """Call ``report`` with the last iterator of each pipeline that this one opens by itself."""

    def report_pool(self, report: Callable[[Any], None] | None) -> None:
        """Call ``report`` with the pool of worker processes, now and when it changes."""

    def observe_reads(self, replace: Callable[[Any], Any] | None) -> None:
        """Read what ``replace`` makes of the dataset, which is equal; ``None``: itself."""

    def work_ahead(self) -> WorkAhead | None:
        """Return how elements are computed ahead, of a stage that is there for that."""
        return None

    def drawn(self, pos: object) -> dict[str, dict[str, int]] | None:
        """Return what was drawn of each component before ``pos``; asked by any thread."""
        return None

    def num_long(self, pos: object) -> int | None:
        """Return how many elements before ``pos`` were too long; asked by any thread."""
        return None

    def worker_processes(self) -> Sequence[Any]:
        """Return the worker processes that compute its elements at the moment."""
        return ()

    def open_iterators(self) -> Sequence[Any]:
        """Return the iterators that it runs besides those of its parents."""
        return ()


def opens_pipelines(it: DatasetIterator[Any]) -> bool:
    """Return true if an iterator may run others besides its parents."""
    return type(it._gm_engine).open_iterators is not Observable.open_iterators


def let_observe(
    it: DatasetIterator[Any],
    wrap: Wrap | None,
    *,
    reads: Callable[[Any], Any] | None = None,
    opened: Callable[[Any], None] | None = None,
    pools: Callable[[Any], None] | None = None,
    waits: BudgetWaits | None = None,
) -> None:
    """Sets the observer of an iterator that has been made; ``None`` alone removes it."""
    it._gm_set_instrument(wrap)
    stream: Observable = it._gm_engine
    stream.observe_reads(reads)
    stream.report_opened(opened)
    stream.report_pool(pools)
    if stream.budget_waits is not None:
        stream.budget_waits.observed = waits


def shared_budget(it: DatasetIterator[Any]) -> Budget | None:
    """Return the threads and the memory for computing ahead, if any were asked for yet."""
    budget: Budget | None = it._gm_ctx.known_budget
    return budget


def running_upstream(it: DatasetIterator[Any]) -> list[Any]:
    """Return the iterators that one runs: its parents, and those that it has opened."""
    return [*it._gm_parents, *it._gm_engine.open_iterators()]


def divert_next(it: object, wrap: Wrap | None) -> None:
    """Puts an instrument in place of the ``__next__`` of a user's class; ``None`` takes it away."""
    _divert(it, "__next__", wrap, _next_through)


def divert_items(ds: DatasetNode, wrap: Wrap | None) -> None:
    """Puts an instrument in place of ``__getitem__`` of a user's class; ``None``: none."""
    _divert(ds, "__getitem__", wrap, _items_through)


def _next_through(cls: type, original: Any) -> tuple[Method, Callable[..., Any]]:
    def take(it: object, n: int) -> list[Any]:
        return [original(it)]

    def next_element(it: Any) -> Any:
        instrument = it._gm_current_instrument
        # a class made of this one calls the method that it has from it
        if instrument is None or type(it) is not cls:
            return original(it)
        return instrument(1)[0]

    return take, next_element


def _items_through(cls: type, original: Any) -> tuple[Method, Callable[..., Any]]:
    def block(ds: object, indices: Any) -> list[Any]:
        return [original(ds, i) for i in indices]

    def item(ds: Any, index: Any) -> Any:
        instrument = ds._gm_current_instrument
        if instrument is None or type(ds) is not cls or isinstance(index, slice):
            return original(ds, index)
        return instrument([index])[0]

    return block, item


class _Diversion:
    """A method that goes through instruments as long as objects of its class have some."""

    def __init__(
        self,
        cls: type,
        name: str,
        through: Callable[[type, Any], tuple[Method, Callable[..., Any]]],
    ) -> None:
        self._cls = cls
        self._name = name
        self._own = vars(cls).get(name)  # the class may have it from another one
        self._original = getattr(cls, name)
        self.method, self._diverted = through(cls, self._original)
        self._is_on = False
        self.stages: set[int] = set()  # that have instruments, by their ids

    def begin(self) -> None:
        if not self._is_on:
            setattr(self._cls, self._name, functools.wraps(self._original)(self._diverted))
            self._is_on = True

    def end(self) -> None:
        if self._own is None:
            delattr(self._cls, self._name)
        else:
            setattr(self._cls, self._name, self._own)
        self._is_on = False


_diversions: dict[type, _Diversion] = {}
_lock = Lock()


def _divert(
    stage: Any,
    name: str,
    wrap: Wrap | None,
    through: Callable[[type, Any], tuple[Method, Callable[..., Any]]],
) -> None:
    cls, key = type(stage), id(stage)
    if wrap is None:
        with contextlib.suppress(AttributeError):
            del stage._gm_current_instrument
        _leave(cls, key)
        return
    with _lock:
        diversion = _diversions.get(cls) or _Diversion(cls, name, through)
        if key not in diversion.stages:
            weakref.finalize(stage, _leave, cls, key).atexit = False
        # from here on nothing ends it; before, any garbage collection might
        diversion.stages.add(key)
        _diversions[cls] = diversion
        diversion.begin()
    stage._gm_current_instrument = wrap(diversion.method)


def _leave(cls: type, key: int) -> None:
    """Removes the instrument of a stage; also called when the stage is garbage collected."""
    with _lock:
        diversion = _diversions.get(cls)
        if diversion is not None:
            diversion.stages.discard(key)
            if not diversion.stages:
                del _diversions[cls]
                diversion.end()
