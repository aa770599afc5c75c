"""Properties that an attribute of the object or of a subclass may replace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class replaceable(Generic[T]):
    """``property`` that an object may hide by an attribute of the same name, as it may a method.

    Example:
        >>> class Circle:
        ...     @replaceable
        ...     def color(self):
        ...         return "none"
        >>> circle = Circle()
        >>> before, circle.color = circle.color, "red"
        >>> before, circle.color
        ('none', 'red')
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> replaceable[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else self._compute(instance)


class cached(Generic[T]):
    """``functools.cached_property`` without a lock, as it is from Python 3.12 on.

    Threads at the same time may each compute the value; all get that of the first.

    The lock of 3.11 is one for all objects: it lets their threads wait for each other, and stays
    locked forever if an interrupt comes where it is about to be released.

    Example:
        >>> class Circle:
        ...     radius = 2
        ...
        ...     @cached
        ...     def area(self):
        ...         return 3.14 * self.radius**2
        >>> Circle().area
        12.56
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        return vars(instance).setdefault(self._name, self._compute(instance))
