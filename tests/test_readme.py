"""The code of the README works when pasted."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_code_blocks_run_from_top_to_bottom(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 5
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks))
    result = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "(32, 8, 8)"
    assert lines[1] == "2 [1 5 2 4]"
    assert lines[-2] == "(8, 1024) True"
    assert lines[-1] == "[0, 1, 4, 9, 16, 25, 36, 49]"


def test_the_loops_are_as_short_as_promised():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    loop, _, chain, mixture, workers = [[line for line in block.splitlines() if line.strip()] for block in blocks]
    assert len(loop) <= 12
    assert len(chain) <= 12
    assert len(mixture) <= 10
    assert len(workers) <= 3
