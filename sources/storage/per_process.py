"""Objects with attributes that belong to one process, such as open files and locks."""

from __future__ import annotations

from typing import Any, ClassVar

from gristmill.sources.storage import forks


class PerProcess:
    """Base of objects whose copies start without what belongs to a process.

    Subclasses list the names of these attributes in ``_of_process``, set them in ``_start_closed``,
    which then calls that of this class, and call it in the constructor. Methods that use the
    attributes call it again if ``_fork`` is not ``forks.number``.
    """

    _of_process: ClassVar[tuple[str, ...]] = ()
    _fork: int  # the value of ``forks.number`` when the attributes were set

    def _start_closed(self) -> None:
        """Set the attributes of the process to their values before the first read."""
        self._fork = forks.number  # last, so that other threads find all attributes set

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_fork", *self._of_process)
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start_closed()
