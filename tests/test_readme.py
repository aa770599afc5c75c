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
    assert lines[:2] == ["(32, 8, 8)", "2 [1 5 2 4]"]
    assert lines[-2:] == ["(8, 1024) True", "[0, 1, 4, 9, 16, 25, 36, 49]"]
    # The loops are as short as promised.
    loop, _, chain, mixture, workers = [[line for line in block.splitlines() if line.strip()] for block in blocks]
    assert len(loop) <= 12 and len(chain) <= 12 and len(mixture) <= 10 and len(workers) <= 3
