"""All examples are short, say how to run them, and are run by a test and shown on the site."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_short_run_and_shown(example):
    lines = example.read_text().splitlines()
    assert len(lines) < 120
    assert lines[0].startswith('"""')
    assert any(f"python examples/{example.name}" in line for line in lines)
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert f"{example.name}" in tests or f"{example.stem}" in tests
    assert f"../examples/{example.name}" in (ROOT / "docs/examples.md").read_text()
