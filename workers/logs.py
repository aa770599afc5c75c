"""Log messages of workers look like those of the main program, and say which worker they are
from.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal, TypedDict


class LogSettings(TypedDict):
    """The way that a program logs to the terminal, as plain data."""

    format: str
    dates: str | None
    handler_level: int
    level: int
    levels: dict[str, int]  # of loggers that have one


def log_settings() -> LogSettings | None:
    """The settings with which this program logs to the terminal: format and levels; ``None`` if it
    does not. Plain data.
    """
    root = logging.getLogger()
    streams = (sys.stderr, sys.stdout)
    handler = next(
        (handler for handler in root.handlers if getattr(handler, "stream", None) in streams), None
    )
    if handler is None:
        return None
    formatter = handler.formatter or logging.Formatter()
    loggers = [*root.manager.loggerDict.items()]
    levels = {
        str(name): int(log.level)
        for name, log in loggers
        if isinstance(log, logging.Logger) and log.level
    }
    return {
        "format": str(getattr(formatter, "_fmt", None) or logging.BASIC_FORMAT),
        "dates": None if formatter.datefmt is None else str(formatter.datefmt),
        "handler_level": int(handler.level),
        "level": int(root.level),
        "levels": levels,
    }


def log_like(settings: LogSettings | None, index: int, count: int) -> None:
    """Called in a worker, after the user's own function: lets it log so, unless logging was set up
    differently.

    Args:
        settings: what ``log_settings`` gave in the main program.
        index: which worker this is.
        count: of how many.
    """
    root = logging.getLogger()
    if settings is None or root.handlers:
        return
    prefix = f"[worker {index}] " if count > 1 else "[worker] "
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(settings["handler_level"])
    handler.setFormatter(_WorkerFormatter(settings["format"], settings["dates"], prefix))
    root.addHandler(handler)
    root.setLevel(settings["level"])
    for name, level in settings["levels"].items():
        logging.getLogger(name).setLevel(level)


class _WorkerFormatter(logging.Formatter):
    def __init__(self, text: str, dates: str | None, prefix: str) -> None:
        style: Literal["{", "$", "%"] = (
            "{" if "{message" in text else "$" if "$message" in text or "${message" in text else "%"
        )
        super().__init__(text, dates, style, validate=False)
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        return self._prefix + super().format(record)
