"""The parameters of a stage, declared once: its description in checkpoints, its text and
``with_parents`` follow from them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, dataclass_transform

from gristmill.core.naming import transform_name
from gristmill.core.value import Value


class _Field(Value):
    is_described: bool = True
    in_text: bool = True
    show: Any = str  # makes the text of a value


_PLAIN = _Field()


def function() -> Any:
    """A field for a function of the user: in texts by its name, and in no description, since code
    may change.
    """
    return _Field(is_described=False, show=transform_name)


def silent() -> Any:
    """A field that is described, but stands in no text."""
    return _Field(in_text=False)


def aside(*, in_text: bool = False, show: Callable[[Any], str] = str) -> Any:
    """A field that does not change which elements there are."""
    return _Field(is_described=False, in_text=in_text, show=show)


@dataclass_transform(frozen_default=True, field_specifiers=(function, silent, aside))
class Parameters(Value):
    """The base of the parameters of a stage: annotated fields, which are its arguments but the
    parents.

    A field decides what elements there are, and is part of descriptions and texts, unless it is
    declared otherwise: as ``function()``, ``silent()`` or ``aside()``. Arguments are validated in
    ``__post_init__``; after that nothing changes.

    Example:
        >>> class Grouping(Parameters):
        ...     size: int
        ...     seed: int = silent()
        ...     fn: Any = function()
        >>> grouping = Grouping(3, 7, len)
        >>> grouping.text(), grouping.described()
        ('size=3, fn=len', {'size': 3, 'seed': 7})
    """

    _fields: ClassVar[dict[str, _Field]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = vars(cls).get("__annotations__", {})
        cls._fields = {**cls._fields, **{name: vars(cls).get(name, _PLAIN) for name in own}}
        for name in own.keys() & vars(cls).keys():  # no defaults
            delattr(cls, name)

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Validates the values."""

    def described(self) -> dict[str, Any]:
        """The parameters that determine the elements, by name: checkpoints identify pipelines by
        them.
        """
        return {
            name: getattr(self, name) for name, field in self._fields.items() if field.is_described
        }

    def text(self) -> str:
        """The text in the parentheses of a stage's text."""
        shown = [
            f"{name}={field.show(getattr(self, name))}"
            for name, field in self._fields.items()
            if field.in_text
        ]
        return ", ".join(shown)

    def _replace(self, **values: Any) -> None:
        """Puts validated values in place, in ``__post_init__``."""
        vars(self).update(values)


class Described(Parameters):
    """Parameters that are part of descriptions, and of no text."""

    values: dict[str, Any] = silent()

    def described(self) -> dict[str, Any]:
        return self.values


NONE = Parameters()


def parameters_of(stage: Any) -> Any:
    """The parameters of a dataset or iterator; empty if they are unknown, as of users' classes."""
    found = getattr(stage, "_parameters", NONE)
    return found if isinstance(found, Parameters) else NONE
