"""Parts of the sentences about states."""

from __future__ import annotations

import re
import sys
from typing import Any

from gristmill.core.state import plain_int, shown

_MAX_NUMBER = 10**30  # a larger one is not spelt out


def own_form(state: Any) -> str:
    """Returns a state that nothing is known about."""
    return f"in a form of its own: {shown(state)}"


def in_options(text: str, *names: str) -> str:
    """Returns the message of a function, with the options of the command in place of its
    parameters.

    Args:
        text: the message.
        names: the parameters that are options of the same name.

    Example:
        >>> in_options(
        ...     "batch_size must be positive; or pass append=True or state=... (--state)",
        ...     "batch_size",
        ...     "append",
        ... )
        '--batch-size must be positive; or pass --append or --state'
        >>> in_options("append and overwrite cannot be given together", "append", "overwrite")
        '--append and --overwrite cannot be given together'
    """
    text = re.sub(r"\b\w+=\.\.\. \((--[\w-]+)\)", r"\1", text)
    for name in names:
        option = f"--{name.replace('_', '-')}"
        text = re.sub(rf"\b{name}=(?:True\b|(?=,))", option, text)
        text = re.sub(rf"(?<= of ){name}='(\w+)'", rf"{option} \1", text)  # not in texts of stages
        # names of one word are words, too
        ends = r"\b(?!=)" if "_" in name else r"(?= must| cannot| and [\w-]+ cannot)"
        text = re.sub(rf"(?<!-)\b{name}{ends}", option, text)
    return text


def number_text(value: Any) -> str:
    """Returns ``1,000``; for a value that should be a number but is not, its ``repr``."""
    number = plain_int(value)
    return shown(value) if number is None or abs(number) > _MAX_NUMBER else f"{number:,}"


def count_text(value: Any, what: str) -> str:
    """Returns ``1,000 elements``."""
    return f"{number_text(value)} {what}{'' if plain_int(value) == 1 else 's'}"


def of_length(value: Any, length: Any, what: str) -> str:
    """Returns ``12 of 100 elements (12%)``."""
    number, total = plain_int(value), plain_int(length)
    if number is None or total is None:
        return count_text(value, what)
    if total >= sys.maxsize:
        return f"{count_text(number, what)}, without end"
    percent = f" ({number_text(100 * number // total)}%)" if total else ""
    return f"{number_text(number)} of {count_text(total, what)}{percent}"


def epoch_text(index: int, size: int | None, num_epochs: int | None) -> str:
    """Returns ``, in epoch 2 of 3``; nothing if the size of an epoch is not known."""
    if not size:
        return ""
    epoch = index // size if num_epochs is None else min(index // size, num_epochs - 1)
    of = "" if num_epochs is None else f" of {number_text(num_epochs)}"
    return f", in epoch {number_text(epoch + 1)}{of}"
