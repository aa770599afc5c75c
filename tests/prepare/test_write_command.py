"""``python -m gristmill write``."""

import json
import shutil

import numpy as np
import pytest

import gristmill as grain
from gristmill.diagnostics.cli import main

pytest.importorskip("array_record")

PROGRAM = """
import gristmill as grain

def broken(i):
    if i == 7:
        raise KeyError("of the user")
    return b"a"

ds = grain.MapDataset.range(100).map(lambda i: {"id": i, "text": f"document {i}"})
rows = ds.to_iter_dataset().batch(7)
failing = grain.MapDataset.range(10).map(broken)
odd = ds.map(lambda x: {"id": object()})

def encode(row):
    return [int(x) for x in row["text"].encode()]
"""

COMMAND = ["prepare_it.py:ds", "out", "--records-per-file", "30", "--workers", "0"]


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Runs the command in a folder with the program; returns the code, stdout and stderr."""
    (tmp_path / "prepare_it.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        code = main(["write", *arguments])
        return (code, *capsys.readouterr())

    return run


def test_a_pipeline_into_files_in_one_line(call, tmp_path):
    code, out, err = call(*COMMAND)
    assert (code, err) == (0, "") and "wrote 100 records" in out and "gristmill.read(" in out
    assert grain.read("out")[99] == {"id": 99, "text": "document 99"}
    assert "nothing was to be written" in call(*COMMAND)[1]
    code, out, err = call("out", "lines", "--format", "jsonl", "--compression", "zstd")
    assert code == 0 and [*grain.read("lines")] == [*grain.read("out")]


def test_common_conversions(call, tmp_path):
    lines = [json.dumps({"text": f"document {i}"}) for i in range(5)]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines))
    options = ["--map", "prepare_it.py:encode", "--format", "megatron", "--option", "dtype=uint16"]
    assert call("docs.jsonl", "tokens", *options)[0] == 0
    read = grain.read("tokens")
    assert read[3].dtype == np.uint16 and bytes(read[3].tolist()) == b"document 3"
    table = grain.MapDataset.range(9).map(lambda i: {"id": np.int64(i)})
    grain.write(table, "table", format="parquet")
    assert call("table/*.parquet", "records", "--workers", "0")[0] == 0
    assert grain.read("records")[8] == {"id": 8}
    for name in ("cat/a.jpg", "cat/b.v1.JPG", "dog/c.png"):
        (tmp_path / "pictures" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pictures" / name).write_bytes(name.encode())
    assert call("pictures", "shards", "--format", "tar", "--workers", "0")[0] == 0
    pictures = shutil.make_archive("pictures", "zip", "pictures")
    assert call(pictures, "pictures", "--workers", "0")[0] == 0
    assert [x["label"] for x in grain.read("pictures")] == [0, 0, 1]
    expected = {"__key__": "cat/b_v1", "jpg": b"cat/b.v1.JPG", "cls": b"0"}
    assert grain.TarSource("shards/*.tar")[1] == expected
    assert grain.read("shards")[2] == {"__key__": "dog/c", "png": b"dog/c.png", "cls": 1}


def test_hosts_and_a_dry_run(call, tmp_path):
    code, out, _ = call(*COMMAND[:-1], "4", "--dry-run")
    assert code == 0 and "about 100 records" in out and "in 4 files" in out
    assert "with 4 workers" in out
    code, out, _ = call("prepare_it.py:rows", "out", "--dry-run")
    assert code == 0 and "about 15 records" in out
    assert not (tmp_path / "out").exists()
    for index, text in enumerate(["other hosts have not", "read them with"]):
        code, out, _ = call(*COMMAND, "--shard", f"{index}/2")
        assert code == 0 and text in out


def test_what_is_wrong_is_one_line(call, tmp_path):
    for arguments, text in [
        (("prepare_it.py:ds", "out", "--format", "csv"), "format must be one of"),
        (("prepare_it.py:ds", "out", "--option", "group_sise=1"), "group_sise is no option"),
        (("prepare_it.py:ds", "out", "--option", "a"), "--option must be NAME=VALUE"),
        (("prepare_it.py:ds", "out", "--shard", "2/2"), "--shard must be INDEX/COUNT"),
        (
            ("prepare_it.py:ds", "out", "--map", "prepare_it.py:none"),
            "--map: prepare_it.py has no none; its functions are broken, encode\n",
        ),
        (
            ("prepare_it.py:ds", "out", "--map", "prepare_it.py"),
            "--map: a function is named prepare_it.py:<attribute>; its functions are broken, ",
        ),
        (
            ("prepare_it.py:ds", "out", "--map", "prepare_it.py:ds"),
            "must be a function of an element, it is MapDataset of 100 elements: ",
        ),
        (("prepare_it.py:odd", "out"), "cannot be written as array_record"),
        (("prepare_it.py:odd", "out", "--workers", "1"), "cannot be written as array_record"),
        (("none.parquet", "out"), "none.parquet"),
        (("pictures", "out"), "INPUT must be a folder of pictures or of gristmill.write, files "),
        (("/dev/null", "out"), "; /dev/null is of a kind that is not known\n"),
    ]:
        code, out, err = call(*("--workers", "0"), *arguments)
        assert (code, out) == (2, "") and text in err and err.count("\n") == 1
    code, _, err = call("prepare_it.py:failing", "other", "--workers", "0")
    assert code == 1 and "KeyError: 'of the user'" in err and "in broken" in err
