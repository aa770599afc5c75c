"""The example of decoding images: the diagnosis names the slow stage, and its advice changes no element."""

import re
import sys

import pytest
from test_examples import EXAMPLES, PNG, run_example

SMALL = ["--images", "12", "--size", "64", "--seconds", "0.3", "--step-ms", "0"]


def test_both_verdicts_and_the_same_batches(tmp_path):
    output = run_example("decode_images.py", *SMALL, "--workers", 2, "--out", tmp_path)
    before, after = output.split("\nafter, with 2 workers: ")
    assert before.startswith("before: Bound by the transform RandomMapMapDataset(transform=Decode)")
    assert after.startswith(("Bound by ", "Too little to tell"))  # how fast workers are does not decide
    assert re.fullmatch(r"after is [\d.]+ times as fast as before; the batches of both: identical", output.splitlines()[-1])
    assert len([*(tmp_path / "12x64").glob("*.jpg")]) == 12
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
