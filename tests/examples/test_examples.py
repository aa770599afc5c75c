"""The examples, run as a reader runs them: as programs of their own; and their checks notice what
is wrong.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest
from refusing import assert_raises

import gristmill as grain

pytestmark = pytest.mark.timeout(500)  # programs that train: on a busy machine they take long
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PNG = b"\x89PNG\r\n\x1a\n"
SAME = "batches, losses and parameters: bit-identical"


def run_example(
    name: str | Path, *args: object, status: int = 0, python: tuple[object, ...] = (sys.executable,)
) -> str:
    """Runs the example and returns what it prints, after checking its exit status."""
    command = [*map(str, python), str(EXAMPLES / name), *map(str, args)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """Runs of one example compile the same functions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        yield


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
    assert len(lines) < 200
    assert lines[0].startswith('"""')
    assert any(f"python examples/{example.name}" in line for line in lines)
    assert example.stem in Path(__file__).read_text()
    assert f"../examples/{example.name}" in (ROOT / "docs/examples.md").read_text()


@pytest.mark.slow
def test_training_digits_is_stopped_and_resumed(tmp_path: Path) -> None:
    half = tmp_path / "records.partial"
    half.mkdir()
    (half / "train-00000-of-00004.array_record").write_bytes(b"half a file")
    args = ["--steps", 160, "--save-every", 40, "--seed", 7, "--workers", 1]
    output = run_example("train_digits_story.py", "--out", tmp_path, *args)
    assert not half.exists()  # what was half written is written again
    shards = sorted(path.name for path in (tmp_path / "records").iterdir())
    assert shards == ["test-00000-of-00001.array_record"] + [
        f"train-{i:05}-of-00004.array_record" for i in range(4)
    ]
    # It stops while the checkpoint of this step is being written.
    assert "stopping hard after step 80" in output
    assert re.search("resuming after step (40|80)", output)
    assert SAME in output
    assert accuracy_in(output) > 90
    skipped = re.findall(r"(\d+) of (\d+) records skipped", output)
    assert skipped == 2 * [skipped[0]]  # the counts are in the checkpoint
    assert int(skipped[0][0]) in (7, 8)
    assert len(set(re.findall(r"final parameters (\w+)", output))) == 1
    runs = tmp_path / "seed7-batch64-workers1"
    assert steps_in(runs / "uninterrupted/log.txt") == steps((1, 160))
    assert len(steps_in(runs / "resumed/log.txt")) in (161, 201)
    state = next((runs / "resumed/checkpoints").glob("160/data/process_0-of-1.json"))
    assert "seed=7" in state.read_text()
    for picture in ["loss.png", "digits.png"]:
        assert (tmp_path / picture).read_bytes().startswith(PNG)


@pytest.mark.slow
def test_a_loader_of_digits_continues_at_a_position(tmp_path: Path) -> None:
    output = run_example("digits_loader.py", "--out", tmp_path)
    assert "1437 records of 65 bytes in 4 files" in output
    assert re.search(
        r"in an epoch 1 record is skipped: .*cannot read record 39 of .*train-00002-of-00004",
        output,
    )
    assert "the next batch, and that of a new loader at its position: bit-identical" in output
    assert (tmp_path / "digits.png").read_bytes().startswith(PNG)


def test_a_run_continues_with_tokens_of_another_format(tmp_path: Path) -> None:
    output = run_example("tokens_from_files.py", "--out", tmp_path)
    num_documents, num_tokens, num_windows = map(
        int, re.findall(r"(\d+) documents, (\d+) tokens, (\d+) windows", output)[0]
    )
    assert num_documents > 100 and num_windows == (num_tokens - 1) // 64
    assert output.count("the same") == 2 and "labels are inputs moved by one: True" in output
    assert re.search(r"[1-9]\d+ batches after the state, resumed: bit-identical", output)
    assert {path.name for path in tmp_path.iterdir()} == {
        "train.bin",
        "train-megatron.bin",
        "train-megatron.idx",
        "state.json",
    }


