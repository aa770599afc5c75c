"""Protocols that classes derive from together with anything else, whatever metaclass that has."""

from __future__ import annotations

import abc
import operator
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, Union, get_origin

if TYPE_CHECKING:
    ProtocolMeta = abc.ABCMeta
else:
    ProtocolMeta = type(Protocol)

_Class = TypeVar("_Class", bound=type[Any])
_BASES: dict[type[Any], type[Any]] = {}  # for each protocol, what classes derive from in its place


def without_metaclass(protocol: _Class) -> _Class:
    """``protocol``, whose metaclass the classes that derive from it do not get.

    A base says what it stands for (``__mro_entries__``) only if it is no class. What comes back is therefore an alias, as
    ``list[int]`` is one of ``list``: its attributes are the protocol's. Type checkers see the protocol.
    """
    own = {name: value for name, value in vars(protocol).items() if getattr(value, "__module__", "") == protocol.__module__}
    own |= {"__module__": protocol.__module__, "__doc__": protocol.__doc__}
    generic: Any = Generic
    generics = (generic[protocol.__parameters__],) if protocol.__parameters__ else ()
    _BASES[protocol] = types.new_class(protocol.__name__, generics, {}, lambda namespace: namespace.update(own))
    alias: Any = _Structural(protocol, ())
    alias_of = protocol.__class_getitem__.__func__

    def class_getitem(cls: type[Any], parameters: Any) -> Any:
        """Aliases as these are: ``typing.get_type_hints`` makes them anew from the class and the arguments."""
        if cls is not protocol:
            return alias_of(cls, parameters)
        return alias if parameters == () else _Structural(protocol, alias_of(cls, parameters).__args__)

    protocol.__class_getitem__ = classmethod(class_getitem)
    return alias


class _Structural(types.GenericAlias):
    """A protocol, or the protocol of something (``RandomAccessDataSource[int]``); as a base, a class with its methods."""

    def __mro_entries__(self, bases: Iterable[object]) -> tuple[type[Any]]:
        # Protocols extend protocols alone, and have their metaclass.
        others = (base for base in bases if not isinstance(base, _Structural))
        extended = any(isinstance(get_origin(base) or base, ProtocolMeta) for base in others)
        return (_protocol(self) if extended else _BASES[_protocol(self)],)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, _asked(self))

    def __subclasscheck__(self, subclass: Any) -> bool:
        return issubclass(_asked(subclass) if isinstance(subclass, _Structural) else subclass, _asked(self))

    def __getitem__(self, parameters: Any) -> Any:
        return _protocol(self)[super().__getitem__(parameters).__args__ if self.__args__ else parameters]

    def __or__(self, other: Any) -> Any:
        return Union[self, other]  # noqa: UP007  (``|`` would not answer ``isinstance``)

    __ror__ = __or__

    def __reduce__(self) -> Any:
        return (operator.getitem, (_protocol(self)[()], self.__args__)) if self.__args__ else self.__qualname__

    def __repr__(self) -> str:
        return super().__repr__().removesuffix("[()]")


def _protocol(alias: _Structural) -> Any:
    return alias.__origin__


def _asked(alias: _Structural) -> Any:
    """What ``isinstance`` asks in place of ``alias``: of a protocol of something it refuses to ask."""
    return types.GenericAlias(_protocol(alias), alias.__args__) if alias.__args__ else _protocol(alias)
