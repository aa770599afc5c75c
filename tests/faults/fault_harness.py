"""Runs programs in processes of their own and sees what they print, how long they take to end, and
whether anything stays.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PYTHONPATH = os.pathsep.join(
    filter(None, [str(HERE), str(HERE.parent / "support"), os.environ.get("PYTHONPATH", "")])
)
PATIENCE_SECONDS = 60.0
GONE_SECONDS = 6.0  # for what must be gone after two seconds; a noisy machine gets some more


@dataclass
class Outcome:
    code: int
    out: str
    err: str
    # from "ready", or from the signal, or else from the start to the end of the program
    seconds: float


class Program:
    """A running program, in a session and process group of its own."""

    def __init__(self, folder, command, *, stdin="", cwd=None):
        self.folder = Path(folder)
        self.token = f"FAULT_TOKEN={uuid.uuid4()}"
        self._out, self._err = self.folder / "stdout", self.folder / "stderr"
        name, value = self.token.split("=")
        env = {**os.environ, "FAULT_FOLDER": str(folder), "PYTHONPATH": PYTHONPATH, name: value}
        (self.folder / "stdin").write_text(stdin)
        with (
            self._out.open("wb") as out,
            self._err.open("wb") as err,
            (self.folder / "stdin").open("rb") as given,
        ):
            streams = {"stdin": given, "stdout": out, "stderr": err}
            self.process = subprocess.Popen(
                command, cwd=cwd or folder, env=env, start_new_session=True, **streams
            )
        self.since = time.monotonic()

    def signal_when_ready(self, number, *, group=False):
        """Sends it after the line that the program prints when its workers are where they should
        be; returns the outcome.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "ready " not in (out := self._out.read_text()) or not out.endswith("\n"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the program did not get ready: {out}{self._err.read_text()}")
            time.sleep(0.01)
        (os.killpg if group else os.kill)(self.process.pid, number)
        self.since = time.monotonic()
        return self.outcome()

    def outcome(self):
        try:
            code = self.process.wait(PATIENCE_SECONDS)
            ended = time.monotonic()
            while process_ids(self.token):
                if time.monotonic() > ended + GONE_SECONDS:
                    raise AssertionError(
                        f"processes that outlived the program: {process_ids(self.token)}"
                    )
                time.sleep(0.01)
        except subprocess.TimeoutExpired as error:
            self.process.send_signal(signal.SIGABRT)
            raise AssertionError(
                f"the program hangs: {self._out.read_text()}{self._err.read_text()}"
            ) from error
        finally:
            self.kill()
        out = self._out.read_text()
        stamps = [float(line.split()[1]) for line in out.splitlines() if line.startswith("ready ")]
        return Outcome(code, out, self._err.read_text(), ended - max([self.since, *stamps]))

    def kill(self):
        """Leaves nothing behind, for every program."""
        for process_id in process_ids(self.token):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        self.process.wait()


def process_ids(token):
    """The processes with ``token`` in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and token.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def start(folder, script, *args, flags=(), **kwargs):
    """Starts ``script`` as a file; it has all of ``fault_tools``."""
    path = Path(folder) / "program.py"
    path.write_text("from fault_tools import *\n" + textwrap.dedent(script))
    return Program(folder, [sys.executable, *flags, str(path), *map(str, args)], **kwargs)


def run(folder, script, *args, **kwargs):
    return start(folder, script, *args, **kwargs).outcome()


def check_parts(folder, *parts, tools="", flags=()):
    """Runs scripts one after the other in one program, each as a function: nothing is printed, or
    left behind any of them.
    """
    text = tools
    for number, part in enumerate(parts):
        text += f"\ndef part_{number}():\n{textwrap.indent(textwrap.dedent(part), '    ')}\n"
    text += "".join(
        [
            f"\nwatch = Watch()\npart_{number}()\ngc.collect()\nwatch.check()\n"
            for number in range(len(parts))
        ]
    )
    check_silent(run(folder, text, flags=flags), out="")


def run_all(folder, check, cases):
    """Calls ``check(folder_of_its_own, *case)`` for all cases, a few at a time."""
    folders = [Path(tempfile.mkdtemp(dir=folder)) for _ in cases]
    with ThreadPoolExecutor(4) as threads:
        checks = [
            threads.submit(check, each, *case) for each, case in zip(folders, cases, strict=True)
        ]
    errors = [
        f"{case}: {done.exception()}"
        for case, done in zip(cases, checks, strict=True)
        if done.exception()
    ]
    assert not errors, "\n".join(errors)


def check_silent(outcome, out=None, code=0):
    """The program ended well and printed nothing but ``out`` (anything, if that is not given)."""
    assert (outcome.code, outcome.err) == (code, ""), outcome.err
    assert out is None or outcome.out == out


def check_traceback(outcome, last_line, code=1):
    """The program printed its user's traceback and nothing else on stderr."""
    lines = outcome.err.splitlines()
    assert outcome.code == code, outcome
    assert (lines[0], lines[-1]) == ("Traceback (most recent call last):", last_line), outcome.err
    assert outcome.err.count("Traceback") == 1, outcome.err
