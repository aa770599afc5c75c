"""Structure of the library: no import cycles, few uses of other objects' private names, nothing too
long to read.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

from package_files import ROOT, modules, nodes

METHODS = "gristmill.dataset.methods"  # the one file that may know all stages
_MAX_CIRCLE = 3  # files
_MAX_REACHES = 12  # per 1000 lines of code
# Lines without docstrings.
_MAX_CLASS = 250
_MAX_FUNCTION = 60
# The names by which others recognise Grain's classes, and two public classes: the record that
# operations of a loader get, and the record that ``explain`` names.
_SHARED_NAMES = {"MapDataset", "IterDataset", "DataLoader", "Record"}


def parsed(name: str) -> list[ast.AST]:
    """All nodes of the syntax tree of a module."""
    return nodes(modules()[name])


@cache
def imported(name: str) -> set[str]:
    """The modules that one imports, in functions too, but for type checkers."""
    for_checkers = {
        id(inner)
        for node in parsed(name)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in parsed(name):
        if isinstance(node, ast.ImportFrom) and id(node) not in for_checkers:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
        elif isinstance(node, ast.Import) and id(node) not in for_checkers:
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Call) and node.args and "import_module" in ast.unparse(node.func):
            found.add(
                ast.literal_eval(node.args[0]) if isinstance(node.args[0], ast.Constant) else ""
            )
    return found & modules().keys() - {name, "gristmill"}  # the facade knows all, by name


def circles(graph: dict[str, set[str]]) -> Iterator[set[str]]:
    """The sets of modules that lead to one another."""
    reached = {name: {name} for name in graph}
    is_growing = True
    while is_growing:
        is_growing = False
        for name, ends in reached.items():
            more = ends.union(*[graph[end] for end in ends])
            is_growing |= len(more) > len(ends)
            reached[name] = more
    for name in graph:
        circle = {other for other in reached[name] if name in reached[other]}
        if len(circle) > 1 and name == min(circle):
            yield circle


def test_imports_make_no_circles():
    graph = {name: imported(name) - {METHODS} for name in modules() if name != METHODS}
    assert [sorted(circle) for circle in circles(graph) if len(circle) > _MAX_CIRCLE] == []
    # through the methods, there is one
    assert max(map(len, circles({name: imported(name) for name in modules()}))) > 20


def test_datasets_know_nothing_of_diagnostics():
    for name in modules():
        if name.startswith("gristmill.dataset"):
            uses = [node for node in parsed(name) if isinstance(node, ast.ImportFrom | ast.Call)]
            assert "gristmill.diagnostics" not in "".join(map(ast.unparse, uses)), name


def test_few_looks_into_other_objects():
    num_lines, reaches = 0, []
    for name in modules():
        source = modules()[name].read_text().splitlines()
        lines = {i for i, line in enumerate(source, 1) if re.match(r"\s*[^#\s]", line)}
        for node in parsed(name):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                lines -= set(range(node.lineno, (node.end_lineno or 0) + 1))
            is_private = isinstance(node, ast.Attribute) and re.match("_(?!_)", node.attr)
            if is_private and ast.unparse(node.value) not in ("self", "cls", "super()"):
                reaches.append(f"{name}:{node.lineno} {ast.unparse(node)}")
        num_lines += len(lines)
    assert 1000 * len(reaches) <= _MAX_REACHES * num_lines, f"{len(reaches)} in {num_lines} lines"


def test_a_class_name_is_defined_once():
    owners = defaultdict(list)
    for name in modules():
        for node in parsed(name):
            if isinstance(node, ast.ClassDef):
                owners[node.name].append(f"{name}:{node.lineno}")
    doubles = {name: places for name, places in owners.items() if len(places) > 1}
    assert doubles.keys() == _SHARED_NAMES, doubles


def num_documented(node: ast.AST) -> int:
    """The number of lines of docstrings in a class or function."""
    num = 0
    for inner in ast.walk(node):
        if isinstance(
            inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and ast.get_docstring(inner):
            num += (inner.body[0].end_lineno or 0) - inner.body[0].lineno + 1
    return num


def test_nothing_is_too_long_to_read():
    limits = {
        ast.ClassDef: _MAX_CLASS,
        ast.FunctionDef: _MAX_FUNCTION,
        ast.AsyncFunctionDef: _MAX_FUNCTION,
    }
    for name in modules():
        for node in parsed(name):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                num = (node.end_lineno or 0) - node.lineno + 1 - num_documented(node)
                assert num <= limits[type(node)], f"{name}.{node.name} has {num} lines"


def test_finalizers_use_no_names_of_their_modules():
    """Such names may be gone at the end of the interpreter; arguments with defaults are not."""
    found, of_builtins = [], {*vars(builtins)}
    for name in modules():
        for node in parsed(name):
            if isinstance(node, ast.FunctionDef) and node.name == "__del__":
                found.append(name)
                own = {argument.arg for argument in [*node.args.args, *node.args.kwonlyargs]}
                inner = [x for statement in node.body for x in ast.walk(statement)]
                used = {x.id for x in inner if isinstance(x, ast.Name)}
                assert used <= own | of_builtins, (name, used - own - of_builtins)
    assert len(found) > 5


def test_locks_are_those_that_interrupts_do_not_leave_held():
    """See ``core.locks``."""
    kinds = ("Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore")
    refused = {f"threading.{kind}" for kind in kinds}
    for name in modules().keys() - {"gristmill.core.locks"}:
        for node in parsed(name):
            found = set()
            if isinstance(node, ast.Attribute) and node.attr in kinds:
                found = {ast.unparse(node)}
            elif isinstance(node, ast.ImportFrom):
                found = {f"{node.module}.{alias.name}" for alias in node.names}
            assert not found & refused, f"{name}:{node.lineno} uses {found}: see core.locks"


def test_tests_import_no_tests():
    """Helpers of several tests are in modules of their own: a test module runs once, under one
    name.
    """
    importing = re.compile(r"^\s*(?:from|import) test_", re.MULTILINE)
    paths = [*(ROOT / "tests").rglob("*.py")]
    assert [path.name for path in paths if importing.search(path.read_text())] == []


def test_tests_leave_the_path_of_modules_to_pyproject():
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Expr | ast.AugAssign):
                assert "sys.path" not in ast.unparse(node), path


def test_names_of_tests_are_short():
    for path in (ROOT / "tests").rglob("*.py"):
        names = re.findall(r"def (test_\w+)", path.read_text())
        assert [name for name in names if len(name) >= 60] == [], path
