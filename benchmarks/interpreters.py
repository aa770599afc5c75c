"""Measures gristmill with several Pythons side by side: ``python benchmarks/interpreters.py
[--publish] COMMAND COMMAND …``.

Each argument is a command that starts a Python in which gristmill is installed, such as
``python3.13`` or ``"env PYTHON_GIL=0 .venv/bin/python"``. As in ``run.py``, each does the work
once, and all must have done the same; then they run in turn. Samples go into
``out/interpreters.json``. With ``--publish`` they also go into ``docs/benchmarks.json``, and the
table into the page.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from run import Candidate, code_digest, figure, table
from workload import Measured, Workload

MEASURED = Path(__file__).parents[1] / "out/interpreters.json"
# Workloads of other questions that measure the overhead per element.
CHOSEN = {
    "map_dataset": [
        "range, shuffle, map, batch(128), no threads",
        "shuffle, map × 3, one by one, default ReadOptions",
        "ds[i] through shuffle, map",
        "random_map, batch(128), no threads",
    ],
    "data_loader": ["DataLoader, defaults, 0 workers, batch 128"],
    "worker_elements": ["integers, mp_prefetch, 2 workers"],
}
NUM_TEXTS = 4_000
TEXTS_AHEAD = 4_000  # more than workers compute while nothing is measured
WORDS = [f"word{i}" for i in range(1000)]
TEXTS = [" ".join(WORDS[i * 7919 % 800 :][:200]) for i in range(500)]


class Tokenizer:
    """Returns the numbers of the 200 words of a text, an array of int32, by a loop in Python."""

    def __init__(self) -> None:
        self.vocabulary = {word: i for i, word in enumerate(WORDS)}

    def __call__(self, text: str) -> np.ndarray:
        ids = []
        for word in text.split():
            ids.append(self.vocabulary[word] + len(word))
        return np.array(ids, np.int32)


def tokenizer(num_workers: int, **options: Any) -> Any:
    """The loop in a stream, by ``num_workers`` workers."""

    def candidate(gristmill: Any) -> Any:
        texts = gristmill.MapDataset.source(TEXTS).repeat()
        ds = texts.to_iter_dataset(gristmill.ReadOptions(0, 0)).map(Tokenizer())
        work = gristmill.MultiprocessingOptions(num_workers, **options)
        elements = iter(ds.mp_prefetch(work))
        taken = [next(elements) for _ in range(TEXTS_AHEAD)]

        def run() -> Measured:
            nonlocal taken
            if taken:
                first, taken = taken, []
                return Measured(0.0, first)
            for _ in range(TEXTS_AHEAD):
                next(elements)
            began = time.perf_counter()
            for _ in range(NUM_TEXTS):
                next(elements)
            return Measured(time.perf_counter() - began, [])

        return run

    return candidate


def tokenizer_workload(name: str, num_workers: int, **options: Any) -> Workload:
    candidates = {"gristmill": tokenizer(num_workers, **options)}
    return Workload(f"tokenizer loop, {name}", "µs/text", 1e6, NUM_TEXTS, candidates, {})


WORKLOADS = [
    *[
        workload
        for question, names in CHOSEN.items()
        for workload in importlib.import_module(f"questions.{question}").WORKLOADS
        if workload.name in names
    ],
    tokenizer_workload("no workers", 0),
    tokenizer_workload("2 processes", 2, executor="processes"),
    tokenizer_workload("2 threads", 2, executor="threads"),
]


def version_of(command: list[str]) -> str:
    """The version of a Python, and whether it runs without the GIL."""
    script = (
        "import gristmill, platform, sys; enabled = getattr(sys, '_is_gil_enabled', lambda:"
        " True)(); print(platform.python_version() + ('' if enabled else ', no GIL'))"
    )
    return subprocess.run(
        [*command, "-c", script], capture_output=True, text=True, check=True
    ).stdout.strip()


def measure(workload: Workload, commands: dict[str, list[str]], rounds: int) -> dict[str, Any]:
    """Runs one workload with all Pythons in turn.

    Raises:
        RuntimeError: one of them failed, or gave other elements.
    """
    with contextlib.ExitStack() as stack:
        running = {}
        for name, command in commands.items():
            errors = stack.enter_context(tempfile.TemporaryFile("w+"))
            running[name] = Candidate(
                "interpreters", workload.name, "gristmill", errors, {}, command
            )
            stack.callback(running[name].close)
        digests = [{**candidate.digest, "version": ""} for candidate in running.values()]
        if any(digest != digests[0] for digest in digests):
            raise RuntimeError(f"{workload.name}: not the same work: {digests}")
        samples: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, candidate in running.items():
                samples[name].append(candidate.figure() * workload.scale / workload.count)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    return {
        "workload": workload.name,
        "unit": workload.unit,
        "medians": medians,
        "samples": samples,
    }


def pythons_table(report: dict[str, Any]) -> str:
    """One row for each workload, one column for each Python."""
    names = list(report["results"][0]["medians"])
    rows = [["workload", *names]]
    for result in report["results"]:
        rows.append(
            [
                f"{result['workload']} [{result['unit']}]",
                *[figure(result["medians"][name]) for name in names],
            ]
        )
    return table(rows)


def pythons_text(report: dict[str, Any]) -> str:
    """The table, and when and how it was measured."""
    measured = (
        f"Measured on {report['date']}, {report['rounds']} rounds, load {report['load']:.2f} before"
        " it began."
    )
    return f"{pythons_table(report)}\n\n{measured}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commands", nargs="+", help="commands that start Pythons")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        help="a part of the names of the workloads to measure",
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="runs of each Python (default: %(default)s)"
    )
    parser.add_argument("--publish", action="store_true", help="write the figures into docs/")
    arguments = parser.parse_args()
    if arguments.publish and arguments.only:
        parser.error("--publish needs all workloads: leave --only out")

    commands = {version_of(command): command for command in map(shlex.split, arguments.commands)}
    machine = {"load": os.getloadavg()[0], "platform": platform.platform(), "cpus": os.cpu_count()}
    results = []
    for workload in WORKLOADS:
        if not arguments.only or any(part in workload.name for part in arguments.only):
            print(f"… {workload.name}", file=sys.stderr, flush=True)
            results.append(measure(workload, commands, arguments.rounds))
    measured = {
        "date": f"{datetime.date.today()}",
        "rounds": arguments.rounds,
        **machine,
        "code": code_digest(),
    }
    report = {**measured, "results": results}
    print(pythons_table(report))
    MEASURED.parent.mkdir(parents=True, exist_ok=True)
    MEASURED.write_text(json.dumps(report, indent=1) + "\n")
    if arguments.publish:
        import publish

        publish.publish_part({"pythons": report})


if __name__ == "__main__":
    main()
