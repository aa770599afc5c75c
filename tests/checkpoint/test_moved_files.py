"""Files that lie elsewhere are the same data; other files are refused by name."""

import itertools
import json
import random
import shutil

import pyarrow
import pyarrow.parquet
import pytest
from operations import operation
from tfrecords import framed

import gristmill
from gristmill.checkpoint import CheckpointHandler
from gristmill.core.errors import StateMismatchError
from gristmill.experimental import FlatMapTransform, InterleaveIterDataset, ParquetIterDataset, TFRecordIterDataset

array_record = pytest.importorskip("array_record.python.array_record_module")
HANDLER = CheckpointHandler()


def write(folder, kind="array_record", num_files=2, first=0, num_records=5, size=4):
    folder.mkdir()
    for i in range(num_files):
        path = folder / f"{first + i}.{kind}"
        records = [random.Random(f"{i} {k}").randbytes(size) for k in range(num_records)]
        if kind == "array_record":
            writer = array_record.ArrayRecordWriter(str(path), "group_size:1")
            for record in records:
                writer.write(record)
            writer.close()
        elif kind == "tfrecord":
            path.write_bytes(b"".join(map(framed, records)))
        else:
            pyarrow.parquet.write_table(pyarrow.table({"x": records}), path, row_group_size=2)


def paths(folder):
    return [str(path) for path in sorted(folder.iterdir(), key=lambda path: int(path.stem))]


def records_of(folder, ranges=""):
    return gristmill.ArrayRecordDataSource([path + ranges for path in paths(folder)])


def chain_of(folder, ranges=""):
    return gristmill.MapDataset.source(records_of(folder, ranges))


def loader_of(source, *operations):
    sampler = gristmill.IndexSampler(4, shuffle=True, seed=1, num_epochs=1)
    return iter(gristmill.DataLoader(data_source=source, sampler=sampler, operations=operations))


TWICE = operation(FlatMapTransform, "flat_map", lambda x: [x, x], max_fan_out=2)
LOADERS = {
    "loader": lambda folder, ranges="": loader_of(records_of(folder, ranges)),
    "loader, items": lambda folder, ranges="": loader_of(records_of(folder, ranges), TWICE),
    "loader, chain": lambda folder, ranges="": loader_of(chain_of(folder, ranges).map(len)),
}
OF_ARRAY_RECORDS = {
    **LOADERS,
    "chain": lambda folder: iter(chain_of(folder).shuffle(seed=1)),
    "stream": lambda folder: iter(chain_of(folder).to_iter_dataset().window_shuffle(3, seed=1)),
}
PIPELINES = {
    **{("array_record", name): make for name, make in OF_ARRAY_RECORDS.items()},
    ("tfrecord", "batch"): lambda folder: iter(TFRecordIterDataset(paths(folder)).batch(2, batch_fn=list)),
    ("parquet", ""): lambda folder: iter(ParquetIterDataset(paths(folder))),
    ("tfrecord", "interleave"): lambda folder: iter(
        InterleaveIterDataset([TFRecordIterDataset(path) for path in paths(folder)], cycle_length=2)
    ),
}


def rest(it):
    return [str(element) for element in it]


@pytest.mark.parametrize(("pipeline", "num_files"), [*zip([*PIPELINES] * 2, itertools.cycle([1, 2, 12]))])
def test_moved_files_are_the_same_data(pipeline, num_files, tmp_path):
    kind, make = pipeline[0], PIPELINES[pipeline]
    write(tmp_path / "old", kind, num_files)
    it = make(tmp_path / "old")
    next(it), next(it), next(it)
    HANDLER.save(tmp_path, it)
    state, expected = it.get_state(), rest(it)
    shutil.move(tmp_path / "old", tmp_path / "new")
    assert rest(HANDLER.restore(tmp_path, make(tmp_path / "new"))) == expected
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


def check_refused(it, words, take):
    before = it.get_state()
    with pytest.raises(StateMismatchError, match=words) as refusal:
        take()
    assert "__repr__" not in str(refusal.value)
    assert it.get_state() == before


@pytest.mark.parametrize("name", OF_ARRAY_RECORDS)
def test_other_files_are_refused_by_name(name, tmp_path):
    make = OF_ARRAY_RECORDS[name]
    write(tmp_path / "old")
    it = make(tmp_path / "old")
    next(it)
    HANDLER.save(tmp_path, it)
    for kind, (changed, named) in OTHERS.items():
        write(tmp_path / kind, **changed)
        other = make(tmp_path / kind)
        length_is_named = "length of" if "chain" in name or name == "stream" else "nothing else"
        check_refused(other, f"{named}|{length_is_named}", lambda other=other: HANDLER.restore(tmp_path, other))
        if name in LOADERS:
            check_refused(other, named, lambda other=other: other.set_state(it.get_state()))


@pytest.mark.parametrize("name", LOADERS)
def test_other_records_of_the_same_files_are_refused_and_states_without_files_are_about_paths(name, tmp_path):
    """Grain's text for a source has no ranges, and a hash of the paths."""
    make = LOADERS[name]
    write(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    state = make(tmp_path / "old", "[0:2]").get_state()
    make(tmp_path / "new", "[0:2]").set_state(state)
    other = make(tmp_path / "old", "[1:3]")
    check_refused(other, r"file 0.* '0.array_record\[0:2\], .* '0.array_record\[1:3\], ", lambda: other.set_state(state))
    it, again, moved = make(tmp_path / "old"), make(tmp_path / "old"), make(tmp_path / "new")
    next(it)
    without_files = json.loads(it.get_state())
    del without_files["data_source_files"]
    again.set_state(without_files)
    assert rest(again) == rest(it)
    words = r"elsewhere.*only a hash of the paths.*validate_state=False"
    check_refused(moved, words, lambda: moved.set_state(without_files))


def test_of_many_files_a_state_tells_some_and_a_checkpoint_more(tmp_path):
    write(tmp_path / "old", num_files=30)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    write(tmp_path / "larger", num_files=21, size=50_000)
    shutil.copy(tmp_path / "larger" / "20.array_record", tmp_path / "new")
    it, other = [loader_of(records_of(tmp_path / folder)) for folder in ("old", "new")]
    assert len(it.get_state()) < 1024
    check_refused(other, r"file 3.* '27 more, SHA-1 .* '27 more, SHA-1 ", lambda: other.set_state(it.get_state()))
    HANDLER.save(tmp_path, it)
    check_refused(other, r"file 20.* '20.array_record\[0:5\], \d+ bytes'", lambda: HANDLER.restore(tmp_path, other))
    shutil.rmtree(tmp_path / "new")  # a description that says nothing of files is about their paths
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    make, file = OF_ARRAY_RECORDS["chain"], tmp_path / "pipeline_0-of-1.json"
    HANDLER.save(tmp_path, make(tmp_path / "old"))
    without_files = json.loads(file.read_text(), object_hook=lambda x: {key: x[key] for key in x if key != "source_files"})
    assert ".array_record" in file.read_text() and ".array_record" not in json.dumps(without_files)
    file.write_text(json.dumps(without_files))
    HANDLER.restore(tmp_path, make(tmp_path / "old"))
    moved = make(tmp_path / "new")
    check_refused(moved, "only a hash of the paths", lambda: HANDLER.restore(tmp_path, moved))
