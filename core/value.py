"""Small immutable records: as frozen dataclasses, but without the time that making one takes when a
module is imported.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self, dataclass_transform


@dataclass_transform(frozen_default=True)
class Value:
    """The base of records: annotated fields, given by position or name, with the default after
    ``=``.

    Equal if of one class with equal fields.

    Example:
        >>> class Point(Value):
        ...     x: int
        ...     y: int = 0
        >>> Point(1), Point(1, y=2) == Point(1, 2), Point(1).replaced(x=3)
        (Point(x=1, y=0), True, Point(x=3, y=0))
    """

    _names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        own = [name for name in vars(cls).get("__annotations__", ()) if not name.startswith("_")]
        cls._names = (*cls._names, *[name for name in own if name not in cls._names])
        setattr(cls, "__match_args__", cls._names)  # noqa: B010  (mypy does not let it be assigned)

    def __init__(self, *values: Any, **named: Any) -> None:
        given = {**dict(zip(self._names, values, strict=False)), **named}
        missing = [
            name for name in self._names if name not in given and not hasattr(type(self), name)
        ]
        if missing or len(given) < len(values) + len(named) or not given.keys() <= {*self._names}:
            raise TypeError(
                f"{type(self).__name__} takes {', '.join(self._names)}, got {len(values)} values"
                f" and {[*named]}"
            )
        vars(self).update(given)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} of {type(self).__name__} cannot be changed")

    def replaced(self, **values: Any) -> Self:
        """Returns a copy with other values."""
        return type(self)(**{**self.as_dict(), **values})

    def as_dict(self) -> dict[str, Any]:
        """Returns the values by name."""
        return {name: getattr(self, name) for name in self._names}

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Value)
            and type(self) is type(other)
            and self.as_dict() == other.as_dict()
        )

    def __hash__(self) -> int:
        return hash((type(self), *self.as_dict().values()))

    def __repr__(self) -> str:
        values = ", ".join([f"{name}={value!r}" for name, value in self.as_dict().items()])
        return f"{type(self).__name__}({values})"
