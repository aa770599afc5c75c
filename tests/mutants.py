"""Mutation testing: small changes of the library's code, one at a time, and the tests that fail.

    python tests/mutants.py map tests.json [tests ...]            which tests run which lines, and
                                                                  how long they take
    python tests/mutants.py try tests.json --count 300 --seed 0   the mutants

The map takes twice as long as the tests and needs ``coverage``. Each mutant is made in a copy of
the tree; the quickest tests that run its line are tried, until one fails (and does not without the
mutant), of lines that run in worker processes alone tests of the module's name, of workers and of
loaders. What survives is printed. ``--seed`` decides what is chosen, ``--packages`` from where.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("core", "dataset", "loader", "workers")
MAX_TESTS = 120  # for one mutant
MAX_SECONDS = 30  # that these take together, by the map
_SWAPS: dict[type, tuple[str, str]]
_SWAPS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Mult: ("*", "+"),
}
_SWAPS |= {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mod: ("%", "//"),
}
_SWAPS |= {ast.Is: (" is ", " is not "), ast.IsNot: (" is not ", " is "), ast.FloorDiv: ("//", "*")}
_SWAPS |= {
    ast.In: (" in ", " not in "),
    ast.NotIn: (" not in ", " in "),
    ast.And: (" and ", " or "),
    ast.Or: (" or ", " and "),
}


@dataclass(frozen=True)
class Mutant:
    """A change of the code from ``start`` to ``stop``, offsets in the bytes of ``file``."""

    file: str
    line: int
    start: int
    stop: int
    old: str
    new: str


def mutants_of(path: Path) -> Iterator[Mutant]:
    """All changes of the functions in a file; of texts, types and messages, none."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def change(
        first: ast.expr | ast.stmt, last: ast.expr | ast.stmt, new: str, *, between: bool = False
    ) -> Mutant:
        start = starts[first.lineno - 1] + first.col_offset
        stop = starts[last.end_lineno - 1] + last.end_col_offset
        if between:
            start = starts[first.end_lineno - 1] + first.end_col_offset
            stop = starts[last.lineno - 1] + last.col_offset
        old = source[start:stop].decode()
        line = source.count(b"\n", 0, start) + 1
        return Mutant(str(path.relative_to(ROOT)), line, start, stop, old, new)

    def swapped(op: ast.AST, left: ast.expr, right: ast.expr) -> Iterator[Mutant]:
        if type(op) in _SWAPS:
            old, new = _SWAPS[type(op)]
            found = change(left, right, "", between=True)
            if found.old.count(old) == 1 and "#" not in found.old:
                yield Mutant(
                    found.file,
                    found.line,
                    found.start,
                    found.stop,
                    found.old,
                    found.old.replace(old, new),
                )

    def visit(node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert):
            return
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                yield from swapped(op, left, right)
            case ast.BinOp(left=left, op=op, right=right):
                yield from swapped(op, left, right)
            case ast.BoolOp(op=op, values=[left, right]):
                yield from swapped(op, left, right)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield change(node, node, ast.unparse(operand))
            case ast.Constant(value=bool() as value):
                yield change(node, node, str(not value))
            case ast.Constant(value=int() as value):
                yield change(node, node, str(value + 1))
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield change(value, value, "None")
            case ast.Expr(value=ast.Call()):
                yield change(node, node, "pass")
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if not isinstance(
                test, ast.Constant
            ):
                yield change(test, test, f"not ({ast.unparse(test)})")
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child)

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name not in ("__repr__", "__str__"):
            for statement in node.body:
                yield from visit(statement)


def chosen(packages: list[str], count: int, seed: int) -> list[Mutant]:
    """``count`` mutants of different lines, each line as likely as another."""
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            for mutant in dict.fromkeys(mutants_of(path)):
                by_line.setdefault((mutant.file, mutant.line), []).append(mutant)
    rng = random.Random(seed)
    return [rng.choice(by_line[line]) for line in rng.sample(sorted(by_line), count)]