@pytest.mark.slow
def test_tfds_data_sets_are_read_without_tensorflow(tmp_path: Path) -> None:
    output = run_example("tfds_source.py", "--out", tmp_path)
    assert "ArrayRecordDataSource(name=digit_scans, split='train', decoders=None)" in output
    assert "1437 of 1437 training images" in output
    assert "360 of 360 test images" in output
    assert "TensorFlow imported: False" in output
    assert accuracy_in(output) > 80
    assert (tmp_path / "digit_scans/1.0.0/features.json").exists()


PYTORCH = ROOT / ".peers/torch/bin/python"


@pytest.mark.skipif(
    not PYTORCH.exists(), reason=f"PyTorch is not installed at {PYTORCH} (run `make peers`)"
)
@pytest.mark.slow
def test_a_killed_run_of_pytorch_ends_with_the_same_bits(tmp_path: Path) -> None:
    args = ["--out", tmp_path, "--workers", 2, "--steps", 180, "--save-every", 50]
    output = run_example("train_pytorch.py", *args, python=(PYTORCH, "-W", "error"))
    assert "trained again: ended by signal 9 after step 105" in output
    assert "resuming after step 100" in output
    assert SAME in output
    assert int(re.findall(r"(\d+)% of the points", output)[0]) > 55  # a third by guessing
    assert steps_in(tmp_path / "straight/log.txt") == steps((1, 180))
    assert steps_in(tmp_path / "killed/log.txt") == steps((1, 105), (101, 180))
    batches = [
        line.split()[2] for line in (tmp_path / "straight/log.txt").read_text().splitlines()[:-1]
    ]
    assert len(set(batches)) == 180  # also in the second epoch and after it: 47 batches are one


@pytest.mark.slow
def test_a_run_whose_actors_are_killed_ends_with_the_same_bits() -> None:
    output = run_example("train_on_ray.py", "--steps", 200, "--kills", 2)
    assert "2 nodes with 4 CPUs, at 127.0.0.1" in output
    killed = re.findall(r"step (\d+): the actor in process (\d+) is killed", output)
    assert len({process for _, process in killed}) == 2
    assert [int(step) >= due for (step, _), due in zip(killed, (66, 133), strict=True)] == [
        True
    ] * 2
    left_alone, disturbed = re.findall(r"(?:left alone|2 killed): parameters (\w{16})", output)
    assert left_alone == disturbed
    assert SAME in output


WORDS = [
    b"fir\n",
    b"\n",
    b"a longer line, which is as long as several frames are taken together\n",
    b"oak elm\n",
] * 20


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import custom_parts

    return custom_parts


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_bytes(b"".join(WORDS))
    return path


def test_it_resumes_in_the_middle(file):
    output = run_example("custom_parts.py", "--file", file)
    assert output.startswith(
        f"Lines('words.txt', 80 lines, {file.stat().st_size} bytes): source, sampler and stage"
        " conform\n"
    )
    done, of, next_index = map(
        int, re.findall(r'after (\d+) of (\d+) .*"next_index": (\d+)', output)[0]
    )
    assert done == of // 2 and 0 < next_index < 160
    assert output.endswith("resumed in the middle: bit-identical\n")


def test_frames_and_a_loader_read_in_the_order_of_the_sampler(parts, file):
    in_order = sorted(WORDS, key=len)
    text = b"".join(batch.astype(np.uint8).tobytes() for batch in parts.make_pipeline(file))
    assert len(text) == 2 * len(b"".join(WORDS)) // 64 * 64
    assert text == b"".join(in_order * 2)[: len(text)]
    lines = parts.Lines(file)
    shard = grain.sharding.NoSharding()
    loader = grain.DataLoader(
        data_source=lines, sampler=parts.ShortFirst(lines.lengths), shard_options=shard
    )
    assert [line.tobytes() for line in loader] == in_order


