"""Packages that ``import gristmill`` loads, and the directions of imports inside."""

import ast
import configparser
from pathlib import Path

from package_files import ROOT, modules
from programs import output

HEAVY = {
    "absl",
    "array_record",
    "etils",
    "jax",
    "jaxlib",
    "jinja2",
    "markupsafe",
    "orbax",
    "pandas",
    "prometheus_client",
    "pyarrow",
}
HEAVY |= {"tensorflow", "tensorflow_datasets", "torch"}


def test_importing_imports_no_machinery_or_optional_package(tmp_path):
    script = f"""
        import sys, gristmill
        print(*sorted(m for m in sys.modules if m.startswith('gristmill')))
        heavy = lambda: {HEAVY} & sys.modules.keys()
        assert not heavy()
        import gristmill.sources
        assert not heavy() and 'multiprocessing.shared_memory' not in sys.modules
        gristmill.DataLoader, gristmill.MapDataset, gristmill.config.py_debug_mode
        assert not heavy(), heavy()
        list(gristmill.load([1, 2, 3], num_epochs=1, shuffle=True, seed=0, batch_size=2))
        list(gristmill.MapDataset.range(9).shuffle(seed=1).map(lambda x: {{'x': [x]}}).batch(2))
        assert not heavy(), heavy()
        for name in dir(gristmill):
            if 'Checkpoint' not in name:  # they register with Orbax
                getattr(gristmill, name)
        assert not heavy(), heavy()
    """
    assert output(tmp_path, script) == ["gristmill"]


def test_the_main_job_needs_numpy_and_cloudpickle_only(tmp_path):
    script = f"""
        import importlib.abc, sys

        class Block(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name.partition(".")[0] in {HEAVY | {"google"}}:
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

        sys.meta_path.insert(0, Block())
        import gristmill as grain
        import gristmill.python, gristmill.experimental, gristmill.checkpoint
        it = iter(grain.load(range(7), shuffle=True, seed=1, num_epochs=1, batch_size=3))
        print(next(it).tolist(), grain.sharding.ShardByJaxProcess())
        print([x.tolist() for x in it])
    """
    first = "[5, 2, 6] ShardByJaxProcess(shard_index=0, shard_count=1, drop_remainder=False)"
    assert output(tmp_path, script) == [first, "[[0, 4, 1], [3]]"]


# From the bottom to the top; a package may import those of lower levels, and itself.
LEVELS = [{"core"}, {"samplers", "sources", "transforms", "workers"}, {"dataset"}]
LEVELS += [{"checkpoint", "loader", "prepare"}, {"diagnostics", "testing"}, {"api"}]
TOP = set().union(*LEVELS)


def imported(path: Path) -> set[str]:
    """The gristmill modules that a file imports, and names in them, imports for type checkers
    included.
    """
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in [node for node in nodes if isinstance(node, ast.ImportFrom)]:
        assert node.level == 0, f"{path}: relative import"
        names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.startswith("gristmill.")}


def level_of(package: str) -> int:
    return next(level for level, packages in enumerate(LEVELS) if package in packages)


def test_imports_go_one_way_and_an_upward_one_would_be_seen(tmp_path):
    seen = set()
    for path in modules().values():
        home = path.relative_to(ROOT).parts[0]
        for name in imported(path):
            other = name.split(".")[1]
            other = other if other in TOP else "api"
            seen.add((home, other))
            assert other == home or level_of(other) < level_of(home), f"{path} imports {name}"
    assert {("core", "core"), ("dataset", "core"), ("loader", "dataset"), ("api", "loader")} <= seen
    (tmp_path / "x.py").write_text(
        "def f():\n    from gristmill.loader import load\n    import gristmill.dataset.apply\n"
    )
    assert imported(tmp_path / "x.py") == {"gristmill.loader.load", "gristmill.dataset.apply"}
    assert level_of("loader") > level_of("dataset") > level_of("core")


def test_the_wheel_holds_every_package():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    packages = {name for name, path in modules().items() if path.name == "__init__.py"}
    assert {*setup["options"]["packages"].split()} == packages
    assert {name.rpartition(".")[0] for name in modules().keys() - packages} <= packages
    assert {path.relative_to(ROOT).parts[0] for path in modules().values()} == TOP and (
        ROOT / "api" / "py.typed"
    ).is_file()
    # A new top-level package must be placed in the order of imports.
    others = {"tests", "examples", "benchmarks", "docs", "build", "dist", "out"}
    assert [path for path in ROOT.glob("[!.]*/*.py") if path.parent.name not in TOP | others] == []
