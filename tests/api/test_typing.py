"""Type checkers of users: they follow the installed package and accept the code of the pages."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKERS = {
    "mypy": ["mypy", "--config-file", "mypy.ini"],
    "pyright": ["basedpyright", "--pythonpath", sys.executable],
}
SETTINGS = {
    "mypy.ini": "[mypy]\n[mypy-orbax.*]\nignore_missing_imports = true\n",
    "pyrightconfig.json": '{"typeCheckingMode": "standard"}',
}
# The type of each expression, as both checkers write it.
TYPES = {
    "grain.MapDataset.range(3)[0]": "int",
    "grain.MapDataset.range(3).shuffle(seed=1).repeat(2)[0]": "int",
    "grain.MapDataset.range(3).map(str)[0]": "str",
    "grain.MapDataset.range(3).filter(bool)[0]": "int | None",
    "next(iter(grain.MapDataset.range(3).filter(bool)))": "int",
    "next(iter(grain.MapDataset.range(3).filter(bool).to_iter_dataset()))": "int",
    "next(iter(grain.MapDataset.range(3).map(float).to_iter_dataset().filter(bool)))": "float",
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_checkers_accept_the_pages_and_know_the_types(tmp_path, checker):
    for name, text in SETTINGS.items():
        (tmp_path / name).write_text(text)
    for page in ("README.md", "docs/start.md"):
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        (tmp_path / f"{Path(page).stem.lower()}.py").write_text("\n".join(blocks))
    lines = ["import gristmill as grain", *[f"reveal_type({expression})" for expression in TYPES]]
    (tmp_path / "types_of_elements.py").write_text("\n".join(lines))
    command = [sys.executable, "-m", *CHECKERS[checker], "."]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr
    found = re.findall(
        r'(?:Revealed type is|Type of .* is) "(.*)"', result.stdout.replace("builtins.", "")
    )
    assert found == [*TYPES.values()], result.stdout
