"""The language model: texts of a row are kept apart, and training again from the checkpoint gives the same losses."""

import json
import re
import shutil
from pathlib import Path

import pytest
from test_examples import EXAMPLES, PNG, run_example


@pytest.mark.slow
def test_a_restored_run_has_the_losses_of_the_one_that_went_on(tmp_path: Path) -> None:
    output = run_example("train_language_model.py", "--out", tmp_path, "--steps", 30)
    once, again = [re.findall(r"step +(\d+)  loss ([\d.]+)", part) for part in output.split("back to step 15\n")]
    assert [int(step) for step, _ in once] == list(range(0, 30, 3))
    assert float(once[-1][1]) < float(once[0][1]) - 1.5
    assert once[5:] == again
    assert float(re.findall(r"([\d.]+)% of all cells are filled", output)[0]) > 90
    assert re.search(r"---- a function, generated\n.*\S.*---- a docstring, generated\n.*\S.*----", output, re.DOTALL)
    assert "losses after going back: bit-identical" in output
    assert (tmp_path / "loss.png").read_bytes().startswith(PNG)
    (state,) = (tmp_path / "checkpoints/15/data").glob("process_0-of-1.json")
    assert {"parent", "next_row", "counter"} <= json.loads(state.read_text()).keys()
    assert state.stat().st_size < 1000


def copy_without(folder: Path, name: str, part: str) -> Path:
    text = (EXAMPLES / name).read_text()
    assert part in text
    (folder / name).write_text(text.replace(part, ""))
    return folder / name


@pytest.mark.slow
def test_the_example_notices_that_the_data_were_not_restored(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "language_model.py", tmp_path)
    script = copy_without(tmp_path, "train_language_model.py", ', "data": grain.checkpoint.CheckpointRestore(batches)')
    output = run_example(script, "--out", tmp_path, "--steps", 4, status=1)
    assert "losses after going back: DIFFERENT" in output


def test_texts_of_a_row_do_not_see_one_another(tmp_path: Path) -> None:
    assert "3 texts in one row, and alone: largest difference of logits" in run_example("language_model.py")
    run_example(copy_without(tmp_path, "language_model.py", "(segments[:, :, None] == segments[:, None, :]) & "), status=1)
