"""Measures gristmill, its peers and the bound side by side, and prints a table of figures and
ratios.

Each file in ``questions/`` asks one question. For every candidate of a workload a process is
started in the environment where it is installed (``make peers`` makes those of Grain and torch;
without them their columns say so). First each does the work once, which warms it up and shows that
all did the same. Then they run in turn, A B C A B C …, so that a machine that slows down slows all
of them; the table has the medians. Quote ratios: absolute figures are the machine's.
"""

from __future__ import annotations

import argparse
import configparser
import contextlib
import datetime
import importlib
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workload import Workload

HERE = Path(__file__).parent
PYTHONS = {
    "grain": HERE.parent / ".peers/grain/bin/python",
    "torch": HERE.parent / ".peers/torch/bin/python",
    "tf.data": HERE.parent / ".peers/clients/bin/python",  # which has TensorFlow
    **dict.fromkeys(
        ["LitData", "MDSWriter", "datasets.map"], HERE.parent / ".peers/writers/bin/python"
    ),
}
# Installed packages are compiled; a checkout is compiled by its first run.
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}
LIMIT_SECONDS = 300  # for one answer
EXIT_SECONDS = 10
NOT_INSTALLED = "not installed: run `make {}`"


class Candidate:
    """A process that runs one candidate of one workload when asked to.

    Args:
        module: the module with the workload.
        workload: its name.
        name: that of the candidate.
        errors: the file for what the process says of errors.
        environment: variables to set.
        command: what starts Python; by default that of the environment where the candidate is
            installed.
        peers: the environment below ``.peers`` in place of that.
    """

    def __init__(
        self,
        module: str,
        workload: str,
        name: str,
        errors: IO[str],
        environment: Mapping[str, str],
        command: Sequence[str] | None = None,
        peers: str | None = None,
    ):
        python = PYTHONS.get(name, Path(sys.executable))
        if peers is not None:
            python = HERE.parent / ".peers" / peers / "bin/python"
        if command is None and not python.exists():
            raise RuntimeError(NOT_INSTALLED.format("clients" if name == "tf.data" else "peers"))
        self._errors = errors
        self._process = subprocess.Popen(
            [*(command or [python]), HERE / "measure.py", module, workload, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**ENVIRONMENT, **environment},
            process_group=0,  # what it starts and leaves behind is ended with it
        )
        try:
            self.digest = self._answer()
        except RuntimeError:
            self.close()
            raise

    def figure(self) -> float:
        """The measurement of one run."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer says more
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return float(self._answer()["figure"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        watchdog = threading.Timer(LIMIT_SECONDS, self._process.kill)
        watchdog.start()
        try:
            for line in self._process.stdout:
                if line.startswith("{"):
                    answer: dict[str, Any] = json.loads(line)
                    return answer
        finally:
            watchdog.cancel()
        code = self._end()
        if watchdog.finished.is_set() and code == -signal.SIGKILL:
            raise RuntimeError(f"no answer within {LIMIT_SECONDS} s")
        self._errors.seek(0)
        raise RuntimeError((self._errors.read().strip() or f"exit code {code}").splitlines()[-1])

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._end()

    def _end(self) -> int:
        """Waits for the process, for a while, and ends what it leaves behind; returns its exit
        code.
        """
        process = self._process
        if process.returncode is None:
            watchdog = threading.Timer(EXIT_SECONDS, os.kill, [process.pid, signal.SIGKILL])
            watchdog.start()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            watchdog.cancel()
            watchdog.join()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                # not yet waited for, so that no other group can have this id
                os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def code_digest() -> str:
    """A checksum of the package and the benchmarks: figures of a run during which it changes are of
    no one version.
    """
    setup = configparser.ConfigParser()
    setup.read(HERE.parent / "setup.cfg")
    folders = [
        line.split("=")[1].strip() for line in setup["options"]["package_dir"].strip().splitlines()
    ]
    checksum = 0
    for path in sorted(
        path for folder in (*folders, HERE.name) for path in HERE.parent.glob(f"{folder}/**/*.py")
    ):
        checksum = zlib.crc32(path.read_bytes(), checksum)
    return f"{checksum:08x}"


def differences(workload: Workload, digests: dict[str, dict[str, Any]]) -> list[str]:
    """Describes results that show that candidates did different work. A bound without results is
    not compared.
    """
    digests = {
        name: digest
        for name, digest in digests.items()
        if digest["number"] or name in ("gristmill", *PYTHONS)
    }
    if not workload.compare or not digests:
        return []
    found = []
    first, expected = next(iter(digests.items()))
    for name, digest in digests.items():
        if digest["number"] != expected["number"]:
            found.append(f"{name} gave {digest['number']} numbers, {first} {expected['number']}")
        elif not math.isclose(digest["sum"], expected["sum"], rel_tol=1e-9):
            found.append(
                f"{name}'s numbers add up to {digest['sum']}, {first}'s to {expected['sum']}"
            )
    if {"gristmill", "grain"} <= digests.keys() and digests["gristmill"]["order"] != digests[
        "grain"
    ]["order"]:
        found.append("gristmill's elements differ from Grain's, or come in another order")
    return found


def measure(
    question: str, workload: Workload, rounds: int, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Runs all candidates of a workload in turn, with these variables; the result goes into the
    JSON file.
    """
    failures: dict[str, str] = {}
    running: dict[str, Candidate] = {}
    samples: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        for name in workload.candidates:
            try:
                errors = stack.enter_context(tempfile.TemporaryFile("w+"))
                running[name] = Candidate(
                    f"questions.{question}",
                    workload.name,
                    name,
                    errors,
                    environment,
                    peers=workload.environment,
                )
            except RuntimeError as error:
                failures[name] = str(error)
            else:
                stack.callback(running[name].close)
        digests = {name: candidate.digest for name, candidate in running.items()}
        for _ in range(min(rounds, workload.max_rounds)):
            for name, candidate in list(running.items()):
                try:
                    measured = candidate.figure()
                except RuntimeError as error:
                    failures[name] = str(error)
                    del running[name]
                else:
                    samples.setdefault(name, []).append(measured * workload.scale / workload.count)
    medians = {name: statistics.median(samples[name]) for name in running}
    goals = {}
    for text, reached in workload.goals.items():
        try:
            goals[text] = "reached" if reached(medians) else "MISSED"
        except KeyError:  # a peer to compare with is absent
            goals[text] = "not measured"
    return {
        "question": question,
        "workload": workload.name,
        "unit": workload.unit,
        "medians": medians,
        "samples": samples,
        "failures": failures,
        "digests": digests,
        "differences": differences(workload, digests),
        "goals": goals,
    }


