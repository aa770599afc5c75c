"""How much the tests notice: small changes of the library's code, one at a time, and whether a test fails.

    python tests/mutants.py --count 300 --seed 0 --jobs 2 --out mutants.json

Each mutant is made in a copy of the tree and tested there, nearest tests first, until one fails. What survives prints its line
and its change. Choice and change follow from ``--seed`` and the code alone. Not part of the tests: it takes hours.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("core", "dataset", "loader", "workers")
# After the files of the tests that name the module, until one fails or the time is over.
STAGES = (
    ("laws", "vectors"),
    ("dataset", "core"),
    ("properties", "loader", "workers"),
    ("checkpoint", "faults", "samplers", "transforms", "testing", "sources"),
)
_SWAPS: dict[type, tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: (" is ", " is not "),
    ast.IsNot: (" is not ", " is "),
    ast.In: (" in ", " not in "),
    ast.NotIn: (" not in ", " in "),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
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

    def change(first: ast.expr | ast.stmt, last: ast.expr | ast.stmt, new: str, *, between: bool = False) -> Mutant:
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
                yield Mutant(found.file, found.line, found.start, found.stop, found.old, found.old.replace(old, new))

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
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Constant):
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


def chosen(count: int, seed: int) -> list[Mutant]:
    """``count`` mutants of different lines, each line as likely as another."""
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for mutant in dict.fromkeys(mutants_of(path)):
                by_line.setdefault((mutant.file, mutant.line), []).append(mutant)
    rng = random.Random(seed)
    return [rng.choice(by_line[line]) for line in rng.sample(sorted(by_line), count)]


class Copy:
    """A copy of the tree, in which mutants are tested."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
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
        self._env = {**os.environ, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}

    def fails(self, tests: list[str], seconds: float) -> str | None:
        """What fails of ``tests``: the name of a test, or that it hangs; ``None`` if nothing does in that time."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--timeout=40"]
        process = subprocess.Popen(
            [*command, "-m", "not slow", *tests], cwd=self.root, env=self._env, text=True, process_group=0,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return None
        if process.returncode in (0, 5):
            return None
        failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return failed[0][:150] if failed else f"exit status {process.returncode}"

    def killed_by(self, mutant: Mutant, seconds: float) -> str | None:
        path = self.root / mutant.file
        source = path.read_bytes()
        path.write_bytes(source[: mutant.start] + mutant.new.encode() + source[mutant.stop :])
        try:
            deadline = time.monotonic() + seconds
            done: set[str] = set()
            for tests in stages_for(mutant, self.root):
                new = [test for test in tests if test not in done]
                done.update(new)
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                found = self.fails(new, left) if new else None
                if found is not None:
                    return found
            return None
        finally:
            path.write_bytes(source)


def stages_for(mutant: Mutant, root: Path) -> Iterator[list[str]]:
    """Files of tests: those that bear the module's name, those that import it, and then all."""
    stem = Path(mutant.file).stem
    module = "gristmill." + mutant.file.removesuffix(".py").replace("/", ".")
    files = sorted((root / "tests").rglob("test_*.py"))
    names = {file: str(file.relative_to(root)) for file in files}
    yield [names[file] for file in files if stem in file.stem]
    yield [names[file] for file in files if module in file.read_text() and "guides" not in names[file]]
    for folders in STAGES:
        yield [names[file] for file in files if file.parent.name in folders]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=240, help="for each mutant")
    parser.add_argument("--out", type=Path, default=Path("mutants.json"))
    options = parser.parse_args()
    mutants = chosen(options.count, options.seed)
    copies: SimpleQueue[Copy] = SimpleQueue()
    results = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as threads:
        for i in range(options.jobs):
            copies.put(Copy(Path(folder) / str(i)))

        def test(mutant: Mutant) -> tuple[Mutant, str | None]:
            copy = copies.get()
            try:
                return mutant, copy.killed_by(mutant, options.seconds)
            finally:
                copies.put(copy)

        for mutant, killer in threads.map(test, mutants):
            results.append({**asdict(mutant), "killer": killer})
            options.out.write_text(json.dumps(results, indent=1))
            if killer is None:
                print(f"survives: {mutant.file}:{mutant.line}: {mutant.old!r} -> {mutant.new!r}", flush=True)
    num_killed = sum(result["killer"] is not None for result in results)
    print(f"{num_killed} of {len(results)} killed")


if __name__ == "__main__":
    main()
