"""Runs programs in processes of their own and sees what they print, how long they take to end, and whether anything stays."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PATIENCE_SECONDS = 60.0
GONE_SECONDS = 6.0  # for what must be gone after two seconds; a noisy machine gets some more


@dataclass
class Outcome:
    code: int
    out: str
    err: str
    seconds: float  # from "ready", or from the signal, or else from the start to the end of the program
    gone_seconds: float  # from there until none of its processes was left


class Program:
    """A running program, in a session and process group of its own."""

    def __init__(self, folder, command, *, stdin="", cwd=None, env=None):
        self.folder = Path(folder)
        self.token = f"FAULT_TOKEN={uuid.uuid4()}"
        self._out, self._err = self.folder / "stdout", self.folder / "stderr"
        path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "FAULT_FOLDER": str(folder), "PYTHONPATH": path, **(env or {})}
        name, value = self.token.split("=")
        (self.folder / "stdin").write_text(stdin)
        with self._out.open("wb") as out, self._err.open("wb") as err, (self.folder / "stdin").open("rb") as given:
            self.process = subprocess.Popen(
                command,
                stdin=given,
                stdout=out,
                stderr=err,
                cwd=cwd or folder,
                env={**environment, name: value},
                start_new_session=True,
            )
        self.since = time.monotonic()

    def wait_until_ready(self):
        """Waits for the line that the program prints when its workers are where they should be."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "ready " not in (out := self._out.read_text()) or not out.endswith("\n"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the program did not get ready: {out}{self._err.read_text()}")
            time.sleep(0.01)

    def send(self, number, *, group=False):
        (os.killpg if group else os.kill)(self.process.pid, number)
        self.since = time.monotonic()

    def outcome(self):
        try:
            code = self.process.wait(PATIENCE_SECONDS)
            ended = time.monotonic()
            while process_ids(self.token):
                if time.monotonic() > ended + GONE_SECONDS:
                    raise AssertionError(f"processes that outlived the program: {process_ids(self.token)}")
                time.sleep(0.01)
            gone = time.monotonic()
        except subprocess.TimeoutExpired as error:
            self.process.send_signal(signal.SIGABRT)
            raise AssertionError(f"the program hangs: {self._out.read_text()}{self._err.read_text()}") from error
        finally:
            self.kill()
        out = self._out.read_text()
        stamps = [float(line.split()[1]) for line in out.splitlines() if line.startswith("ready ")]
        since = max([self.since, *stamps])
        return Outcome(code, out, self._err.read_text(), ended - since, gone - ended)

    def kill(self):
        """Leaves nothing behind, whatever the program did."""
        for process_id in process_ids(self.token):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        self.process.wait()


def process_ids(token):
    """The processes with ``token`` in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if token.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def is_running(process_id):
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def start(folder, script, *args, flags=(), **kwargs):
    """Starts ``script`` as a file; it has all of ``fault_tools``."""
    path = Path(folder) / "program.py"
    path.write_text("from fault_tools import *\n" + textwrap.dedent(script))
    return Program(folder, [sys.executable, *flags, str(path), *map(str, args)], **kwargs)


def run(folder, script, *args, **kwargs):
    return start(folder, script, *args, **kwargs).outcome()


def run_all(folder, check, cases):
    """Calls ``check(folder_of_its_own, *case)`` for all cases, a few at a time."""
    folders = [folder / str(number) for number in range(len(cases))]
    for each in folders:
        each.mkdir()
    with ThreadPoolExecutor(4) as threads:
        checks = [threads.submit(check, each, *case) for each, case in zip(folders, cases, strict=True)]
    errors = {case: str(done.exception()) for case, done in zip(cases, checks, strict=True) if done.exception()}
    assert not errors, "\n".join([f"{case}: {error}" for case, error in errors.items()])


def check_silent(outcome, out=None, code=0):
    """The program ended well and printed nothing but ``out`` (anything, if that is not given)."""
    assert (outcome.code, outcome.err) == (code, ""), outcome.err
    assert out is None or outcome.out == out


def check_traceback(outcome, last_line, code=1):
    """The program printed its user's traceback and nothing else on stderr."""
    lines = outcome.err.splitlines()
    assert outcome.code == code, outcome
    assert lines[0] == "Traceback (most recent call last):", outcome.err
    assert lines[-1] == last_line, outcome.err
    assert outcome.err.count("Traceback") == 1, outcome.err
