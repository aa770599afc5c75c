"""The language model: texts of a row are kept apart, and training again from the checkpoint gives the same losses."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(script: Path, *args: object, status: int = 0) -> str:
    command = [sys.executable, str(script), *map(str, args)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
def test_a_restored_run_has_the_losses_of_the_one_that_went_on(tmp_path: Path) -> None:
    output = run_example(EXAMPLES / "train_language_model.py", "--out", tmp_path, "--steps", 30)
    once, again = [re.findall(r"step +(\d+)  loss ([\d.]+)", part) for part in output.split("back to step 15\n")]
    assert [int(step) for step, _ in once] == list(range(0, 30, 3))
    assert float(once[-1][1]) < float(once[0][1]) - 1.5
    assert once[5:] == again
    assert float(re.findall(r"([\d.]+)% of all cells are filled", output)[0]) > 90
    assert re.search(r"---- a function, generated\n.*\S.*---- a docstring, generated\n.*\S.*----", output, re.DOTALL)
    assert "losses after going back: bit-identical" in output
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    (state,) = (tmp_path / "checkpoints/15/data").glob("process_0-of-1.json")
    assert {"parent", "next_row", "counter"} <= json.loads(state.read_text()).keys()
    assert state.stat().st_size < 1000


def test_the_example_notices_that_the_data_were_not_restored(tmp_path: Path) -> None:
    for name in ["language_model.py", "train_language_model.py"]:
        text = (EXAMPLES / name).read_text()
        (tmp_path / name).write_text(text.replace(', "data": grain.checkpoint.CheckpointRestore(batches)', ""))
    assert "CheckpointRestore" not in (tmp_path / "train_language_model.py").read_text()
    output = run_example(tmp_path / "train_language_model.py", "--out", tmp_path, "--steps", 4, status=1)
    assert "losses after going back: DIFFERENT" in output


def test_texts_of_a_row_do_not_see_one_another(tmp_path: Path) -> None:
    assert "3 texts in one row, and alone: largest difference of logits" in run_example(EXAMPLES / "language_model.py")

    text = (EXAMPLES / "language_model.py").read_text()
    without = text.replace("(segments[:, :, None] == segments[:, None, :]) & ", "")
    assert without != text
    (tmp_path / "language_model.py").write_text(without)
    run_example(tmp_path / "language_model.py", status=1)
