"""How a pipeline is observed from outside: what stages let an observer put between, and what they tell it.

Nothing of this is called as long as nobody observes, and nothing is asked for each element. An observer

1. puts an instrument between an object and its class (``_instrument``): a function that is called in place of the one that takes
   elements. Only this object has it. Of a user's class, Python looks up the method in the class alone; so that is what has another
   method as long as some of its objects have instruments, and other objects of the class do there what they did before;
2. is told of pipelines that a stage opens by itself (``_tell_opened``), and of its worker processes (``_tell_hired``);
3. replaces the dataset that a stage reads by index with one that does the same (``_read_from``);
4. asks a stage how it works ahead (``_work_ahead``), and where what it waits for is (``_awaited``).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

Method: TypeAlias = Callable[[Any, Any], list[Any]]  # elements of a stage: as many as the number says, or at the indices
Instrument: TypeAlias = Callable[[Any], list[Any]]  # the same of one stage, which it does not keep alive
Wrap: TypeAlias = Callable[[Method], Instrument]


class WorkAhead(NamedTuple):
    """How a stage works ahead of whoever takes its elements.

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
    """What iterators let observers do, and tell them. By default there is nothing to tell."""

    _observed: Any = None  # who observes it, and as what (see ``gristmill.dataset.watching``)

    def _instrument(self, wrap: Wrap | None) -> None:
        """Lets elements be taken through what ``wrap`` makes of the method that takes them; ``None``: as without it."""
        raise NotImplementedError

    def _tell_opened(self, tell: Callable[[Any], None] | None) -> None:
        """Has ``tell`` be called with the last iterator of each pipeline that this one opens by itself."""

    def _tell_hired(self, tell: Callable[[Any], None] | None) -> None:
        """Has ``tell`` be called with the pool of worker processes that this one uses, now or whenever that is another one."""

    def _read_from(self, replace: Callable[[Any], Any] | None) -> None:
        """Reads by index what ``replace`` makes of the dataset, which is equal to it; ``None``: the dataset itself."""

    def _work_ahead(self) -> WorkAhead | None:
        """How elements are computed ahead, of a stage that is there for that (whose ``_category`` is ``"prefetch"``)."""
        return None

    def _workers(self) -> Sequence[Any]:
        """The worker processes that compute its elements at the moment."""
        return ()

    def _awaited(self) -> str | None:
        """Which worker it waits for, and where in the pipeline that is."""
        return None

    def _inner_iterators(self) -> Iterable[Any]:
        """Iterators that this one runs besides its parents, as far as there are any at the moment."""
        return ()


def shadow(stage: Any, name: str, wrap: Wrap | None) -> None:
    """Puts an instrument in place of a method that our stages call by its name."""
    if wrap is not None:
        setattr(stage, name, wrap(getattr(type(stage), name)))
    else:
        with contextlib.suppress(AttributeError):
            delattr(stage, name)


def divert(stage: Any, name: str, wrap: Wrap | None, kind: Callable[[Diversion], tuple[Method, Callable[..., Any]]]) -> None:
    """Puts an instrument in place of a method that Python looks up in the class.

    Args:
        stage: an object of a class that need not be ours.
        name: of the method.
        wrap: what makes the instrument; ``None`` takes it away.
        kind: gives the method as one of blocks, and the method that a class has meanwhile.
    """
    with _lock:
        cls = type(stage)
        diversion = _diversions.get((cls, name))
        if wrap is not None:
            diversion = diversion or Diversion(cls, name, kind)
            diversion.stages[id(stage)] = stage
            stage._instrument_in_use = wrap(diversion.method)
        elif diversion is not None:
            stage._instrument_in_use = None
            diversion.leave(stage)


_diversions: dict[tuple[type, str], Diversion] = {}
_lock = threading.RLock()
