"""Classes that travel by value, with the parts that cloudpickle omits."""

from __future__ import annotations

import dataclasses
import typing
from abc import ABCMeta
from collections.abc import Callable
from enum import Enum
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, NamedTuple, TypeAlias

from cloudpickle import cloudpickle as _cloudpickle

from gristmill.core.node_types import Registration, receive, registration_of
from gristmill.workers.reductions import Reduced

_SKELETONS = (_cloudpickle._make_skeleton_class, _cloudpickle._make_skeleton_enum)


Namespace: TypeAlias = dict[str, object]
# Attributes and slots, as cloudpickle sets them.
ClassState: TypeAlias = tuple[Namespace, Namespace]


class _State(NamedTuple):
    """State of a class, with more than cloudpickle sets."""

    set_others: Callable[[type, ClassState], None]
    others: ClassState
    members: dict[str, Namespace]  # attributes of each member of an Enum
    metaclass: type | None  # of an Enum
    registration: Registration | None


def completed(cls: type, reduced: Reduced) -> Reduced:
    """Return ``reduced``, cloudpickle's reduction of ``cls``, with the parts that it lacks."""
    if not isinstance(reduced, tuple) or reduced[0] not in _SKELETONS:
        return reduced
    parts: tuple[Any, ...] = reduced
    make, args, (attributes, slots), *rest, set_others = parts
    members: dict[str, Namespace] = {}
    metaclass = None
    has_fields = False
    if make is _cloudpickle._make_skeleton_class:
        args[3]["__qualname__"] = cls.__qualname__
        if typing.is_typeddict(cls):  # its base class is dict, from which none can be derived
            args = (*args[:2], (typing.TypedDict,), *args[3:])
        _add_slots(cls, args[3], attributes)
        has_fields = _add_fields(cls, args[3])
    else:
        metaclass = type(cls)
        # The other skeletons of cloudpickle are those of enums, which type checkers cannot know.
        if cls.__members__:  # type: ignore[attr-defined]
            args = (*args[:3], _described_members(cls), *args[4:])
        for name, member in cls.__members__.items():  # type: ignore[attr-defined]
            attributes.pop(name, None)
            members[name] = {
                key: value for key, value in vars(member).items() if key not in _MADE_WITH_A_MEMBER
            }
    registration = registration_of(cls)
    state: ClassState = (attributes, slots)
    if metaclass is not None or has_fields or registration is not None:
        more = _State(set_others, state, members, metaclass, registration)
        return make, args, more, *rest, _set_state
    return make, args, state, *rest, set_others


def _set_state(cls: type, state: _State) -> None:
    state.set_others(cls, state.others)
    _remove_fields(cls)
    if state.members:
        _finish_enum(cls, state.members, state.others[0])
    if state.metaclass is not None:
        cls.__class__ = state.metaclass  # cloudpickle makes it by that of its base
    if state.registration is not None:
        receive(cls, state.registration)


def _add_slots(cls: type, keywords: Namespace, attributes: Namespace) -> None:
    """Adds the slots of a class to ``keywords``.

    Without them, its instances would have a ``__dict__``, which the class of the program refuses.
    """
    if "__slots__" not in vars(cls):
        return
    if NamedTuple in vars(cls).get("__orig_bases__", ()):  # makes its own, and accepts no others
        return
    names = tuple([name for name, value in vars(cls).items() if _is_slot(name, value)])
    keywords["__slots__"] = names
    for name in names:
        attributes.pop(name, None)


def _is_slot(name: str, value: object) -> bool:
    return isinstance(value, MemberDescriptorType) or (
        isinstance(value, GetSetDescriptorType) and name in ("__dict__", "__weakref__")
    )


def _add_fields(cls: type, namespace: Namespace) -> bool:
    """Adds the fields of a dataclass if its metaclass or bases may use them; returns false if not.

    A metaclass or a base class may make a dataclass of each new class, and register it with JAX.
    cloudpickle makes the class empty and fills it later, so it would have no fields then.
    """
    if not dataclasses.is_dataclass(cls) or "__slots__" in vars(cls):
        return False
    if type(cls) in (type, ABCMeta) and not any(
        ["__init_subclass__" in vars(base) for base in cls.__mro__[1:-1]]
    ):
        return False
    fields: dict[str, dataclasses.Field[object]] = vars(cls).get("__dataclass_fields__", {})
    inherited = {
        id(field)
        for base in cls.__mro__[1:]
        for field in vars(base).get("__dataclass_fields__", {}).values()
    }
    own = {name: field for name, field in fields.items() if id(field) not in inherited}
    namespace.update(own)
    namespace["__annotations__"] = {name: field.type for name, field in own.items()}
    return True


def _remove_fields(cls: type) -> None:
    """Removes the fields that no base has taken out of the class to make it a dataclass."""
    for name, value in [*vars(cls).items()]:
        if isinstance(value, dataclasses.Field):
            delattr(cls, name)


# cloudpickle makes the members of an Enum from their values, before the class has methods. So they
# lack what ``__new__`` and ``__init__`` set, and the other names of a member are lost. Here a
# ``__new__`` makes them from their parts. Their attributes are set last, because these may refer to
# the class.

_MADE_WITH_A_MEMBER = ("_value_", "_name_", "__objclass__", "_sort_order_")


def _described_members(cls: Any) -> Namespace:
    """Return a namespace that makes an Enum of the same members."""
    members = {
        name: (_constructor_args(cls._member_type_, member), member._value_)
        for name, member in cls.__members__.items()
    }
    return {"__new__": _new_member, "__init__": _set_nothing, **members}


def _constructor_args(data_type: Any, member: Enum) -> tuple[object, ...]:
    """Return the arguments of the ``__new__`` of the type that members are derived from."""
    if data_type.__new__ is object.__new__:
        return ()
    if hasattr(data_type, "__getnewargs__"):
        args: tuple[object, ...] = data_type.__getnewargs__(member)
        return args
    return member._value_ if isinstance(member._value_, tuple) else (member._value_,)


def _new_member(cls: Any, *described: Any) -> Enum:
    args, value = described[0] if cls._member_type_ is tuple else described
    member = cls._member_type_.__new__(cls, *args)
    member._value_ = value
    return member


def _set_nothing(member: Enum, *args: object) -> None:
    pass


def _finish_enum(cls: type[Enum], members: dict[str, Namespace], attributes: Namespace) -> None:
    for name in {"__init__", "__new_member__"} - attributes.keys():
        if name in vars(cls):
            delattr(cls, name)
    for name, values in members.items():
        vars(cls.__members__[name]).update(values)
