"""The absl flags of a program, for its workers: they have the same values there, and none needs to
be parsed again.

absl is looked for, never imported, unless the task of the worker refers to it.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias, TypeGuard

Values: TypeAlias = dict[str, object]  # by the names of flags


class Flag(Protocol):
    name: str
    value: object
    using_default_value: bool


class FlagValues(Protocol):
    """``absl.flags.FLAGS``."""

    def is_parsed(self) -> bool: ...

    def mark_as_parsed(self) -> None: ...

    def flags_by_module_dict(self) -> dict[str, list[Flag]]: ...

    def __iter__(self) -> Iterator[str]: ...

    def __getitem__(self, name: str) -> Flag: ...


def is_absl_flags(obj: object) -> TypeGuard[FlagValues]:
    return obj is not None and obj is _used_flags()


def _used_flags() -> FlagValues | None:
    """The flags of this process, if it uses absl."""
    return getattr(sys.modules.get("absl.flags"), "FLAGS", None)


def flag_values() -> Values:
    """The flags of this process that do not have their default value, if it uses absl and has
    parsed its flags.
    """
    flags = _used_flags()
    if flags is None or not flags.is_parsed():
        return {}
    return {
        name: flags[name].value
        for name in flags
        if not flags[name].using_default_value and _can_be_pickled(flags[name].value)
    }


def set_flags(values: Values, own: Values) -> None:
    """Gives the flags of this process, if it uses absl, these values.

    Args:
        values: values of flags, if a module here defines them.
        own: the flags that the main module of the program defines, which nothing does here.
    """
    if "absl.flags" in sys.modules:
        flags = _flags_with(own)
        for name in [*flags]:
            if name in values:
                flags[name].value = values[name]
        flags.mark_as_parsed()


def own_flags() -> Values:
    """The flags that the main module defines."""
    flags = _used_flags()
    own = () if flags is None else flags.flags_by_module_dict().get(sys.argv[0], ())
    return {flag.name: flag.value for flag in own if _can_be_pickled(flag.value)}


def reduce_flags(flags: FlagValues) -> tuple[Callable[[Values], FlagValues], tuple[Values]]:
    """Pickles ``FLAGS`` itself, to which functions of ``__main__`` may refer: a worker does not run
    that module.
    """
    return _flags_with, (own_flags(),)


def _flags_with(values: Values) -> FlagValues:
    from absl import flags

    for name, value in values.items():
        if name not in flags.FLAGS:
            flags.DEFINE_flag(flags.Flag(flags.ArgumentParser(), None, name, None, ""))
            flags.FLAGS[name].value = value
    return flags.FLAGS


def _can_be_pickled(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True
