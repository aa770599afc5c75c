"""What a stage was made with, declared once: its description in checkpoints, its text and making it anew follow from that."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gristmill.core.naming import transform_name


@dataclass(frozen=True)
class Parameters:
    """The base of the parameters of a stage: a frozen dataclass, whose fields are the arguments but the parents.

    A field decides what elements there are, and is part of descriptions and texts, unless it is declared otherwise: as
    ``function()``, ``silent()`` or ``aside()``. Arguments are validated in ``__post_init__``.

    Example:
        >>> @dataclass(frozen=True)
        ... class Grouping(Parameters):
        ...     size: int
        ...     seed: int = silent()
        ...     fn: Any = function()
        >>> grouping = Grouping(3, 7, len)
        >>> grouping.text(), grouping.described()
        ('size=3, fn=len', {'size': 3, 'seed': 7})
    """

    def described(self) -> dict[str, Any]:
        """What decides which elements there are, by name: what checkpoints tell pipelines apart by."""
        return {field.name: self._value(field) for field in dataclasses.fields(self) if field.metadata.get("is_described", True)}

    def text(self) -> str:
        """What stands in the parentheses of a stage's text."""
        parts = []
        for field in dataclasses.fields(self):
            if field.metadata.get("in_text", True):
                show: Callable[[Any], str] = field.metadata.get("show", str)
                parts.append(f"{field.name}={show(self._value(field))}")
        return ", ".join(parts)

    def arguments(self) -> dict[str, Any]:
        """What another stage of the same kind is to be made with."""
        return {field.name: self._value(field) for field in dataclasses.fields(self)}

    def _value(self, field: dataclasses.Field[Any]) -> Any:
        return getattr(self, field.name)

    def _replace(self, **values: Any) -> None:
        """Puts validated values in place, in ``__post_init__``."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


NONE = Parameters()


def function() -> Any:
    """A field for a function of the user: in texts by its name, and in no description, since code may change."""
    return dataclasses.field(metadata={"is_described": False, "show": transform_name})


def stated() -> Any:
    """A field like any other, for those that stand behind one of the following."""
    return dataclasses.field()


def silent() -> Any:
    """A field that is described, but stands in no text."""
    return dataclasses.field(metadata={"in_text": False})


def aside(*, in_text: bool = False, show: Callable[[Any], str] = str) -> Any:
    """A field that does not change which elements there are."""
    return dataclasses.field(metadata={"is_described": False, "in_text": in_text, "show": show})


def parameters_of(stage: Any) -> Any:
    """What a dataset or iterator was made with."""
    return stage._parameters
