"""The examples, run as a reader runs them: as programs of their own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(500)  # programs that train: on a busy machine they take long
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PNG = b"\x89PNG\r\n\x1a\n"
SAME, DIFFERENT = (f"batches, losses and parameters: {found}" for found in ("bit-identical", "DIFFERENT"))


def run_example(name: str | Path, *args: object, status: int = 0, python: tuple[object, ...] = (sys.executable,)) -> str:
    """Runs the example and returns what it prints, after checking its exit status."""
    command = [*map(str, python), str(EXAMPLES / name), *map(str, args)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout


def accuracy_in(output: str) -> float:
    return float(re.findall(r"([\d.]+)%", output)[-1])


def steps_in(log: Path) -> list[str]:
    return [line.split()[0] for line in log.read_text().splitlines()]


def steps(*ranges: tuple[int, int]) -> list[str]:
    """The steps that a log has if training went through these."""
    return [str(step) for first, last in ranges for step in range(first, last + 1)] + ["final"]


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_short_run_and_shown(example: Path) -> None:
    lines = example.read_text().splitlines()
    assert len(lines) < 120
    assert lines[0].startswith('"""')
    assert any(f"python examples/{example.name}" in line for line in lines)
    assert example.stem in "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert f"../examples/{example.name}" in (ROOT / "docs/examples.md").read_text()


@pytest.mark.slow
def test_training_digits_tells_the_whole_story(tmp_path: Path) -> None:
    output = run_example("train_digits_story.py", "--out", tmp_path)
    assert "stopping hard after step 200" in output
    assert re.search("resuming after step (80|160)", output)  # 160 may still have been on its way to the disk
    assert SAME in output
    assert accuracy_in(output) > 95
    assert len(set(re.findall(r"final parameters (\w+)", output))) == 1
    for picture in ["loss.png", "digits.png"]:
        assert (tmp_path / picture).read_bytes().startswith(PNG)


@pytest.mark.slow
def test_an_interrupted_run_resumes_by_running_again_and_a_difference_is_noticed(tmp_path: Path) -> None:
    args = ["--out", tmp_path, "--steps", 40, "--save-every", 10, "--seed", 7]
    # Twice, the second time while the checkpoint of step 30 is being written.
    interrupted = ["train_digits.py", *args, "--name", "resumed", "--interrupt-at"]
    assert "stopping hard after step 25" in run_example(*interrupted, 25, status=3)
    assert re.search("resuming after step (10|20)", run_example(*interrupted, 30, status=3))

    output = run_example("train_digits_story.py", *args)
    assert re.search("resuming after step (20|30)", output)
    assert SAME in output
    runs = tmp_path / "seed7-batch64-workers0"
    assert steps_in(runs / "uninterrupted/log.txt") == steps((1, 40))
    log = runs / "resumed/log.txt"
    assert len(steps_in(log)) > 41  # some steps were trained more than once
    state = next((runs / "resumed/checkpoints").glob("40/data/process_0-of-1.json"))
    assert "seed=7" in state.read_text()

    args = ["--out", tmp_path, "--steps", 12, "--save-every", 5]
    run_example("train_digits.py", *args, "--name", "resumed", "--interrupt-at", 8, status=3)
    log = tmp_path / "seed0-batch64-workers0/resumed/log.txt"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:3]) + lines[3][:-2] + "?\n" + "".join(lines[4:]))  # the digest of one batch
    assert DIFFERENT in run_example("train_digits_story.py", *args, status=1)


@pytest.mark.slow
def test_training_digits_with_workers(tmp_path: Path) -> None:
    output = run_example("train_digits_story.py", "--out", tmp_path, "--steps", 160, "--save-every", 25, "--workers", 2)
    assert "stopping hard after step 80" in output
    assert re.search(r"resuming after step \d+", output)
    assert SAME in output
    assert len(steps_in(tmp_path / "seed0-batch64-workers2/uninterrupted/log.txt")) == 161


def test_training_digits_alone_goes_on_where_it_stopped(tmp_path: Path) -> None:
    half = tmp_path / "records.partial"
    half.mkdir()
    (half / "train-00000-of-00004.array_record").write_bytes(b"half a file")
    args = ["--out", tmp_path, "--steps", 14, "--save-every", 5]
    run_example("train_digits.py", *args, "--interrupt-at", 12, status=3)
    assert not half.exists()  # what was half written is written again
    shards = sorted(path.name for path in (tmp_path / "records").iterdir())
    assert shards == ["test-00000-of-00001.array_record"] + [f"train-{i:05}-of-00004.array_record" for i in range(4)]

    output = run_example("train_digits.py", *args)
    (resumed_after,) = re.findall("run: resuming after step (5|10)", output)
    assert accuracy_in(output) > 0
    assert steps_in(tmp_path / "seed0-batch64-workers0/run/log.txt") == steps((1, 12), (int(resumed_after) + 1, 14))


def test_a_loader_of_digits_goes_on_at_a_position(tmp_path: Path) -> None:
    output = run_example("digits_loader.py", "--out", tmp_path)
    assert "1437 records of 65 bytes in 4 files" in output
    assert "the second batch, and that of a new loader at its position: bit-identical" in output
    assert (tmp_path / "digits.png").read_bytes().startswith(PNG)


def test_tfds_data_sets_are_read_without_tensorflow(tmp_path: Path) -> None:
    output = run_example("tfds_source.py", "--out", tmp_path)
    assert "ArrayRecordDataSource(name=digit_scans, split='train', decoders=None)" in output
    assert "1437 of 1437 training images" in output
    assert "360 of 360 test images" in output
    assert "TensorFlow imported: False" in output
    assert accuracy_in(output) > 80
    assert (tmp_path / "digit_scans/1.0.0/features.json").exists()


PYTORCH = ROOT / ".peers/torch/bin/python"


@pytest.mark.skipif(not PYTORCH.exists(), reason=f"PyTorch is not installed at {PYTORCH} (run `make peers`)")
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_killed_run_of_pytorch_ends_with_the_same_bits(tmp_path: Path, workers: int) -> None:
    args = ["--out", tmp_path, "--workers", workers, "--steps", 180, "--save-every", 50]
    output = run_example("train_pytorch.py", *args, python=(PYTORCH, "-W", "error"))
    assert "trained again: ended by signal 9 after step 105" in output
    assert "resuming after step 100" in output
    assert SAME in output
    assert int(re.findall(r"(\d+)% of the points", output)[0]) > 55  # a third by guessing
    assert steps_in(tmp_path / "straight/log.txt") == steps((1, 180))
    assert steps_in(tmp_path / "killed/log.txt") == steps((1, 105), (101, 180))
    batches = [line.split()[2] for line in (tmp_path / "straight/log.txt").read_text().splitlines()[:-1]]
    assert len(set(batches)) == 180  # also in the second epoch and after it: 47 batches are one
