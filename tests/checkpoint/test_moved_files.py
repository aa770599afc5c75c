"""Files that lie elsewhere are the same data; other files are refused by name."""

import json
import random
import shutil

import pytest

import gristmill
from gristmill.checkpoint import CheckpointHandler
from gristmill.core.errors import StateMismatchError
from gristmill.experimental import InterleaveIterDataset, ParquetIterDataset, TFRecordIterDataset
from gristmill.sources.crc32c import masked_crc32c

pytest.importorskip("array_record")
HANDLER = CheckpointHandler()


def write_array_record(path, records):
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


def write_tfrecord(path, records):
    with path.open("wb") as file:
        for record in records:
            size = len(record).to_bytes(8, "little")
            size_crc, data_crc = [int(crc).to_bytes(4, "little") for crc in masked_crc32c([size, record])]
            file.write(size + size_crc + record + data_crc)


def write_parquet(path, records):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"x": records}), path, row_group_size=2)


WRITERS = {"array_record": write_array_record, "tfrecord": write_tfrecord, "parquet": write_parquet}


def write(folder, kind, num_files=2, first="0", num_records=5, size=4):
    """Files ``<first>.<kind>``, …, each with so many records of so many bytes."""
    folder.mkdir()
    for i in range(num_files):
        records = [random.Random(f"{i} {k}").randbytes(size) for k in range(num_records)]
        WRITERS[kind](folder / f"{int(first) + i}.{kind}", records)


def paths(folder):
    return [str(path) for path in sorted(folder.iterdir(), key=lambda path: int(path.stem))]


def array_record(folder):
    return gristmill.ArrayRecordDataSource(paths(folder))


def loader_of(source, *operations):
    sampler = gristmill.IndexSampler(4, shuffle=True, seed=1, num_epochs=1)
    return iter(gristmill.DataLoader(data_source=source, sampler=sampler, operations=operations))


class Twice(gristmill.experimental.FlatMapTransform):
    max_fan_out = 2

    def flat_map(self, element):
        return [element, element]


PIPELINES = {
    "loader": ("array_record", lambda folder: loader_of(array_record(folder))),
    "loader, items": ("array_record", lambda folder: loader_of(array_record(folder), Twice())),
    "loader, chain": ("array_record", lambda folder: loader_of(gristmill.MapDataset.source(array_record(folder)).map(len))),
    "chain": ("array_record", lambda folder: iter(gristmill.MapDataset.source(array_record(folder)).shuffle(seed=1))),
    "stream": (
        "array_record",
        lambda folder: iter(gristmill.MapDataset.source(array_record(folder)).to_iter_dataset().window_shuffle(3, seed=1)),
    ),
    "tfrecord": ("tfrecord", lambda folder: iter(TFRecordIterDataset(paths(folder)).batch(2, batch_fn=list))),
    "parquet": ("parquet", lambda folder: iter(ParquetIterDataset(paths(folder)))),
    "interleave": (
        "tfrecord",
        lambda folder: iter(InterleaveIterDataset([TFRecordIterDataset(path) for path in paths(folder)], cycle_length=2)),
    ),
}
OF_ARRAY_RECORDS = [name for name, (kind, _) in PIPELINES.items() if kind == "array_record"]
LOADERS = [name for name in PIPELINES if name.startswith("loader")]


def rest(it):
    return [str(element) for element in it]


@pytest.mark.parametrize("num_files", [1, 2, 12])
@pytest.mark.parametrize("name", PIPELINES)
def test_moved_files_are_the_same_data(name, num_files, tmp_path):
    kind, make = PIPELINES[name]
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    write(tmp_path / "old", kind, num_files)
    it = make(tmp_path / "old")
    for _ in range(3):
        next(it)
    (tmp_path / "checkpoint").mkdir()
    HANDLER.save(tmp_path / "checkpoint", it)
    state, expected = it.get_state(), rest(it)
    shutil.move(tmp_path / "old", tmp_path / "new")
    assert rest(HANDLER.restore(tmp_path / "checkpoint", make(tmp_path / "new"))) == expected
    again = make(tmp_path / "new")
    again.set_state(state)
    assert rest(again) == expected


