"""Number of forks since the first process, for objects that must not be used after a fork.

Reading it costs an attribute; ``os.getpid()`` costs a system call.
"""

from __future__ import annotations

import os

number = 0


def _count() -> None:
    global number
    number += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count)
