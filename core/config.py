"""``gristmill.config``: options of the library as a whole, as opposed to options of one pipeline.

An option's value is the first of

1. what ``config.update`` or ``config.override`` was given;
2. the absl flag ``--grain_<option>``, if the program uses absl, defines that flag and has parsed
   its flags;
3. the environment variable ``GRISTMILL_<OPTION>``, unless empty (``1``/``0``, ``true``/``false``,
   ``yes``/``no`` or ``on``/``off`` for booleans);
4. the default.

absl is looked for, never imported: a plain script or a notebook needs neither absl nor parsed
flags.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.core.errors import as_int

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BOOLEANS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}
_NOT_SET = object()  # None is a value


class ConfigOptionError(AttributeError, ValueError):
    """There is no such option. ``hasattr`` needs an ``AttributeError``, Grain raises
    ``ValueError``.
    """


class _Option(NamedTuple):
    kind: type  # bool, int or str
    default: bool | int | str | None
    minimum: int | None = None
    choices: tuple[str, ...] = ()

    def check(self, name: str, value: Any) -> bool | int | str | None:
        """Returns ``value`` as the option stores it; ``name`` says in errors where it came from."""
        if self.kind is int:
            return as_int(name, value, minimum=self.minimum)
        if self.kind is bool:
            if not isinstance(value, bool):
                raise TypeError(
                    f"{name} must be True or False, got {value!r} of type {type(value).__name__}"
                )
            return value
        if self.choices:
            if not isinstance(value, str):
                raise TypeError(
                    f"{name} must be a string, got {value!r} of type {type(value).__name__}"
                )
            if value not in self.choices:
                raise ValueError(f"{name} must be one of {', '.join(self.choices)}, got {value!r}")
            return value
        if value is None:
            return None
        if not isinstance(value, str | os.PathLike):
            raise TypeError(
                f"{name} must be a path or None, got {value!r} of type {type(value).__name__}"
            )
        return os.fspath(value)

    def parse(self, name: str, text: str) -> bool | int | str | None:
        """Returns the value that an environment variable spells."""
        if self.kind is bool:
            if text.lower() not in _BOOLEANS:
                raise ValueError(f"{name} must be one of {', '.join(_BOOLEANS)}, got {text!r}")
            return _BOOLEANS[text.lower()]
        if self.kind is int:
            try:
                number = int(text)
            except ValueError:
                raise ValueError(f"{name} must be an integer, got {text!r}") from None
            return self.check(name, number)
        return self.check(name, text)


_OPTIONS = {
    "py_debug_mode": _Option(bool, False),
    "py_dataset_visualization_output_dir": _Option(str, None),
    "py_traceback_filtering": _Option(
        str,
        "auto",
        choices=("auto", "off", "tracebackhide", "quiet_remove_frames", "remove_frames"),
    ),
    "stall_seconds": _Option(int, 0, minimum=0),
    "debug_report_seconds": _Option(int, 60, minimum=1),
    "py_relay_sigterm_to_main": _Option(bool, False),
    "enable_multiprocess_worker_profiling": _Option(bool, False),
    "num_threads_computing_num_records": _Option(int, 64, minimum=1),
    "num_threads_fetching_records": _Option(int, 64, minimum=1),
    # Options of Grain's TensorFlow backend, which neither package has: accepted, and without
    # effect.
    "tf_interleaved_shuffle": _Option(bool, False),
    "tf_interleaved_shuffle_block_size": _Option(int, 10),
    "tf_interleaved_shuffle_parallel_blocks": _Option(int, 10),
    "tf_lookup_batch_size": _Option(int, 100),
    "tf_lookup_num_parallel_calls": _Option(int, -1),
    "tf_lookup_fast_warmup": _Option(bool, False),
    "tf_optimized_sequential_read": _Option(bool, False),
    "tf_prefetch_buffer_size": _Option(int, -1),
}


def _option(name: str) -> _Option:
    try:
        return _OPTIONS[name]
    except KeyError:
        raise ConfigOptionError(f"Unrecognized config option: {name}") from None


class Config:
    """The one object ``gristmill.config``; options are read as its attributes.

    All threads see the same values, and an update takes effect at the next read. Copies and pickles
    are references to the object of the process they end up in.

    Example:
        >>> config.py_debug_mode
        False
        >>> with config.override(py_debug_mode=True):
        ...     config.py_debug_mode
        True
        >>> config.update("num_threads_fetching_records", 0)
        Traceback (most recent call last):
        ...
        ValueError: num_threads_fetching_records must be a positive integer, got 0
    """

    # every access is a single dictionary operation, so threads need no lock
    _updates: dict[str, Any]

    def __init__(self) -> None:
        vars(self)["_updates"] = {}

    def __getattr__(self, name: str) -> Any:
        option = _option(name)
        value = self._updates.get(name, _NOT_SET)
        if value is not _NOT_SET:
            return value
        flags = getattr(sys.modules.get("absl.flags"), "FLAGS", None)
        flag = f"grain_{name}"
        if flags is not None and flag in flags and flags.is_parsed():
            return option.check(f"--{flag}", flags[flag].value)
        variable = f"GRISTMILL_{name.upper()}"
        text = os.environ.get(variable)
        return option.parse(variable, text) if text else option.default

    def __setattr__(self, name: str, value: Any) -> None:
        raise ValueError(f"config.{name} cannot be assigned to. Please use update().")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_OPTIONS]

    def __reduce__(self) -> str:
        return "config"

    def update(self, name: str, value: Any) -> None:
        """Sets an option for the whole process; from now on neither flags nor the environment
        matter to it.

        Args:
            name: the option.
            value: its new value.

        Raises:
            ConfigOptionError: there is no such option (an ``AttributeError`` and a ``ValueError``).
            TypeError: ``value`` is of the wrong type.
            ValueError: ``value`` is not allowed.
        """
        self._updates[name] = _option(name).check(name, value)

    def get_or_default(self, name: str) -> Any:
        """Returns the option's value, as reading the attribute does (Grain's attributes fail before
        flags are parsed).

        Raises:
            ConfigOptionError: there is no such option.
        """
        _option(name)  # a name such as "update" is an attribute, but no option
        return getattr(self, name)

    def are_unset(self, names: Sequence[str]) -> bool:
        """Returns whether none of these options is set in any way; this is faster than reading
        them.
        """
        flags = getattr(sys.modules.get("absl.flags"), "FLAGS", None)
        return (
            self._updates.keys().isdisjoint(names)
            and not any([f"GRISTMILL_{name.upper()}" in os.environ for name in names])
            and (
                flags is None
                or not flags.is_parsed()
                or not any([f"grain_{name}" in flags for name in names])
            )
        )

    def explicit_values(self) -> dict[str, Any]:
        """Returns the options that were set by ``update``, ``override`` or flags: workers are to
        have them too.
        """
        flags = getattr(sys.modules.get("absl.flags"), "FLAGS", None)
        by_flag = [
            name
            for name in _OPTIONS
            if flags is not None and flags.is_parsed() and f"grain_{name}" in flags
        ]
        return {name: getattr(self, name) for name in [*by_flag, *self._updates]}

    @contextlib.contextmanager
    def override(self, **values: Any) -> Iterator[None]:
        """Returns a context manager in which the options have the given values; for tests.

        All values are checked before any is set. The values hold for every thread of the process.

        Raises:
            ConfigOptionError, TypeError, ValueError: as ``update``.
        """
        checked = {name: _option(name).check(name, value) for name, value in values.items()}
        before = {name: self._updates.get(name, _NOT_SET) for name in values}
        self._updates.update(checked)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is _NOT_SET:
                    self._updates.pop(name, None)
                else:
                    self._updates[name] = value


config = Config()