class Map:
    """A plugin of pytest that notes for every test which lines it runs and how long it takes."""

    def __init__(self, packages: list[str]) -> None:
        import coverage

        self.seconds: dict[str, float] = {}
        # Under the names by which the editable install finds the files.
        self._coverage = coverage.Coverage(
            data_file=None, source=[str(ROOT / package) for package in packages]
        )
        self._coverage.start()
        self._tracer = sys.gettrace()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        sys.settrace(self._tracer)  # a test that traced by itself has ended ours
        start = time.monotonic()
        yield
        self.seconds[item.nodeid] = time.monotonic() - start

    def save(self, path: Path) -> None:
        """Keeps the quickest tests of each line: first one of each function, then others."""
        self._coverage.stop()
        data = self._coverage.get_data()
        lines: dict[str, dict[int, list[str]]] = {}
        for file in data.measured_files():
            found = lines[str(Path(file).resolve().relative_to(ROOT))] = {}
            for line, tests in data.contexts_by_lineno(file).items():
                found[line] = _in_turn(filter(self.seconds.get, tests), self.seconds)
        path.write_text(json.dumps({"seconds": self.seconds, "lines": lines}))


class Copy:
    """A copy of the tree, in which mutants are tested, one at a time, by children of this
    process.
    """

    def __init__(self, folder: Path, tests: dict[str, Any]) -> None:
        self.root = folder / "tree"
        self._tests = tests
        self._fail_anyway: dict[str, bool] = {}
        files = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
        ).stdout
        for name in files.decode().split("\0")[:-1]:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.root / name)
        package = folder / "path" / "gristmill"  # what the editable install maps, for this copy
        package.mkdir(parents=True)
        for path in (self.root / "api").iterdir():
            (package / path.name).symlink_to(path)
        for init in self.root.glob("*/__init__.py"):
            if init.parent.name != "api":
                (package / init.parent.name).symlink_to(init.parent)
        self._path = str(package.parent)

    def first_to_fail(self, tests: list[str]) -> str | None:
        """Which of ``tests`` fails, ``None`` if none does; each has 60 s, all together four times
        what the map says, and 60 s.
        """
        report = self.root.parent / "report.txt"
        report.write_text("")
        pid = os.fork()
        if pid == 0:
            status = 99
            try:
                status = self._run(tests, report)
            finally:
                sys.stdout.flush()
                os._exit(status)
        deadline = (
            time.monotonic() + 60 + 4 * sum(self._tests["seconds"].get(test, 1) for test in tests)
        )
        while not (ended := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < deadline:
            time.sleep(0.02)
        if not ended[0]:
            os.killpg(pid, 9)
            os.waitpid(pid, 0)
        if ended[0] and os.waitstatus_to_exitcode(ended[1]) in (0, 5):
            return None
        last = report.read_text().splitlines()
        # it hangs or crashes before any test: nothing can be imported
        return last[-1] if last else tests[0]

    def _run(self, tests: list[str], report: Path) -> int:
        """Runs tests in this process, which is a child; its exit status."""
        os.setpgid(0, 0)
        os.chdir(self.root)
        # see conftest.py
        os.environ.update(PYTHONPATH=self._path, PYTHONDONTWRITEBYTECODE="mutants")
        sys.path.insert(0, self._path)
        with (self.root.parent / "output.txt").open("w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        return int(
            pytest.main(
                ["-x", "-q", "-p", "no:cacheprovider", "--timeout=60", *tests],
                plugins=[_Report(report)],
            )
        )

    def killer(self, mutant: Mutant) -> str | None:
        path = self.root / mutant.file
        source = path.read_bytes()
        tests = self._tests_of(mutant)
        while tests:
            path.write_bytes(source[: mutant.start] + mutant.new.encode() + source[mutant.stop :])
            try:
                found = self.first_to_fail(tests)
            finally:
                path.write_bytes(source)
            if found is None or not self._fails_anyway(found):
                return found
            tests.remove(found)
        return None

    def _fails_anyway(self, test: str) -> bool:
        if test not in self._fail_anyway:
            self._fail_anyway[test] = self.first_to_fail([test]) is not None
        return self._fail_anyway[test]

    def _tests_of(self, mutant: Mutant) -> list[str]:
        seconds: dict[str, float] = self._tests["seconds"]
        lines = self._tests["lines"].get(mutant.file, {})
        tests: list[str] = next(
            (
                lines[str(line)]
                for line in range(mutant.line, mutant.line - 4, -1)
                if str(line) in lines
            ),
            [],
        )
        if not tests:
            near = (
                Path(mutant.file).stem,
                "tests/workers/",
                "tests/loader/",
                "tests/dataset/test_mp_prefetch",
            )
            tests = [
                test
                for name in near
                for test in sorted(seconds, key=seconds.__getitem__)
                if name in test
            ]
        chosen, total = [], 0.0
        for test in dict.fromkeys(tests):
            total += seconds[test]
            if chosen and total > MAX_SECONDS:
                break
            chosen.append(test)
        return [test for test in chosen if not self._fail_anyway.get(test)]


class _Report:
    """Notes the test that runs."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._path.write_text(nodeid)


def make_map(path: Path, packages: list[str], options: list[str]) -> None:
    plugin = Map(packages)
    pytest.main(
        ["-q", "-p", "no:cacheprovider", "-m", "not slow", "--timeout=600", *options],
        plugins=[plugin],
    )
    plugin.save(path)


def _in_turn(tests: Iterable[str], seconds: dict[str, float]) -> list[str]:
    """The quickest tests: first one of each function, then others."""
    first: dict[str, str] = {}
    others = []
    for test in sorted(tests, key=seconds.__getitem__):
        if first.setdefault(test.partition("[")[0], test) != test:
            others.append(test)
    return [*first.values(), *others][:MAX_TESTS]


def try_mutants(tests: dict[str, Any], mutants: list[Mutant], out: Path, jobs: int) -> None:
    for name in ("jax", "numpy"):  # what most tests import: children have it already
        importlib.import_module(name)

    with tempfile.TemporaryDirectory() as name:
        pids = []
        for job in range(jobs):
            if pid := os.fork():
                pids.append(pid)
                continue
            try:
                copy = Copy(Path(name) / str(job), tests)
                results = []
                for number in range(job, len(mutants), jobs):
                    mutant = mutants[number]
                    results.append(
                        {"number": number, **asdict(mutant), "killer": copy.killer(mutant)}
                    )
                    if results[-1]["killer"] is None:
                        print(
                            f"survives: {mutant.file}:{mutant.line}: {mutant.old!r} ->"
                            f" {mutant.new!r}",
                            flush=True,
                        )
                    (Path(name) / f"{job}.json").write_text(json.dumps(results))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        for pid in pids:
            os.waitpid(pid, 0)
        results = [
            result
            for job in range(jobs)
            for result in json.loads((Path(name) / f"{job}.json").read_text())
        ]
    out.write_text(json.dumps(sorted(results, key=lambda result: result["number"]), indent=1))
    print(f"{sum(result['killer'] is not None for result in results)} of {len(results)} killed")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["map", "try"])
    parser.add_argument(
        "tests", type=Path, nargs="+", help="the file of the map, and for it what to run"
    )
    parser.add_argument("--packages", nargs="+", default=PACKAGES)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("mutants.json"))
    options, others = parser.parse_known_args()
    if options.command == "map":
        tests = [*others, *map(str, options.tests[1:])]
        make_map(options.tests[0], options.packages, tests)
    else:
        try_mutants(
            json.loads(options.tests[0].read_text()),
            chosen(options.packages, options.count, options.seed),
            options.out,
            options.jobs,
        )


if __name__ == "__main__":
    main()