def test_a_careless_iterator_is_noticed(parts, file, monkeypatch):
    def set_state(self, state):
        self._parent.set_state(state["parent"])
        self._buffer, self._delivered = [], 0

    monkeypatch.setattr(parts.FrameIterator, "set_state", set_state)
    pipeline = parts.make_pipeline(file)
    assert_raises(
        AssertionError,
        r"broken law: .*Found: ",
        grain.testing.assert_iter_dataset_conforms,
        pipeline,
    )


SMALL = ["--images", "12", "--size", "64", "--seconds", "0.3", "--step-ms", "0"]


@pytest.mark.slow
def test_both_verdicts_and_the_same_batches(tmp_path):
    # On a busy machine, small photos and short times give other verdicts.
    args = [*SMALL, "--size", 256, "--seconds", 1, "--workers", 2, "--out", tmp_path]
    output = run_example("decode_images.py", *args)
    before, after = output.split("\nafter, with 2 workers: ")
    assert before.startswith("before: Bound by the transform RandomMapMapDataset(transform=Decode)")
    # how fast workers are does not decide
    assert after.startswith(("Bound by ", "Too little to tell"))
    assert re.fullmatch(
        r"after is [\d.]+ times as fast as before; the batches of both: identical",
        output.splitlines()[-1],
    )
    (faults,) = re.findall(
        r"^(\d+) of 128 photos skipped: OSError: image file is truncated \(.*\)$",
        output,
        re.MULTILINE,
    )
    assert int(faults) >= 10  # a broken file in each epoch of 12
    assert len([*(tmp_path / "12x256").glob("*.jpg")]) == 12
    assert (tmp_path / "verdicts.png").read_bytes().startswith(PNG)


