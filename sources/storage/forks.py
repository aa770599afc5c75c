"""The number of forks between this process and the first one, for objects that must not be used on both sides of a fork.

Comparing it costs an attribute, and ``os.getpid()`` a call of the system.
"""

from __future__ import annotations

import os

number = 0


def _count() -> None:
    global number
    number += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count)
