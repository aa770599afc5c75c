"""``python -m gristmill``: pipelines and checkpoints from a command line."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from gristmill.core.errors import MissingPackageError
from gristmill.diagnostics.cli.commands import CODES, COMMANDS, PROG
from gristmill.diagnostics.cli.printing import OutputClosedError, print_anywhere
from gristmill.diagnostics.cli.target import CommandError
from gristmill.diagnostics.runtime.attended import PipelineStalledError

_INTERRUPTED = 130
_IMPORTING = Path(importlib.__file__).parent

_PIPELINE = """\
PIPELINE is module:attribute or path/to/file.py:attribute. The attribute is a MapDataset, an
IterDataset or a DataLoader, or what makes one when it is called without arguments.
"""
_ABOUT = f"""\
Looks at pipelines and checkpoints.

{_PIPELINE}"""
_EPILOG = f"""\
examples:
  {PROG} inspect input_pipeline:train_ds
  {PROG} head train.py:make_dataset -n 2
  {PROG} diagnose train.py:make_dataset --consumer-ms 50 --html report.html
  {PROG} bench train.py:make_dataset --seconds 3
  {PROG} tune train.py:make_dataset
  {PROG} verify train.py:make_dataset
  {PROG} state checkpoints/1000 --pipeline train.py:make_dataset
  {PROG} show train.py:make_dataset --step 12345
  {PROG} view train.py:make_dataset
  {PROG} write train.py:make_dataset prepared --workers 8
  {PROG} diagnose --help

{CODES}"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the code to exit with.

    Args:
        argv: the arguments, by default those of the process.

    Raises:
        SystemExit: the arguments are wrong, or help was requested.
    """
    try:
        try:
            return _run(_parser().parse_args(argv))
        finally:
            sys.stdout.flush()
    except (BrokenPipeError, OutputClosedError):
        # the reader of the pipe has closed it; nothing must be written at exit either
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _INTERRUPTED


def _run(args: argparse.Namespace) -> int:
    try:
        return int(args.command(args))
    except (CommandError, MissingPackageError, PipelineStalledError) as error:
        print_anywhere(f"{PROG}: {error}", sys.stderr)
        if isinstance(error, CommandError):
            return error.code
        return 2 if isinstance(error, MissingPackageError) else 1
    except Exception as error:
        traceback.print_exception(type(error), error, _from_the_users_code(error.__traceback__))
        return 1


def _from_the_users_code(tb: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without the calls that led to the user's code; ``None`` if it has none of
    that.
    """
    ours = Path(__file__).parent.parent
    while tb is not None:
        file = Path(tb.tb_frame.f_code.co_filename)
        is_import = file.parent == _IMPORTING or str(file).startswith("<frozen importlib")
        if not file.is_relative_to(ours) and not is_import:
            return tb
        tb = tb.tb_next
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROG,
        description=_ABOUT,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_to(commands)
    return parser
