"""The iterator of a ``DataLoader`` and its state."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gristmill.core.cached import cached
from gristmill.core.errors import StateIndexError, StateKeyError, StateMismatchError
from gristmill.core.naming import one_line, stable_repr
from gristmill.core.state import (
    plain_int,
    shown,
    state_count,
    state_field,
    state_from_text,
    state_to_text,
)
from gristmill.dataset.bases.iterator import iterate, write_when_created
from gristmill.dataset.bases.length import elements_left
from gristmill.dataset.bases.next_index import get_next_index, set_next_index
from gristmill.dataset.descriptions.pipeline import few_files, source_difference, source_files
from gristmill.dataset.faults.budget import FaultCounts
from gristmill.dataset.states.mixtures import as_names, without_components
from gristmill.dataset.states.shards import shards_state
from gristmill.samplers import IterableSampler

if TYPE_CHECKING:
    from gristmill.loader.data_loader import DataLoader

_VERSION = 2
_BETWEEN = '\n    },\n    "last_worker_index": '
_ORIGIN = ("worker_count", "sampler", "data_source")
_FILES = "data_source_files"  # beside what Grain writes, which ignores it
_MAX_FILES = 4  # that a state names
_MAX_TEXT = 500
_UNCHECKED = (
    ". If these are the same records, DataLoaderIterator(loader, state, validate_state=False)"
    " continues with them"
)
_OTHER_INDICES = (
    ". The indices must be the same: a random sampler gives them again if it has a generator with a"
    " seed (torch.Generator().manual_seed(0)) and is unused before"
)
_KEYS = ("version", "last_seen_indices", "last_worker_index", *_ORIGIN)


class DataLoaderIterator(Iterator[Any]):
    """Iterates over the elements of a ``DataLoader``; saves and restores its position in a few
    bytes.

    When ``next`` raises, nothing is lost: the state still says "after the last delivered element".
    The following ``next`` tries it again; with worker processes it raises the same error until the
    state is set. Used by one thread; as a context, it closes.

    Args:
        data_loader: the loader.
        state: a state to continue from.
        validate_state: whether to check that states belong to the same sampler and source.
    """

    def __init__(
        self,
        data_loader: DataLoader,
        state: dict[str, Any] | None = None,
        validate_state: bool = True,
    ) -> None:
        if not hasattr(data_loader, "_dataset"):
            raise TypeError(
                f"data_loader must be a DataLoader, got {shown(data_loader)} of type"
                f" {type(data_loader).__name__}"
            )
        self._loader = data_loader
        self._plan = plan = data_loader._plan
        self._validate = validate_state
        self._iterator = iterate(plan.dataset)
        # the text of a state before and after the position
        self._frame: tuple[str, str] | None = None
        data_loader._iterators.add(self)
        if state is not None:
            self.set_state(state)

    def __iter__(self) -> DataLoaderIterator:
        return self

    def __next__(self) -> Any:
        try:
            return self._iterator.__next__()
        except StopIteration:
            raise
        except (Exception, KeyboardInterrupt) as error:
            with contextlib.suppress(ImportError):  # at the end of the interpreter
                from gristmill.dataset.errors.tracebacks import filter_traceback

                filter_traceback(error)
            raise

    def __enter__(self) -> DataLoaderIterator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a DataLoaderIterator cannot be copied or pickled: save get_state(), and pickle the"
            " DataLoader"
        )

    def __str__(self) -> str:
        return f"PyGrainDatasetIterator(state={self.get_state().decode()})"

    def get_state(self) -> bytes:
        """Returns the position after the last delivered element: JSON as UTF-8 bytes, without any
        data.
        """
        # as of items of a record, which sampler indices cannot distinguish
        if self._plan.keeps_whole_states:
            return state_to_text({**self._iterator.get_state(), **self._origin}).encode()
        self._frame = self._frame or self._text_around_position()
        before, after = self._frame
        last_worker, num_read = self._position()
        numbers = [self._first_index(w) + (num - 1) * self._step for w, num in enumerate(num_read)]
        last_seen = ",\n".join([f'        "{w}": {number}' for w, number in enumerate(numbers)])
        return f"{before}{last_seen}{_BETWEEN}{last_worker}{after}".encode()

    @property
    def _num_positions(self) -> int:
        return max(1, self._plan.num_lanes)

    @property
    def _step(self) -> int:
        """From one sampler index of a worker to its next."""
        return self._num_positions * self._plan.shard.shard_count

    def _first_index(self, worker: int) -> int:
        """Returns the first sampler index of a worker."""
        shard = self._plan.shard
        return shard.shard_index + worker * shard.shard_count

    def _position(self) -> tuple[int, list[int]]:
        """Returns the worker before the one that is next, and how many records each worker has read
        for what was delivered.
        """
        state = self._iterator.get_state()
        if not self._plan.num_lanes:
            return -1, [state["next_index"]]
        num_read = [state["next_index"] for state in state["iterators_in_use_states"]]
        return state["next_index_in_cycle"] - 1, num_read

    def _set_position(self, next_worker: int, num_read: list[int]) -> None:
        states = [{"next_index": num} for num in num_read]
        if not self._plan.num_lanes:
            self._iterator.set_state(states[0])
        else:
            self._iterator.set_state(shards_state(next_worker, states).as_state())

    def set_state(
        self, state: bytes | str | Mapping[str, Any], *, drop: Collection[str] = ()
    ) -> None:
        """Continues from ``state``, backwards or forwards, also after the end or an error.

        Args:
            state: what ``get_state`` returned; its text or the decoded mapping will do as well.
            drop: names of components of mixtures to forget, as with ``DatasetIterator.set_state``.

        Raises:
            StateTextError: (also a ``json.JSONDecodeError``) the text is not JSON; nothing has
                changed then, as with the others.
            StateMismatchError: (a ``ValueError``) the state belongs to another loader, or is
                damaged.
            StateIndexError: (also an ``IndexError``) its position is outside the data.
        """
        if isinstance(state, bytes | bytearray | str):
            state = state_from_text(state, "a DataLoader")
        if not isinstance(state, Mapping):
            raise StateMismatchError(
                f"a DataLoader state must be a JSON object, got {shown(state)}"
            )
        state = without_components(state, as_names(drop)) if drop else state
        if self._plan.keeps_whole_states:
            if self._validate:
                # Grain writes none in this case
                self._check_origin({**{key: self._origin[key] for key in _ORIGIN}, **state})
            self._iterator.set_state(state)
            return
        if missing := [key for key in _KEYS if key not in state]:
            raise StateKeyError(
                f"a DataLoader state must have the keys {missing}, found only {shown(list(state))}"
            )
        if plain_int(state["version"]) != _VERSION:
            raise StateMismatchError(
                f"the version of a DataLoader state must be {_VERSION}, got"
                f" {shown(state['version'])}"
            )
        if self._validate:
            self._check_origin(state)
        self._set_position(
            *self._parse_position(state["last_seen_indices"], state["last_worker_index"])
        )

    def _parse_position(self, last_seen: Any, last_worker: Any) -> tuple[int, list[int]]:
        count, shard = self._num_positions, self._plan.shard
        keys = [str(worker) for worker in range(count)]
        num_read = []
        for worker, key in enumerate(keys):
            value = state_field(last_seen, key, "a DataLoader")
            index = plain_int(value)
            if index is None or (index - self._first_index(worker)) % self._step:
                raise StateMismatchError(
                    f"last_seen_indices[{key!r}] in the state of a DataLoader must be an index of"
                    f" worker {worker} of {count} in shard {shard.shard_index} of"
                    f" {shard.shard_count}, got {shown(value)}"
                )
            num_read.append((index - self._first_index(worker)) // self._step + 1)
            length = len(range(worker, self._plan.length, count))
            if not 0 <= num_read[-1] <= length:
                raise StateIndexError(
                    f"last_seen_indices[{key!r}] in the state of a DataLoader is {shown(index)}:"
                    f" the number of elements that worker {worker} has read must be in [0,"
                    f" {length}], the number of its elements, got {shown(num_read[-1])}"
                )
        if len(last_seen) != count:
            raise StateMismatchError(
                f"last_seen_indices in the state of a DataLoader must have the keys {keys} alone,"
                f" got {shown(last_seen)}"
            )
        if (last := plain_int(last_worker)) is None or not -1 <= last < count:
            raise StateMismatchError(
                f"last_worker_index in the state of a DataLoader must be in [-1, {count - 1}], got"
                f" {shown(last_worker)}"
            )
        return (last + 1) % count, num_read

    def start_prefetch(self) -> None:
        """Begins to read ahead without waiting for it; may be called again."""
        self._iterator.start_prefetch()

    def resize(self, num_workers: int) -> None:
        """Let another number of workers compute the elements from now on; see
        ``DatasetIterator.resize``.
        """
        self._iterator.resize(num_workers)

    def faults(self) -> FaultCounts:
        """Returns the faults that ``Tolerate`` has skipped so far, as in
        ``DatasetIterator.faults``.
        """
        return self._iterator.faults()

    def skip_failed(self) -> None:
        """Moves past the output whose ``next`` failed: the element, or the whole batch. A
        ``ValueError`` if it did not fail.
        """
        self._iterator.skip_failed()

    def counts(self) -> Any:
        """Returns what was drawn of each component of a mixture that the loader reads (see
        ``DatasetIterator.counts``).
        """
        return self._iterator.counts()

    def _get_next_index(self) -> int:
        return get_next_index(self._iterator)

    def _set_next_index(self, index: int) -> None:
        set_next_index(self._iterator, index)

    def __len__(self) -> int:
        """Returns the number of elements that it has not delivered yet, for progress bars.

        Raises:
            TypeError: the number does not follow from the sampler, the operations and the position.
        """
        return elements_left(self, self._loader, self._get_next_index)

    def __bool__(self) -> bool:
        return True  # also at the end

    def close(self) -> None:
        """Releases threads and other resources; may be called again. ``next`` raises ``ValueError``
        from then on.
        """
        self._iterator.close()

    async def save(self, directory: Any) -> Awaitable[None]:
        """Takes the state now; awaiting the result writes it (the protocol of Orbax's
        ``StatefulCheckpointable``).
        """
        state = self._iterator._gm_alone(self.get_state)
        return write_when_created(directory, state.decode(), self._gm_describe())

    async def load(self, directory: Any) -> Awaitable[None]:
        """Awaiting the result reads this process's file in ``directory`` and continues from the
        state in it.
        """
        import asyncio

        from gristmill.dataset.states.files import read_checkpoint

        async def restore() -> None:
            self.set_state(await asyncio.to_thread(read_checkpoint, directory, self._gm_describe()))

        return restore()

    def _gm_describe(self) -> dict[str, Any] | None:
        return self._loader._description if self._validate else None

    def _text_around_position(self) -> tuple[str, str]:
        state = {
            "version": _VERSION,
            "last_seen_indices": {"0": 0},
            "last_worker_index": -1,
            **self._origin,
        }
        before, after = state_to_text(state).split(f'        "0": 0{_BETWEEN}-1', 1)
        return before, after

    @cached
    def _origin(self) -> dict[str, Any]:
        """Returns the entries of a state that identify its loader."""
        plan = self._plan
        values = (plan.num_lanes, stable_repr(plan.sampler), plan.source_text)
        files = source_files(plan.source)
        origin = dict(zip(_ORIGIN, values, strict=True))
        return origin if files is None else {**origin, _FILES: few_files(files, _MAX_FILES)}

    def _check_origin(self, state: Mapping[str, Any]) -> None:
        count = self._plan.num_lanes
        name = "worker_count" if self._loader._num_lanes is None else "num_lanes"
        saved_count = state_count(state, "worker_count", "a DataLoader")
        if saved_count != count:
            raise StateMismatchError(
                f"the state was taken with worker_count={saved_count}, the DataLoader has"
                f" {name}={count}"
            )
        sampler = self._origin["sampler"]
        if not isinstance(state["sampler"], str) or state["sampler"] != sampler:
            given = self._plan.sampler
            hint = _OTHER_INDICES if isinstance(given, IterableSampler) else _advice(given)
            raise _mismatch("sampler", state["sampler"], sampler, hint)
        self._check_source(state)

    def _check_source(self, state: Mapping[str, Any]) -> None:
        source, own, saved = self._plan.source, self._origin["data_source"], state["data_source"]
        is_described_by = getattr(source, "is_described_by", None)
        if is_described_by is not None and isinstance(saved, str) and is_described_by(saved):
            return
        text = saved if isinstance(saved, str) else None
        difference = source_difference(text, own, state.get(_FILES), self._origin.get(_FILES))
        if difference is not None:
            hint = f". {difference}{_UNCHECKED}" if difference else _advice(source)
            raise _mismatch("data_source", saved, own, hint)


def loader_of(it: DataLoaderIterator) -> DataLoader:
    """Returns the loader that ``it`` iterates over."""
    return it._loader


def _advice(value: Any) -> str:
    """Returns what to do; for the author of a class, how to write its ``repr``."""
    is_ours = type(value).__module__.split(".")[0] in ("gristmill", "builtins", "numpy")
    return (
        ". Make the DataLoader as it was then, or begin without the state"
        if is_ours
        else ". Implement __repr__ so that it says the same in every run, if they are equal"
    )


def _mismatch(what: str, saved: Any, own: str, hint: str) -> StateMismatchError:
    theirs, ours = _differing(saved, own)
    return StateMismatchError(
        f"the state was taken with {what} {theirs}, the DataLoader has {ours}{hint}"
    )


def _differing(saved: Any, own: str) -> tuple[str, str]:
    """Returns both texts. Of calls of one class, they have only the parameters that differ.

    Example:
        >>> _differing("S(size=8, seed=1)", "S(size=8, seed=2)")
        ('S(seed=1, …)', 'S(seed=2, …)')
    """
    if isinstance(saved, str):
        (name, _, theirs), (own_name, _, ours) = saved.partition("("), own.partition("(")
        pairs = list(zip(theirs.split(", "), ours.split(", "), strict=False))
        others = [pair for pair in pairs if pair[0] != pair[1]]
        has_names = all("=" in part for pair in others for part in pair)
        is_alike = name == own_name and theirs.count(", ") == ours.count(", ") > 0
        if is_alike and has_names and 0 < len(others) < len(pairs):
            parts = [
                ", ".join(part.rstrip(")") for part in column)
                for column in zip(*others, strict=True)
            ]
            return _text(f"{name}({parts[0]}, …)"), _text(f"{name}({parts[1]}, …)")
    return _text(saved), _text(own)


def _text(value: Any) -> str:
    return one_line(value, _MAX_TEXT) if isinstance(value, str) else shown(value)
