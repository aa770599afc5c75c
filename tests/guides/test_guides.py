"""The code of the guides runs from top to bottom and prints what its comments say."""

import contextlib
import io
import re
from pathlib import Path

import pytest

GUIDES = sorted((Path(__file__).parents[2] / "docs/guides").glob("*.md"))
_REMARK = re.compile(r"(?:^|  )# (.*)$")


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_blocks_print_what_they_say(guide, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL)
    assert len(blocks) > 5
    namespace = {"__name__": guide.stem}
    num_checked = 0
    for block in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, f"{guide.name}: {block.splitlines()[0]}", "exec"), namespace)
        said = [match[1] for match in map(_REMARK.search, block.splitlines()) if match]
        assert printed.getvalue().splitlines() == said, block
        num_checked += len(said)
    assert num_checked > 5
