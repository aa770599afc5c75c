"""Components of drawn elements, as recorded in states of stages that hold such elements (see
``states/mixtures.py``).
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import plain_int, shown

DRAW_LOG = "turns"
_SHORT = 16  # numbers that are saved as they are
_DAMAGES = (ValueError, TypeError, KeyError, zlib.error)


class DrawLog(NamedTuple):
    """Of which components the elements are that a mixture has drawn one after the other.

    Args:
        start: the position in the mixture of the first one.
        names: of the components; ``None``: its elements are forgotten.
        draws: which of these each is of; the complement of that: it is skipped; ``None``:
            nothing was drawn.
        rows: the output of the stage with which each was delivered, -1: not yet wholly; or empty,
            if that is not needed.
        left: what the stage says of the last one, if a part of that was delivered.
    """

    start: int
    names: tuple[str | None, ...]
    draws: tuple[int | None, ...]
    rows: tuple[int, ...] = ()
    left: Any = None

    @classmethod
    def of(cls, state: Any, owner: object) -> DrawLog | None:
        """Reads the turns in a state, if it has any. Raises ``StateMismatchError`` for an invalid
        value.
        """
        if not isinstance(state, Mapping) or DRAW_LOG not in state:
            return None
        try:
            return cls.read(state[DRAW_LOG])
        except _DAMAGES as error:
            raise StateMismatchError(
                f"{DRAW_LOG} in the state of {owner} must be what its mixture has drawn, got"
                f" {shown(state[DRAW_LOG])}"
            ) from error

    @classmethod
    def read(cls, saved: Any) -> DrawLog:
        """Reads what ``saved`` wrote. Raises one of ``_DAMAGES`` for anything else."""
        if not isinstance(saved, Mapping) or type(saved["start"]) is not int or saved["start"] < 0:
            raise ValueError("there must be a start, 0 or more")
        names = tuple([None if name is None else str(name) for name in saved["names"]])
        draws = unpacked(saved["draws"])
        rows = unpacked(saved["rows"]) if "rows" in saved else []
        if max(map(abs, draws), default=0) > len(names) or (rows and len(rows) != len(draws)):
            raise ValueError(
                "there must be a name for each number, and a row for each draw or none"
            )
        return cls(
            saved["start"],
            names,
            tuple([_draw_of(code) for code in draws]),
            tuple(rows),
            saved.get("left"),
        )

    def saved(self) -> dict[str, Any]:
        """Return the log for a state: short, and never changed in place."""
        codes = [0 if i is None else i + 1 if i >= 0 else i for i in self.draws]
        rows = {"rows": packed(self.rows)} if self.rows else {}
        left = {} if self.left is None else {"left": self.left}
        return {"start": self.start, "names": [*self.names], "draws": packed(codes), **rows, **left}

    def without(self, gone: Collection[str]) -> DrawLog:
        """Return the same when components are forgotten."""
        return self._replace(names=tuple([None if name in gone else name for name in self.names]))

    def passing(self, num_rows: int) -> DrawLog:
        """Return the same with all elements skipped that are in the first outputs of the stage."""
        rows = self.rows or [-1] * len(self.draws)
        draws = [
            ~i if i is not None and i >= 0 and 0 <= row < num_rows else i
            for i, row in zip(self.draws, rows, strict=True)
        ]
        return self._replace(draws=tuple(draws), rows=(), left=None)

    @property
    def stop(self) -> int:
        """The position after the last one."""
        return self.start + len(self.draws)

    def at(self, position: int) -> int | None:
        return self.draws[position - self.start] if position >= self.start else None

    def are_there(self) -> list[bool]:
        """Return, for each element that the stage has received, true unless its component is
        forgotten.
        """
        return [self.names[i] is not None for i in self.draws if i is not None and i >= 0]

    @property
    def last_is_gone(self) -> bool:
        return self.are_there()[-1:] == [False]


def without(saved: Any, names: Collection[str]) -> DrawLog | None:
    """Saved turns when components are forgotten; ``None`` if they make no sense."""
    try:
        return DrawLog.read(saved).without(names)
    except _DAMAGES:
        return None


def _draw_of(code: int) -> int | None:
    return None if code == 0 else code - 1 if code > 0 else code


def packed(numbers: Iterable[int]) -> list[int] | str:
    found = [*numbers]
    if len(found) <= _SHORT:
        return found
    return base64.b64encode(zlib.compress(np.array(found, "<i4").tobytes(), 1)).decode()


def unpacked(packed: Any) -> Sequence[int]:
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
