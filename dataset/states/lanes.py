"""The states of global batches: those of the lanes of a host, or of all hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gristmill.core.errors import StateKeyError, StateMismatchError
from gristmill.core.state import shown, state_count, state_field, state_flag
from gristmill.core.value import Value
from gristmill.dataset.states.values import copied, states_by_index

_LANES = "lanes"
_MIXED = "mixed_in_lanes"


def mixed_in_lanes(state: dict[str, Any], is_mixed: bool) -> dict[str, Any]:
    """Return the state of lanes; it says so if they are mixtures of the lanes of components."""
    return {**state, _MIXED: True} if is_mixed else state


def check_mixed_in_lanes(state: object, is_mixed: bool, num_lanes: int, owner: object) -> None:
    """Raise ``StateMismatchError`` if a state is of lanes that mix in the other way."""
    if not isinstance(state, Mapping):
        return
    if _MIXED in state and not is_mixed:
        raise StateMismatchError(
            f"the state was taken with num_lanes={num_lanes}, where a lane of a mixture is the"
            f" mixture of the lanes of its components; {owner} has workers without lanes, or no"
            f" mixture. Pass num_lanes={num_lanes} to continue from it"
        )
    if is_mixed and _MIXED not in state:
        raise StateMismatchError(
            f"the state was taken where the shares of a mixture were every {num_lanes}-th element"
            f" of it: by workers without num_lanes, or by an earlier version. In {owner} a lane of"
            " a mixture is the mixture of the lanes of its components, so the positions in the"
            " state are those of other elements. To continue from a state of mp_prefetch, use"
            f" num_workers={num_lanes} without num_lanes"
        )


class Position(Value):
    """The positions of all lanes after a step.

    Args:
        step: steps that were delivered.
        rows: rows that every lane has given for them, of which some may be padding.
        horizon: the step before which there is certainly no end.
        is_last: whether that is the end.
    """

    step: int = 0
    rows: int = 0
    horizon: int = 0
    is_last: bool = False


class LanesState(Value):
    """A state, taken apart.

    Args:
        num_lanes: of all hosts.
        batch_size: of all hosts.
        position: where they are.
        is_agreed: whether the horizon is what hosts have agreed on; it is in the state then.
        is_mixed: true if lanes are mixtures of the lanes of components.
        lanes: the states of some lanes, by their numbers.
    """

    num_lanes: int
    batch_size: int
    position: Position
    is_agreed: bool
    is_mixed: bool
    lanes: dict[int, Any]

    def as_state(self) -> dict[str, Any]:
        """Returns the state that is saved, whose keys are text, as in JSON."""
        at = self.position
        state = {"num_lanes": self.num_lanes, "batch_size": self.batch_size, "step": at.step}
        # some steps were of another size
        if at.rows != at.step * self.batch_size // self.num_lanes:
            state["rows_per_lane"] = at.rows
        if self.is_agreed:
            state |= {"horizon": at.horizon, "is_last": at.is_last}
        lanes = {str(number): copied(self.lanes[number]) for number in sorted(self.lanes)}
        return {**mixed_in_lanes(state, self.is_mixed), _LANES: lanes}

    @classmethod
    def parse(cls, state: Any, owner: object) -> LanesState:
        """Returns the parts of a state, copied.

        Raises:
            StateMismatchError: it cannot be one.
        """
        num_lanes, size = (
            state_count(state, "num_lanes", owner),
            state_count(state, "batch_size", owner),
        )
        if not num_lanes or not size or size % num_lanes:
            raise StateMismatchError(
                f"batch_size in the state of {owner} must be a positive multiple of num_lanes, got"
                f" {size} and {num_lanes}"
            )
        step = state_count(state, "step", owner)
        rows = (
            state_count(state, "rows_per_lane", owner)
            if "rows_per_lane" in state
            else step * size // num_lanes
        )
        lanes = states_by_index(state_field(state, _LANES, owner), f"lanes in the state of {owner}")
        is_agreed = "horizon" in state
        position = Position(step, rows, step)
        if is_agreed:
            position = Position(
                step,
                rows,
                state_count(state, "horizon", owner),
                state_flag(state, "is_last", owner),
            )
            if position.horizon < step:
                raise StateMismatchError(
                    f"horizon in the state of {owner} must be at least step, {step}, got"
                    f" {position.horizon}"
                )
        return cls(num_lanes, size, position, is_agreed, _MIXED in state, lanes)

    def of_lanes(self, lanes: Iterable[int], owner: object) -> dict[int, Any]:
        """Returns the states of these lanes.

        Raises:
            StateKeyError: one is missing.
        """
        missing = [number for number in lanes if number not in self.lanes]
        if missing:
            raise StateKeyError(
                f"the state of {owner} must have the lanes {shown(list(lanes))}, it has"
                f" {shown(sorted(self.lanes))}: it is of another host. Join those of all hosts with"
                " gristmill.checkpoint.merge_states, as CheckpointRestore does"
            )
        return {number: self.lanes[number] for number in lanes}


def merge_states(states: Iterable[Any]) -> dict[str, Any]:
    """Returns one state that continues where all hosts stopped, which any host restores, however
    many there are then.

    Law: the order of ``states`` does not matter, and a state of all lanes merges to itself.

    Args:
        states: of the iterators of all hosts after the same step, of ``global_batch`` or of
            downstream stages that keep nothing else, or the same, such as ``map`` and
            ``map_with_index``. What JSON has made of them will do.

    Raises:
        StateMismatchError: (a ``ValueError``) they are not of one step of one pipeline, or the
            lanes of a host are missing.

    Example:
        >>> from gristmill import MapDataset, ShardOptions
        >>> from gristmill.checkpoint import merge_states
        >>> ds = MapDataset.range(12)
        >>> hosts = [
        ...     iter(ds.global_batch(4, shard_options=ShardOptions(host, 2))) for host in range(2)
        ... ]
        >>> [next(it) for it in hosts]
        [array([0, 1]), array([2, 3])]
        >>> alone = iter(ds.global_batch(4))
        >>> alone.set_state(merge_states([it.get_state() for it in hosts]))
        >>> next(alone)
        array([4, 5, 6, 7])
    """
    found = list(states)
    owner = "merge_states"
    if not found or not all([isinstance(state, Mapping) for state in found]):
        raise StateMismatchError(
            f"states must be those of all hosts, at least one mapping, got {shown(found)}"
        )
    if "parent" in found[0]:  # of a downstream stage
        rests = [{key: value for key, value in state.items() if key != "parent"} for state in found]
        if any([rest != rests[0] for rest in rests]):
            raise StateMismatchError(
                f"the states of all hosts must be the same but for their lanes, got {shown(rests)}"
            )
        return {
            "parent": merge_states([state_field(state, "parent", owner) for state in found]),
            **copied(rests[0]),
        }
    parsed = [LanesState.parse(state, owner) for state in found]
    first = parsed[0]
    for other in parsed:
        if other.replaced(lanes={}) != first.replaced(lanes={}):
            raise StateMismatchError(
                "the states of all hosts must be after the same step, with the same num_lanes and"
                f" batch_size, got {shown(first.replaced(lanes={}).as_state())} and"
                f" {shown(other.replaced(lanes={}).as_state())}"
            )
    lanes: dict[int, Any] = {}
    for number, value in [item for other in parsed for item in other.lanes.items()]:
        if lanes.setdefault(number, value) != value:
            raise StateMismatchError(
                f"lane {number} is in two of the states, and not at the same place"
            )
    if sorted(lanes) != list(range(first.num_lanes)):
        raise StateMismatchError(
            f"the states of all hosts must have the lanes 0 to {first.num_lanes - 1} together, got"
            f" {shown(sorted(lanes))}"
        )
    return first.replaced(lanes=lanes).as_state()
