"""The examples, run as a reader runs them: as programs of their own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(500)  # programs that train: on a busy machine they take long
EXAMPLES = Path(__file__).parents[2] / "examples"
PNG = b"\x89PNG\r\n\x1a\n"


def run_example(name: str, *args: object, status: int = 0) -> str:
    """Runs the example and returns what it prints, after checking its exit status."""
    command = [sys.executable, str(EXAMPLES / name), *map(str, args)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout


def accuracy_in(output: str) -> float:
    return float(re.findall(r"([\d.]+)%", output)[-1])


def steps_in(log: Path) -> list[str]:
    return [line.split()[0] for line in log.read_text().splitlines()]


@pytest.mark.slow
def test_training_digits_tells_the_whole_story(tmp_path: Path) -> None:
    output = run_example("train_digits_story.py", "--out", tmp_path)
    assert "stopping hard after step 200" in output
    assert re.search("resuming after step (80|160)", output)  # 160 may still have been on its way to the disk
    assert "batches, losses and parameters: bit-identical" in output
    assert accuracy_in(output) > 95
    assert len(set(re.findall(r"final parameters (\w+)", output))) == 1
    for picture in ["loss.png", "digits.png"]:
        assert (tmp_path / picture).read_bytes().startswith(PNG)


@pytest.mark.slow
def test_an_interrupted_run_resumes_by_running_again(tmp_path: Path) -> None:
    args = ["--out", tmp_path, "--steps", 40, "--save-every", 10, "--seed", 7]
    # Twice, the second time while the checkpoint of step 30 is being written.
    interrupted = ["train_digits.py", *args, "--name", "resumed", "--interrupt-at"]
    assert "stopping hard after step 25" in run_example(*interrupted, 25, status=3)
    assert re.search("resuming after step (10|20)", run_example(*interrupted, 30, status=3))

    output = run_example("train_digits_story.py", *args)
    assert re.search("resuming after step (20|30)", output)
    assert "batches, losses and parameters: bit-identical" in output
    assert steps_in(tmp_path / "seed7-batch64-workers0/uninterrupted/log.txt") == [*map(str, range(1, 41)), "final"]
    assert len(steps_in(tmp_path / "seed7-batch64-workers0/resumed/log.txt")) > 41  # some steps were trained more than once
    state = next((tmp_path / "seed7-batch64-workers0/resumed/checkpoints").glob("40/data/process_0-of-1.json"))
    assert "seed=7" in state.read_text()


@pytest.mark.slow
def test_training_digits_with_workers(tmp_path: Path) -> None:
    output = run_example("train_digits_story.py", "--out", tmp_path, "--steps", 160, "--save-every", 25, "--workers", 2)
    assert "stopping hard after step 80" in output
    assert re.search(r"resuming after step \d+", output)
    assert "batches, losses and parameters: bit-identical" in output
    assert len(steps_in(tmp_path / "seed0-batch64-workers2/uninterrupted/log.txt")) == 161


@pytest.mark.slow
def test_training_digits_notices_a_difference(tmp_path: Path) -> None:
    args = ["--out", tmp_path, "--steps", 12, "--save-every", 5]
    run_example("train_digits.py", *args, "--name", "resumed", "--interrupt-at", 8, status=3)
    log = tmp_path / "seed0-batch64-workers0/resumed/log.txt"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:3]) + lines[3][:-2] + "?\n" + "".join(lines[4:]))  # the digest of one batch
    assert "batches, losses and parameters: DIFFERENT" in run_example("train_digits_story.py", *args, status=1)


def test_training_digits_alone_goes_on_where_it_stopped(tmp_path: Path) -> None:
    args = ["--out", tmp_path, "--steps", 14, "--save-every", 5]
    run_example("train_digits.py", *args, "--interrupt-at", 12, status=3)
    output = run_example("train_digits.py", *args)
    (resumed_after,) = re.findall("run: resuming after step (5|10)", output)
    assert accuracy_in(output) > 0
    steps = steps_in(tmp_path / "seed0-batch64-workers0/run/log.txt")
    assert steps == [*map(str, range(1, 13)), *map(str, range(int(resumed_after) + 1, 15)), "final"]


def test_a_loader_of_digits_goes_on_at_a_position(tmp_path: Path) -> None:
    output = run_example("digits_loader.py", "--out", tmp_path)
    assert "1437 records of 65 bytes in 4 files" in output
    assert "the second batch, and that of a new loader at its position: bit-identical" in output
    assert (tmp_path / "digits.png").read_bytes().startswith(PNG)


def test_records_half_written_are_written_again(tmp_path: Path) -> None:
    half = tmp_path / "records.partial"
    half.mkdir()
    (half / "train-00000-of-00004.array_record").write_bytes(b"half a file")
    run_example("train_digits.py", "--out", tmp_path, "--steps", 4, "--interrupt-at", 2, status=3)
    assert not half.exists()
    shards = sorted(path.name for path in (tmp_path / "records").iterdir())
    assert shards == ["test-00000-of-00001.array_record"] + [f"train-{i:05}-of-00004.array_record" for i in range(4)]


def test_tfds_data_sets_are_read_without_tensorflow(tmp_path: Path) -> None:
    output = run_example("tfds_source.py", "--out", tmp_path)
    assert "ArrayRecordDataSource(name=digit_scans, split='train', decoders=None)" in output
    assert "1437 of 1437 training images" in output
    assert "360 of 360 test images" in output
    assert "TensorFlow imported: False" in output
    assert accuracy_in(output) > 80
    assert (tmp_path / "digit_scans/1.0.0/features.json").exists()