def test_other_batches_are_noticed(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(EXAMPLES)
    import decode_images

    def change_in_workers(photos, num_workers):
        ds = make_batches(photos, 0)
        return ds.map(lambda batch: 255 - batch) if num_workers else ds

    make_batches = decode_images.make_batches
    monkeypatch.setattr(decode_images, "make_batches", change_in_workers)
    monkeypatch.setattr(sys, "argv", ["decode_images.py", *SMALL, "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as exit:
        decode_images.main()
    assert exit.value.code
    assert capsys.readouterr().out.endswith("DIFFERENT\n")


@pytest.mark.slow
def test_a_restored_run_has_the_losses_of_the_one_that_went_on(tmp_path: Path) -> None:
    output = run_example("train_language_model.py", "--out", tmp_path, "--steps", 30)
    once, again = [
        re.findall(r"step +(\d+)  loss ([\d.]+)", part)
        for part in output.split("back to step 15\n")
    ]
    assert [int(step) for step, _ in once] == list(range(0, 30, 3))
    assert float(once[-1][1]) < float(once[0][1]) - 1.5
    assert once[5:] == again
    assert float(re.findall(r"([\d.]+)% of all cells are filled", output)[0]) > 90
    assert re.search(
        r"---- a function, generated\n.*\S.*---- a docstring, generated\n.*\S.*----",
        output,
        re.DOTALL,
    )
    assert "losses after going back: bit-identical" in output
    assert (tmp_path / "loss.png").read_bytes().startswith(PNG)
    (state,) = (tmp_path / "checkpoints/15/data").glob("process_0-of-1.json")
    assert {"parent", "next_row", "counter"} <= json.loads(state.read_text()).keys()
    assert state.stat().st_size < 1000


def changed_copy(folder: Path, name: str, part: str, other: str = "") -> Path:
    text = (EXAMPLES / name).read_text()
    assert part in text
    (folder / name).write_text(text.replace(part, other))
    return folder / name


@pytest.mark.slow
def test_data_that_were_not_restored_are_noticed(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "language_model.py", tmp_path)
    script = changed_copy(
        tmp_path,
        "train_language_model.py",
        '            "data": grain.checkpoint.CheckpointRestore(batches),\n',
    )
    output = run_example(script, "--out", tmp_path, "--steps", 4, status=1)
    assert "losses after going back: DIFFERENT" in output
    assert "3 texts in one row, and alone: largest difference of logits" in run_example(
        "language_model.py"
    )
    run_example(
        changed_copy(
            tmp_path, "language_model.py", "(segments[:, :, None] == segments[:, None, :]) & "
        ),
        status=1,
    )


@contextlib.contextmanager
def started(*args):
    """The example in a session of its own, all of whose processes are gone at the end."""
    command = [sys.executable, str(EXAMPLES / "train_many_processes.py"), *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def check_is_gone(group):
    assert_raises(ProcessLookupError, None, os.killpg, group, 0)


def check_story(folder, count, *args):
    """Runs the example with this number of processes."""
    with started("--out", folder.parent, "--steps", 40, *args) as process:
        output, _ = process.communicate(timeout=250)
        assert process.returncode == 0, output
        check_is_gone(process.pid)
    assert f"{count} processes trained 40 steps, and again, killed after step 20" in output
    # 20 may still have been on its way to the disk. All agree on where they continue.
    assert {*re.findall(r"resuming after step (\d+)", output)} in ({"10"}, {"20"})
    assert SAME in output
    (parameters,) = re.findall("final parameters (.*)", output)
    assert len(parameters.split()) == 2 * count
    assert len(set(parameters.split())) == 1
    names = {f"process_{i}-of-{count}.json" for i in range(count)}
    for step in (30, 40):
        data = folder / "resumed/checkpoints" / str(step) / "data"
        assert {path.name for path in data.glob("process_*")} == names
    rows = []
    for log in (f"log-{i}.txt" for i in range(count)):
        assert steps_in(folder / "undisturbed" / log) == steps((1, 40))
        # with some steps trained twice, if 20 was not complete
        assert len(steps_in(folder / "resumed" / log)) in (41, 51)
        rows += [
            line.split()[2] for line in (folder / "undisturbed" / log).read_text().splitlines()[:-1]
        ]
    # every process has other rows, and other ones in every step
    assert len(set(rows)) == 40 * count


@pytest.mark.slow
def test_two_processes_with_a_dataset(tmp_path):
    check_story(tmp_path / "dataset-2", 2, "--dataset")


@pytest.mark.slow
def test_two_processes_with_a_loader(tmp_path):
    check_story(tmp_path / "loader-2", 2)
    checkpoints = tmp_path / "loader-2/resumed/checkpoints"
    for i in range(2):
        assert (
            f"shard_index={i}, shard_count=2"
            in (checkpoints / f"40/data/process_{i}-of-2.json").read_text()
        )
    # This test is one process, not two.
    it = iter(grain.load(grain.sources.RangeDataSource(0, 9, 1)))
    assert next(it) == 0
    args = ocp.args.Composite(data=grain.checkpoint.CheckpointRestore(it))
    message = r"process_0-of-1.json does not exist: .* written by another number of processes"
    with ocp.CheckpointManager(checkpoints) as manager:
        assert_raises(ValueError, message, manager.restore, 40, args=args)
    assert next(it) == 1
    # Nor can another process, started as on a cluster, continue from the checkpoint of two.
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    args = ["--processes", 1, "--coordinator", address, "--run", checkpoints.parent, "--index", 0]
    with started(*args) as process:
        output, _ = process.communicate(timeout=100)
        assert process.returncode
    assert re.search(
        r"StateMismatchError: File .*/process_0-of-1.json does not exist: .* another number of"
        r" processes",
        output,
    )
    assert "resuming" not in output


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["launcher", "process"])
def test_when_one_is_killed_all_end(tmp_path, killed):
    with started("--out", tmp_path, "--steps", 10**6) as launcher:
        assert any("beginning after step 0" in line for line in launcher.stdout)
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        assert len(children) == 2
        os.kill(launcher.pid if killed == "launcher" else int(children[1]), signal.SIGKILL)
        # To the end of the output: all processes that hold its other end are gone.
        output, _ = launcher.communicate(timeout=60)
        if killed == "process":
            assert launcher.returncode == 1
            assert "a process failed with exit status -9" in output
            check_is_gone(launcher.pid)


@pytest.mark.slow
def test_the_number_of_hosts_changes(tmp_path):
    output = run_example("change_hosts.py", "--out", tmp_path, "--steps", 24, "--hosts", 2, 1, 2)
    assert "24 steps on 1 host, and on 2 → 1 → 2, killed in between" in output and SAME in output
    begun = {count: re.findall(rf"host \d of {count}: (\w+)", output) for count in (2, 1)}
    assert begun == {2: ["beginning"] * 2 + ["resuming"] * 2, 1: ["beginning", "resuming"]}
    for name in ("undisturbed", "changing"):
        logs = {
            line
            for log in (tmp_path / name).glob("log-*.txt")
            for line in log.read_text().splitlines()
        }
        # all hosts, and runs, say the same
        assert {line.split()[0] for line in logs} == {*steps((1, 24))} and len(logs) == 25


@pytest.mark.slow
def test_the_mixture_changes(tmp_path):
    output = run_example("change_mixture.py", "--out", tmp_path)
    texts = dict(re.findall(r"(code|comments|docs) +(\d+) texts", output))
    assert (
        sum(map(int, texts.values())) > 400
        and min(map(int, texts.values())) > 100
        and ", 0 of them not exactly once" in output
    )


def test_rows_of_parquet_files_are_shuffled_within_bounds():
    output = run_example("parquet_rows.py", "--max-bytes", 100_000)
    assert (
        "batches of (500, 16), each of 4 to 4 sensors" in output
        and "resumed: the same 30 batches" in output
    )


def test_bag_records_are_batched_by_length_and_resumed(tmp_path: Path) -> None:
    output = run_example("bag_records.py", "--out", tmp_path / "bags")
    assert int(re.findall(r"(\d+)% of them is padding", output)[0]) < 35
    assert "batches of each length: {9: 5, 16: 6, 32: 9, 64: 5}" in output
    assert "resumed in the middle: 13 batches, bit-identical" in output


@pytest.mark.slow
def test_the_stream_of_hugging_face_is_resumed_in_the_middle():
    pytest.importorskip("datasets")
    assert run_example("hugging_face_stream.py").splitlines() == [
        "12 batches of 90 rows, the first: [59, 15, 2, 10, 61, 55, 6, 52]",
        "stopped after 4 batches",
        "resumed: 8 batches, the first: [56, 16, 62, 5, 64, 58, 65, 0]",
        "the same batches as without the stop; every row once",
    ]


@pytest.mark.slow
def test_writing_that_is_killed_continues(tmp_path):
    assert run_example("prepare_once.py", "--folder", tmp_path).splitlines() == [
        "killed after some of 12 files",
        "continued: wrote the rest, 600 records in all",
        "without a kill, by two workers: the same bytes",
        "6 batches of shape (100, 64)",
    ]


def test_json_lines_are_shuffled_and_resumed(tmp_path):
    # The second time with the indices of the first.
    outputs = [run_example("json_lines.py", "--folder", tmp_path / "reviews") for _ in range(2)]
    assert outputs[0] == outputs[1]
    lines = outputs[0].splitlines()
    assert lines[0].endswith("has 1200 records; the longest line has 92 bytes")
    damage = "reviews-1.jsonl.gz is damaged at byte 0: record 7 of the file, from byte 351 on"
    assert lines[2].startswith(damage)
    assert lines[3].startswith("20 batches have 1199 different records")
    assert lines[4] == "resumed in the middle: the same records"


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_tar_shards_are_shuffled_and_training_resumes(tmp_path, num_workers):
    output = run_example(
        "tar_shards.py", "--records", 40, "--steps", 20, "--workers", num_workers, "--out", tmp_path
    )
    assert (
        "resumed after step 10" in output
        and "320 records in 8 shards" in output
        and "means of both runs: bit-identical" in output
    )
    (discs,) = re.findall(r"discs in the first batch: (\d+) of 32", output)
    assert 5 < int(discs) < 27  # one shard alone has none, or nothing else
    assert int(re.findall(r"(\d+)% of 46 shapes", output)[0]) > 85
    assert len([*tmp_path.glob("*.gmidx")]) == 8
