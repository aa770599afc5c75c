"""Puts a function between an object of ours and the callers of one of its methods. No other object
of its class is changed.

An object that can be observed that way has a method that takes the hooks, such as
``set_instruments``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

# Makes a replacement of a method from the method of the class, which it calls with the object and
# the same arguments.
Wrap: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


def shadow(owner: Any, name: str, wrap: Wrap | None) -> None:
    """Puts what ``wrap`` makes of a method in its place; ``None``: nothing is in its place any
    more.

    What is put there should not keep ``owner`` alive.
    """
    if wrap is not None:
        setattr(owner, name, wrap(getattr(type(owner), name)))
    else:
        with contextlib.suppress(AttributeError):
            delattr(owner, name)


def shadow_for_good(owner: Any, name: str, wrap: Wrap | None) -> None:
    """Does the same for an object that lives as long as its process: ``wrap`` gets the bound
    method.
    """
    shadow(owner, name, None if wrap is None else lambda method: wrap(partial(method, owner)))
