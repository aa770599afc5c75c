"""The command ``verify``: whether a pipeline gives the same whenever and wherever it runs."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterator

from gristmill.diagnostics.cli.printing import say
from gristmill.diagnostics.cli.target import load_pipeline
from gristmill.diagnostics.verification import Verifier


def verify(args: Namespace) -> int:
    """Prints the conditions that were compared, and the first difference."""
    with _printing_to_stderr():
        report = Verifier(
            load_pipeline(args.pipeline), args.steps, args.seconds, made_by=args.pipeline
        ).report()
    say(json.dumps(report.to_dict(), indent=2) if args.json else str(report))
    return 0 if report.ok else 1


@contextlib.contextmanager
def _printing_to_stderr() -> Iterator[None]:
    """Redirects output of the user's code, here and in other processes, to stderr: it is no part of
    the answer.
    """
    sys.stdout.flush()
    before = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(before, 1)
        os.close(before)
