"""The parameters of a stage, declared once: its description in checkpoints, its text and
``with_parents`` follow from them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, dataclass_transform

from gristmill.core.naming import transform_name
from gristmill.core.value import Value


class _Field(Value):
    in_checkpoint: bool = True
    in_repr: bool = True
    show: Any = str  # makes the text of a value


_PLAIN = _Field()


def field(
    *,
    in_checkpoint: bool = True,
    in_repr: bool = True,
    is_function: bool = False,
    show: Callable[[Any], str] = str,
) -> Any:
    """Declare a parameter that differs from a plain one.

    Args:
        in_checkpoint: false if it does not change the elements, so that the description of a
            checkpoint leaves it out.
        in_repr: false if texts leave it out.
        is_function: true for a function of the user: its name is in texts, and it is not in the
            description, since code may change.
        show: makes the text of a value.
    """
    if is_function:
        return _Field(in_checkpoint=False, in_repr=in_repr, show=transform_name)
    return _Field(in_checkpoint=in_checkpoint, in_repr=in_repr, show=show)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Parameters(Value):
    """The base of the parameters of a stage: annotated fields, which are its arguments but the
    parents.

    A field decides what elements there are, and is part of descriptions and texts, unless it is
    declared otherwise by ``field(...)``. Arguments are validated in ``__post_init__``; after that
    nothing changes.

    Example:
        >>> class Grouping(Parameters):
        ...     size: int
        ...     seed: int = field(in_repr=False)
        ...     fn: Any = field(is_function=True)
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
        return {name: getattr(self, name) for name, x in self._fields.items() if x.in_checkpoint}

    def text(self) -> str:
        """The text in the parentheses of a stage's text."""
        shown = [(name, x) for name, x in self._fields.items() if x.in_repr]
        return ", ".join([f"{name}={x.show(getattr(self, name))}" for name, x in shown])

    def _replace(self, **values: Any) -> None:
        """Puts validated values in place, in ``__post_init__``."""
        vars(self).update(values)


class Described(Parameters):
    """Parameters that are part of descriptions, and of no text."""

    values: dict[str, Any] = field(in_repr=False)

    def described(self) -> dict[str, Any]:
        return self.values


NONE = Parameters()


def parameters_of(stage: Any) -> Any:
    """The parameters of a dataset or iterator; empty if they are unknown, as of users' classes."""
    found = getattr(stage, "_parameters", NONE)
    return found if isinstance(found, Parameters) else NONE