def figure(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}" if value else "0"


def row(result: dict[str, Any]) -> list[str]:
    """A result as a row of the table."""
    medians = result["medians"]

    def cell(name: str) -> str:
        if name in medians:
            return figure(medians[name])
        if name not in result["failures"]:
            return "–"
        return "not installed" if result["failures"][name] == NOT_INSTALLED else "failed"

    def ratio(name: str) -> str:
        if name not in medians or "gristmill" not in medians:
            return "–"
        return f"{figure(medians[name] / medians['gristmill'])} ×"

    bounds = [
        name
        for name in (*medians, *result["failures"])
        if name not in ("gristmill", "grain", "torch")
    ]
    bound = "; ".join(f"{cell(name)} ({name})" for name in bounds) or "–"
    goals = "; ".join(f"{text}: {verdict}" for text, verdict in result["goals"].items())
    cells = [cell("gristmill"), cell("grain"), cell("torch"), bound, ratio("grain"), ratio("torch")]
    return [result["workload"], result["unit"], *cells, goals]


def table(rows: list[list[str]]) -> str:
    """Rows of a Markdown table, the first being its head."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(r, widths, strict=True)) + " |"
        for r in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


HEAD = [
    "workload",
    "unit",
    "gristmill",
    "Grain",
    "torch",
    "bound",
    "Grain/gristmill",
    "torch/gristmill",
    "goals",
]


def is_asked_for(name: str, only: Sequence[str]) -> bool:
    """True if a part of the name is among ``only``, or ``only`` is empty."""
    return not only or any(part in name for part in only)


def surroundings_of(question: Any) -> contextlib.AbstractContextManager[Mapping[str, str]]:
    """Starts the service that a question needs for all of its candidates, if any, and yields the
    environment variables that describe it.
    """
    return getattr(question, "surroundings", lambda: contextlib.nullcontext({}))()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "only", nargs="*", help="parts of the names of workloads or questions (default: all)"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="runs of each candidate (default: %(default)s)"
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=HERE.parent / "out/benchmarks.json",
        help="default: %(default)s",
    )
    arguments = parser.parse_args()

    code, load = code_digest(), os.getloadavg()[0]
    results = []
    for path in sorted((HERE / "questions").glob("*.py")):
        question = importlib.import_module(f"questions.{path.stem}")
        chosen = [
            w for w in question.WORKLOADS if is_asked_for(f"{path.stem} {w.name}", arguments.only)
        ]
        with surroundings_of(question) if chosen else contextlib.nullcontext({}) as environment:
            for workload in chosen:
                print(f"… {workload.name}", file=sys.stderr, flush=True)
                results.append(measure(path.stem, workload, arguments.rounds, environment))

    print(table([HEAD, *map(row, results)]))
    failed = [
        f"{r['workload']}: {name}: {text}" for r in results for name, text in r["failures"].items()
    ]
    different = [f"{r['workload']}: {text}" for r in results for text in r["differences"]]
    if failed:
        print("\nNot measured:", *failed, sep="\n")
    if different:
        print("\nNOT THE SAME WORK:", *different, sep="\n")
    else:
        print("\nWherever several candidates ran, they did the same work.")
    changed = code_digest() != code
    if changed:
        print(
            "THE CODE CHANGED during the run: the figures are of no one version, do not quote them."
        )
    machine = {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load": load,
    }
    measured = {"date": f"{datetime.date.today()}", "rounds": arguments.rounds, "machine": machine}
    report = {**measured, "code": code, "code_changed": changed, "results": results}
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    print(f"Samples and versions: {arguments.json}")
    broken = any(text != NOT_INSTALLED for r in results for text in r["failures"].values())
    sys.exit(bool(different or changed or broken))


if __name__ == "__main__":
    main()
