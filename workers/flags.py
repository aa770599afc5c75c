"""The absl flags of a program, for its workers: they have the same values there, and none needs to
be parsed again.

absl is looked for, never imported, unless the task of the worker refers to it.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any


def is_absl_flags(obj: Any) -> bool:
    return (
        obj is getattr(sys.modules.get("absl.flags"), "FLAGS", obj) and "absl.flags" in sys.modules
    )


def flag_values() -> dict[str, Any]:
    """Returns the flags of this process that do not have their default value, if it uses absl and
    has parsed its flags.
    """
    flags = getattr(sys.modules.get("absl.flags"), "FLAGS", None)
    if flags is None or not flags.is_parsed():
        return {}
    return {
        name: flags[name].value
        for name in flags
        if not flags[name].using_default_value and _can_be_pickled(flags[name].value)
    }


def set_flags(values: dict[str, Any], own: dict[str, Any]) -> None:
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


def own_flags() -> dict[str, Any]:
    """Returns the flags that the main module defines."""
    flags = getattr(sys.modules.get("absl.flags"), "FLAGS", None)
    own = () if flags is None else flags.flags_by_module_dict().get(sys.argv[0], ())
    return {flag.name: flag.value for flag in own if _can_be_pickled(flag.value)}


def reduce_flags(flags: Any) -> Any:
    """Pickles ``FLAGS`` itself, to which functions of ``__main__`` may refer: a worker does not run
    that module.
    """
    return _flags_with, (own_flags(),)


def _flags_with(values: dict[str, Any]) -> Any:
    from absl import flags

    for name, value in values.items():
        if name not in flags.FLAGS:
            flags.DEFINE_flag(flags.Flag(flags.ArgumentParser(), None, name, None, ""))
            flags.FLAGS[name].value = value
    return flags.FLAGS


def _can_be_pickled(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True
