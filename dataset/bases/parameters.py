"""The parameters of a stage, declared once: its description in checkpoints, its text and
``with_parents`` follow from them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

from gristmill.core.naming import transform_name
from gristmill.core.value import Value

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import Node


class _Field(Value):
    in_checkpoint: bool = True
    in_repr: bool = True
    show: Callable[[Any], str] = str  # makes the text of a value


_PLAIN = _Field()


def field(
    *,
    in_checkpoint: bool = True,
    in_repr: bool = True,
    is_function: bool = False,
    show: Callable[[Any], str] = str,
) -> Any:
    """Declares a field of parameters that is not as most are.

    Args:
        in_checkpoint: False if the value does not change the elements: it is in no description.
        in_repr: False if the value is not in the text of the stage.
        is_function: True for a user's function: shown by its name, and in no description.
        show: returns the text of a value.
    """
    if is_function:
        return _Field(in_checkpoint=False, show=transform_name)
    return _Field(in_checkpoint=in_checkpoint, in_repr=in_repr, show=show)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Parameters(Value):
    """Base of the parameters of a stage: annotated fields, which are the constructor's arguments
    except the parents.

    A field determines the elements, and is part of descriptions and texts, unless ``field(...)``
    declares it otherwise. Fields have no defaults: those are in the constructor of the stage.
    ``__post_init__`` validates the values; after that they do not change.

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
        fields = {name: vars(cls).get(name, _PLAIN) for name in own}
        for name, declared in fields.items():
            if not isinstance(declared, _Field):
                raise TypeError(
                    f"{cls.__name__}.{name} has the default {declared!r}. Parameters have none:"
                    " give the default in the constructor of the stage, or declare the field with"
                    " field(...)."
                )
            if declared is not _PLAIN:
                delattr(cls, name)  # the class has no attribute that a missing value could fall to
        cls._fields = {**cls._fields, **fields}

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Validates the values."""

    def described(self) -> dict[str, Any]:
        """Returns the parameters that determine the elements, by name."""
        return {
            name: getattr(self, name)
            for name, declared in self._fields.items()
            if declared.in_checkpoint
        }

    def text(self) -> str:
        """Returns the text in the parentheses of a stage's text."""
        shown = [
            f"{name}={declared.show(getattr(self, name))}"
            for name, declared in self._fields.items()
            if declared.in_repr
        ]
        return ", ".join(shown)

    def _replace(self, **values: Any) -> None:
        """Puts validated values in place, in ``__post_init__``."""
        vars(self).update(values)


class FunctionParameters(Parameters):
    """Parameters of a stage that calls a user's function of each element."""

    transform: Any = field(is_function=True)


class Described(Parameters):
    """Parameters that are part of descriptions, and of no text."""

    values: dict[str, Any] = field(in_repr=False)

    def described(self) -> dict[str, Any]:
        return self.values


NONE = Parameters()


def parameters_of(stage: Node) -> Any:
    """Returns the parameters of a dataset or iterator; empty if they are unknown."""
    return stage._gm_parameters
