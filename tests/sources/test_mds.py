"""Shards that MosaicML's own library (mosaicml-streaming 0.13, ``MDSWriter``) has written."""

import json
import shutil
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from refusing import assert_raises

import gristmill as grain
from gristmill.dataset.descriptions.equality import are_equal
from gristmill.sources.storage.errors import DamagedFileError

GOLDEN = Path(__file__).parent / "mds_golden"
COMPRESSIONS = ("plain", "gz", "zstd")


def sample(i):
    return {
        "a": np.full((i + 1, 300 if i == 2 else 2), i, np.int16),
        "b": np.full((2,), i / 2, np.float32),
        "c": np.full((2, 3), i, np.uint16),
        "f16": np.float16(i / 4),
        "id": i,
        "j": {"a": [i, None]},
        "raw": bytes([i]),
        "sd": Decimal(i) / 8,
        "sf": i / 3,
        "si": 10**20 + i,
        "text": f"é {i}",
        "u8": np.uint8(i),
    }


def without_pictures(element):
    return {name: value for name, value in element.items() if name not in ("png", "pil", "imgs")}


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_samples_are_those_that_were_written(compression):
    if compression == "zstd":
        pytest.importorskip("zstandard")
    source = grain.MDSSource(GOLDEN, compression)  # a split
    assert len(source) == 5 and f"MDSSource(5 samples, {len(source.paths)} files" in repr(source)
    for keys in ([0, 1, 2, 3, 4], [4, 0, 2, 2]):
        read = source.__getitems__(keys)
        assert are_equal([without_pictures(x) for x in read], [sample(i) for i in keys])
        assert [type(x["u8"]) for x in read] == [np.uint8] * len(keys)
        for picture in [read[-1]["png"], read[-1]["pil"], *read[-1]["imgs"]]:
            assert (np.asarray(picture) == np.full((2, 3, 3), keys[-1] * 20, np.uint8)).all()
    read[0]["a"][:] = 0  # elements may be changed in place
    raw = grain.MDSSource(GOLDEN / compression, decode_images=False, max_bytes=0)
    assert raw[1]["png"].startswith(b"\x89PNG") and len(raw[1]["imgs"]) == 2


def changed_index(folder, **changes):
    index = json.loads((folder / "index.json").read_bytes())
    index["shards"][0].update(changes)
    (folder / "index.json").write_text(json.dumps(index))


def test_damage_and_what_cannot_be_read_are_named(tmp_path):
    def copy(compression):
        shutil.rmtree(tmp_path / "x", ignore_errors=True)
        return Path(shutil.copytree(GOLDEN / compression, tmp_path / "x"))

    assert_raises(
        FileNotFoundError, "MDSWriter has written, perhaps with split=", grain.MDSSource, tmp_path
    )
    for name, content, text in [
        ("index.json", b"{", "no index of MDS"),
        ("index.json", b'{"version": 1, "shards": []}', "must be of version 2"),
        ("index.json", b'{"version": 2, "shards": [3]}', "no index of MDS"),
        ("shard.00000.mds", b"abc", "has 3 bytes, index.json says"),
    ]:
        (copy("plain") / name).write_bytes(content)
        assert_raises(ValueError, text, grain.MDSSource, tmp_path / "x")
    for changes, text in [
        ({"format": "json"}, "shards of format 'json'"),
        ({"version": 3}, "must have shards of version 2, got 3"),
        ({"samples": -1}, "index.json is damaged.*an entry is no shard.*samples"),
        ({"raw_data": None}, "index.json is damaged.*an entry is no shard"),
        ({"column_encodings": ["pkl"] * 15}, "pass allow_pickle=True"),
        ({"column_encodings": ["yaml"] * 15}, "the encoding 'yaml' is not known"),
    ]:
        changed_index(copy("plain"), **changes)
        assert_raises(ValueError, text, grain.MDSSource, tmp_path / "x")
    changed_index(copy("gz"), compression="br:3")
    text = "x/shard.00000.mds.gz has the compression 'br', and those that are known are bz2, gz"
    assert_raises(ValueError, text, grain.MDSSource, tmp_path / "x")
    for compression, place in (("plain", 4), ("gz", 100)):
        path = copy(compression) / f"shard.00000.mds{'' if compression == 'plain' else '.gz'}"
        content = bytearray(path.read_bytes())
        content[place : place + 3] = b"\xff\xff\xff"
        path.write_bytes(content)
        source = grain.MDSSource(tmp_path / "x")
        assert_raises(DamagedFileError, f"{path.name} is damaged", source.__getitem__, 0)
        assert source[4]["id"] == 4
