"""Draws: the choices of a mixture, as stages that replay elements record them."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby, repeat
from typing import Any, NamedTuple

import numpy as np

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import plain_int
from gristmill.dataset.states.values import copied, given

# components in the record of a state that were dropped, although elements of them are needed
LOST = "lost"

# What became of a draw.
ELEMENT = 0  # the component gave an element
# its element is not needed: it was delivered, and the rest of its group makes other outputs
DELIVERED = 1
EXHAUSTED = 2  # the component had no element left
END = 3  # the mixture ended
_NUM_KINDS = 4
_SHORT = 16  # numbers that are saved as they are


class Draw(NamedTuple):
    """One choice of a mixture.

    Attributes:
        weights: a description of the plan under which it was made.
        name: of the component; ``None``: of one that was dropped, or of none.
        kind: one of the four above.
    """

    weights: Any
    name: str | None
    kind: int = ELEMENT


class Delivery(NamedTuple):
    """Describes the elements that a stage replays, each of which one draw gave.

    Attributes:
        rows: for each draw, the output of the stage in which its element is wholly; -1: in none.
            Empty if that is not needed.
        left: what the stage says in its state of the last element, if a part of that is in an
            output.
    """

    rows: tuple[int, ...] = ()
    left: Any = None


class SavedDraws(NamedTuple):
    """Consecutive draws as in a state.

    Attributes:
        names: of the components; ``None``: it was dropped.
        codes: for each draw, the place of its name, times four, and its kind.
        weights: descriptions of plans, each with the number of consecutive draws made under it.
        delivery: ``None`` if the stage that replays does not know which draw gave which element.
    """

    names: tuple[str | None, ...]
    codes: tuple[int, ...]
    weights: tuple[tuple[int, Any], ...]
    delivery: Delivery | None

    @classmethod
    def of(cls, draws: Sequence[Draw], delivery: Delivery | None) -> SavedDraws:
        places: dict[str | None, int] = {}
        codes = tuple(
            [places.setdefault(name, len(places)) * _NUM_KINDS + kind for _, name, kind in draws]
        )
        weights = [(len([*group]), one) for one, group in groupby([draw.weights for draw in draws])]
        return cls(tuple(places), codes, tuple(weights), delivery)

    def draws(self) -> list[Draw]:
        """Return the draws; equal ones are the same object."""
        known: dict[tuple[int, int], Draw] = {}
        found: list[Draw] = []
        for part, (num, weights) in enumerate(self.weights):
            for code in self.codes[len(found) : len(found) + num]:
                draw = known.get((part, code))
                if draw is None:
                    place, kind = divmod(code, _NUM_KINDS)
                    draw = known[part, code] = Draw(weights, self.names[place], kind)
                found.append(draw)
        return found

    def saved(self) -> dict[str, Any]:
        """Return the JSON-able form."""
        weights = [[num, copied(one)] for num, one in self.weights]
        state = {"names": [*self.names], "draws": packed(self.codes), "weights": weights}
        if self.delivery is not None:
            state["rows"] = packed(self.delivery.rows)
            if self.delivery.left is not None:
                state["left"] = copied(self.delivery.left)
        return state

    @classmethod
    def read(cls, saved: Mapping[str, Any]) -> SavedDraws:
        """Return what ``saved`` has made. Raises ``ValueError``, ``TypeError`` or ``KeyError`` for
        anything else.
        """
        saved = given(saved)
        names = tuple([None if name is None else str(name) for name in saved["names"]])
        try:
            codes = tuple(unpacked(saved["draws"]))
            rows = None if "rows" not in saved else tuple(unpacked(saved["rows"]))
        except zlib.error as error:
            raise ValueError(saved) from error
        weights = tuple([(count_in(num), one) for num, one in saved["weights"]])
        if not all([0 <= code < _NUM_KINDS * len(names) for code in codes]) or sum(
            [num for num, _ in weights]
        ) != len(codes):
            raise ValueError("each draw must be of a name, and made under weights")
        if rows and len(rows) != len(codes):
            raise ValueError("there must be a row for each draw, or none")
        delivery = None if rows is None else Delivery(rows, saved.get("left"))
        return cls(names, codes, weights, delivery)

    def without(self, gone: Collection[str]) -> SavedDraws:
        """Return the same when components are dropped."""
        return self._replace(names=tuple([None if name in gone else name for name in self.names]))

    def passing(self, num_rows: int) -> SavedDraws:
        """Return the same without elements of the first outputs of the stage."""
        rows: Iterable[int] = (
            repeat(-1) if self.delivery is None or not self.delivery.rows else self.delivery.rows
        )
        pairs = zip(self.codes, rows, strict=False)
        codes = [
            code + DELIVERED if code % _NUM_KINDS == ELEMENT and 0 <= row < num_rows else code
            for code, row in pairs
        ]
        return self._replace(codes=tuple(codes), delivery=self.delivery and Delivery())

    def are_there(self) -> list[bool]:
        """Return, for each element that the stage gets, whether its component was not dropped."""
        return [
            self.names[code // _NUM_KINDS] is not None
            for code in self.codes
            if code % _NUM_KINDS == ELEMENT
        ]

    def names_drawn(self) -> set[str]:
        """Return the names of components that have given elements."""
        places = {code // _NUM_KINDS for code in self.codes if code % _NUM_KINDS == ELEMENT}
        return {name for place in places if (name := self.names[place]) is not None}


def count_in(value: object) -> int:
    """Return a number in a state. Raises ``ValueError`` for anything else."""
    num = plain_int(value)
    if num is None or num < 0:
        raise ValueError(value)
    return num


def names_lost(saved: object) -> list[str]:
    """Return the components in the record of a state that were dropped, although elements of them
    are needed.
    """
    lost = saved.get(LOST, []) if isinstance(saved, Mapping) else []
    return [*map(str, lost)] if isinstance(lost, list | tuple) else []


def needed(names: Sequence[str], owner: object) -> StateMismatchError:
    """Return the error of a mixture that lacks components whose elements are held downstream."""
    return StateMismatchError(
        f"a stage after {owner} holds elements of components that the mixture does not have any"
        f" more, {names!r:.200}, and it is not known which others it holds: it fills itself again,"
        " which needs them. Keep them in the mixture, with the weight 0 in a Schedule, until these"
        " elements have come; then they can be dropped"
    )


def packed(numbers: Iterable[int]) -> list[int] | str:
    """Return the JSON-able form of numbers, short if there are many."""
    found = [*numbers]
    if len(found) <= _SHORT:
        return found
    return base64.b64encode(zlib.compress(np.array(found, "<i4").tobytes(), 1)).decode()


def unpacked(packed: object) -> Sequence[int]:
    """Return the numbers that ``packed`` has made a form of."""
    if isinstance(packed, str):
        found: list[int] = np.frombuffer(
            zlib.decompress(base64.b64decode(packed, validate=True)), "<i4"
        ).tolist()
        return found
    numbers = (
        [plain_int(number) for number in packed] if isinstance(packed, list | tuple) else [None]
    )
    integers = [number for number in numbers if number is not None]
    if len(integers) < len(numbers):
        raise TypeError("numbers must be a list of integers, or text")
    return integers