# What differs, and how it is named.
OTHERS = {
    "name": ({"first": 7}, r"file 0.* '0.array_record\[0:5\], \d+ bytes'.* '7.array_record\[0:5\], \d+ bytes'"),
    "size": ({"size": 50_000}, r"file 0.* '0.array_record\[0:5\], \d+ bytes'.* '0.array_record\[0:5\], \d+ bytes'"),
    "count": ({"num_records": 6}, r"file 0.* '0.array_record\[0:5\], \d+ bytes'.* '0.array_record\[0:6\], \d+ bytes'"),
    "number": ({"num_files": 3}, r"file 2.* nothing.* '2.array_record\[0:5\], \d+ bytes'"),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", OF_ARRAY_RECORDS)
def test_other_files_are_refused_by_name(name, other, tmp_path):
    _, make = PIPELINES[name]
    changed, named = OTHERS[other]
    write(tmp_path / "old", "array_record")
    write(tmp_path / "new", "array_record", **changed)
    it, other = make(tmp_path / "old"), make(tmp_path / "new")
    next(it)
    (tmp_path / "checkpoint").mkdir()
    HANDLER.save(tmp_path / "checkpoint", it)
    before = other.get_state()
    length_is_named = "length of" if "chain" in name or name == "stream" else "nothing else"
    with pytest.raises(StateMismatchError, match=f"{named}|{length_is_named}") as refusal:
        HANDLER.restore(tmp_path / "checkpoint", other)
    assert "__repr__" not in str(refusal.value)
    if name in LOADERS:
        with pytest.raises(StateMismatchError, match=named) as refusal:
            other.set_state(it.get_state())
        assert "__repr__" not in str(refusal.value)
    assert other.get_state() == before


@pytest.mark.parametrize("name", LOADERS)
def test_other_records_of_the_same_files_are_refused(name, tmp_path):
    """Grain's text for a source has no ranges."""
    write(tmp_path / "files", "array_record")

    def make(ranges):
        source = gristmill.ArrayRecordDataSource([path + ranges for path in paths(tmp_path / "files")])
        return loader_of(gristmill.MapDataset.source(source).map(len) if "chain" in name else source)

    state = make("[0:2]").get_state()
    make("[0:2]").set_state(state)
    with pytest.raises(StateMismatchError, match=r"file 0.* '0.array_record\[0:2\], .* '0.array_record\[1:3\], "):
        make("[1:3]").set_state(state)


def test_of_many_files_a_state_tells_some_and_a_checkpoint_more(tmp_path):
    write(tmp_path / "old", "array_record", num_files=30)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    write_array_record(tmp_path / "new" / "20.array_record", [random.Random(1).randbytes(50_000)] * 5)
    it, other = [loader_of(array_record(tmp_path / folder)) for folder in ("old", "new")]
    assert len(it.get_state()) < 1024
    with pytest.raises(StateMismatchError, match=r"file 3.* '27 more, SHA-1 .* '27 more, SHA-1 "):
        other.set_state(it.get_state())
    HANDLER.save(tmp_path, it)
    with pytest.raises(StateMismatchError, match=r"file 20.* '20.array_record\[0:5\], \d+ bytes'"):
        HANDLER.restore(tmp_path, other)


@pytest.mark.parametrize("name", LOADERS)
def test_states_that_say_nothing_of_files_are_about_their_paths(name, tmp_path):
    """Those of Grain, which have a hash of the paths."""
    write(tmp_path / "old", "array_record")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    _, make = PIPELINES[name]
    it = make(tmp_path / "old")
    next(it)
    state = json.loads(it.get_state())
    del state["data_source_files"]
    again = make(tmp_path / "old")
    again.set_state(state)
    assert rest(again) == rest(it)
    with pytest.raises(StateMismatchError, match=r"elsewhere.*only a hash of the paths.*validate_state=False") as refusal:
        make(tmp_path / "new").set_state(state)
    assert "__repr__" not in str(refusal.value)


def without_files(value):
    return {key: part for key, part in value.items() if key != "source_files"}


def test_descriptions_that_say_nothing_of_files_are_about_their_paths(tmp_path):
    write(tmp_path / "old", "array_record")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    _, make = PIPELINES["chain"]
    HANDLER.save(tmp_path, make(tmp_path / "old"))
    file = tmp_path / "pipeline_0-of-1.json"
    text = json.dumps(json.loads(file.read_text(), object_hook=without_files))
    assert ".array_record" in file.read_text() and ".array_record" not in text
    file.write_text(text)
    HANDLER.restore(tmp_path, make(tmp_path / "old"))
    with pytest.raises(StateMismatchError, match="only a hash of the paths"):
        HANDLER.restore(tmp_path, make(tmp_path / "new"))
