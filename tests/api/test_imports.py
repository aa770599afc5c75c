"""What importing gristmill brings along, and which way imports go inside."""

import ast
import configparser
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def run(script: str) -> list[str]:
    process = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    return process.stdout.splitlines()


HEAVY = {
    *("absl", "array_record", "etils", "jax", "jaxlib", "orbax", "pandas", "prometheus_client", "pyarrow"),
    *("tensorflow", "tensorflow_datasets", "torch"),
}
TOUCH = {
    "nothing": "",
    "DataLoader": "gristmill.DataLoader",
    "MapDataset": "gristmill.MapDataset",
    "everything that loads nothing": """
for name in dir(gristmill):
    if 'Checkpoint' not in name:  # they register with Orbax
        getattr(gristmill, name)
""",
    "a loader at work": """
list(gristmill.load([1, 2, 3], num_epochs=1, shuffle=True, seed=0, batch_size=2))
list(gristmill.MapDataset.range(9).shuffle(seed=1).map(lambda x: {'x': [x]}).batch(2))
""",
}


@pytest.mark.parametrize("touch", TOUCH)
def test_no_optional_package_is_imported(touch):
    script = f"import sys, gristmill\n{TOUCH[touch]}\nprint(sorted({HEAVY} & sys.modules.keys()))"
    assert run(script) == ["[]"]


def test_importing_alone_imports_no_machinery():
    """The facade is lazy: what a program does not use costs it nothing."""
    (loaded,) = run("import sys, gristmill; print(*sorted(m for m in sys.modules if m.startswith('gristmill')))")
    assert loaded.split() == ["gristmill"]


BLOCK = """
import importlib.abc, sys

class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Block())
"""


def test_a_missing_orbax_is_named_with_its_extra():
    lines = run(
        BLOCK.format(names=["orbax"])
        + """
import gristmill
handler = gristmill.checkpoint.CheckpointHandler
for place, name in (
    (gristmill.checkpoint, "CheckpointSave"),
    (gristmill.checkpoint, "CheckpointRestore"),
    (gristmill.python, "PyGrainCheckpointSave"),
    (gristmill, "GrainCheckpointRestore"),
):
    try:
        getattr(place, name)
    except ImportError as error:
        print(error)
"""
    )
    assert len(lines) == 4
    for line, name in zip(lines, ("Save", "Restore", "Save", "Restore"), strict=True):
        assert f"gristmill.checkpoint.Checkpoint{name} needs the package orbax-checkpoint" in line
        assert "pip install 'gristmill[orbax]'" in line


def test_the_main_job_needs_numpy_and_cloudpickle_only():
    lines = run(
        BLOCK.format(names=["jax", "orbax", "absl", "etils", "pyarrow", "array_record", "tensorflow", "torch", "google"])
        + """
import gristmill as grain
import gristmill.python, gristmill.experimental, gristmill.checkpoint
loader = grain.load(range(7), shuffle=True, seed=1, num_epochs=1, batch_size=3)
it = iter(loader)
print(next(it).tolist(), grain.sharding.ShardByJaxProcess())
print([x.tolist() for x in it])
"""
    )
    assert lines == [
        "[5, 2, 6] ShardByJaxProcess(shard_index=0, shard_count=1, drop_remainder=False)",
        "[[0, 4, 1], [3]]",
    ]


# From the bottom to the top; a package may import those of lower levels, and itself.
LEVELS = [
    {"core"},
    {"samplers", "sources", "transforms", "workers"},
    {"dataset"},
    {"checkpoint", "loader"},
    {"diagnostics", "testing"},
    {"api"},
]


def package_folders() -> dict[str, Path]:
    """The folder of every package in the distribution."""
    options = configparser.ConfigParser()
    options.read(REPOSITORY / "setup.cfg")
    lines = options["options"]["package_dir"].split("\n")
    mapped = dict([part.strip() for part in line.split("=")] for line in lines if line.strip())
    folders = {}
    for package in options["options"]["packages"].split():
        root, rest = package, ""
        while root not in mapped:
            root, _, last = root.rpartition(".")
            rest = f"{last}/{rest}"
        folders[package] = REPOSITORY / mapped[root] / rest
    return folders


def imported(path: Path) -> set[str]:
    """The gristmill modules that a file imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "gristmill" else set()
            names.add(node.module or "")
    return {name for name in names if name.partition(".")[0] == "gristmill"}


def level_of(package: str) -> int:
    return next(level for level, packages in enumerate(LEVELS) if package in packages)


def test_imports_go_one_way():
    seen = set()
    for package, folder in package_folders().items():
        home = folder.relative_to(REPOSITORY).parts[0]
        for path in folder.glob("*.py"):
            for name in imported(path):
                parts = name.split(".")
                other = parts[1] if len(parts) > 1 else ""
                known = set().union(*LEVELS) - {"api"}
                other = other if other in known else "api"
                if name == "gristmill":
                    continue  # its names are looked at one by one
                seen.add((home, other))
                assert other == home or level_of(other) < level_of(home), f"{path} imports {name} ({package})"
    assert {("core", "core"), ("dataset", "core"), ("loader", "dataset"), ("api", "loader")} <= seen


def test_an_upward_import_would_be_seen(tmp_path):
    (tmp_path / "x.py").write_text("def f():\n    from gristmill.loader import load\n    import gristmill.dataset.apply\n")
    assert imported(tmp_path / "x.py") == {"gristmill.loader", "gristmill.dataset.apply"}
    assert level_of("loader") > level_of("dataset") > level_of("core")


def test_the_wheel_holds_every_package():
    listed = {folder.resolve() for folder in package_folders().values()}
    top = {"api", *set().union(*LEVELS)}
    there = {
        path.parent.resolve() for name in top if (REPOSITORY / name).is_dir() for path in (REPOSITORY / name).rglob("__init__.py")
    }
    assert listed == there
    for name in top:
        for path in (REPOSITORY / name).rglob("*.py"):
            assert path.parent.resolve() in listed, f"{path} is in no package"
    assert (REPOSITORY / "api" / "py.typed").is_file()


def test_only_known_folders_hold_packages():
    """A new top-level package must be placed in the order of imports."""
    top = {"api", *set().union(*LEVELS)}
    others = {"tests", "examples", "benchmarks", "docs", "build", "dist", "out"}
    for path in REPOSITORY.glob("*/*.py"):
        name = path.parent.name
        assert name in top | others or name.startswith("."), name
