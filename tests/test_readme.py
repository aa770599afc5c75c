"""The first screen of the README: its code works when pasted and prints what it says."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_code_of_the_first_screen_prints_what_it_says(tmp_path):
    screen, *_ = README.read_text().split("\n## ")
    (code,) = re.findall("```python\n(.*?)```", screen, re.DOTALL)
    (output,) = re.findall("```text\n(.*?)```", screen, re.DOTALL)
    script = tmp_path / "readme.py"
    script.write_text(code)
    command = [sys.executable, script]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    assert result.stdout == output
    # A sentence, three bullets, an install line, twelve lines of code, one picture.
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    assert screen.count("\n- ") == 3 and screen.count("![") == 1
    assert "```python" not in README.read_text().removeprefix(screen)
