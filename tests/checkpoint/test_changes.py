"""Changes to a pipeline between saving and restoring: allowed ones (components of a mixture,
locations of files) and refused ones.
"""

import itertools
import json
import random
import shutil
from collections import Counter

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from operations import flat, operation
from tfrecords import framed

import gristmill
from gristmill import IterDataset, MapDataset, ReadOptions
from gristmill import experimental as gx
from gristmill.checkpoint import CheckpointHandler
from gristmill.core.errors import StateMismatchError


def mixture(weights):
    """Elements say which component they are of: 1000 and more of b, 2000 and more of c."""
    components = {}
    for name in weights:
        first = 1000 * "abc".index(name)
        components[name] = MapDataset.range(first, first + 1000).to_iter_dataset(
            ReadOptions(num_threads=0)
        )
    return IterDataset.mix(components, weights)


def packed(cls, ds, length, **options):
    return cls(
        ds.map(lambda x: {"x": np.full(x % 3 + 1, x)}), length_struct={"x": length}, **options
    )


# Behind a mixture: what holds nothing of it when it has delivered something.
HOLD_NOTHING = {
    "nothing": lambda ds: ds,
    "map": lambda ds: ds.map(lambda x: x),
    "filter": lambda ds: ds.filter(lambda x: x % 5 != 3),
    "random_map": lambda ds: ds.random_map(lambda x, rng: x, seed=1),
    "batch": lambda ds: ds.batch(3),
    "limit": lambda ds: ds.limit(100),
    "repeat": lambda ds: ds.repeat(2),
    "thread": lambda ds: ds.thread_prefetch(3),
    "zip": lambda ds: gx.ZipIterDataset([ds, ds]).map(lambda pair: pair[0]),
    "mixed again": lambda ds: IterDataset.mix({"a": ds}),
    "interleave": lambda ds: gx.InterleaveIterDataset([ds], cycle_length=1),
}
# What holds something, at nearly every place.
HOLD = {
    "window_shuffle": lambda ds: ds.window_shuffle(4, seed=1),
    "first_fit": lambda ds: packed(gx.FirstFitPackIterDataset, ds, 4, num_packing_bins=3),
    "best_fit": lambda ds: packed(gx.BestFitPackIterDataset, ds, 5, num_packing_bins=3),
    "concat_then_split": lambda ds: packed(gx.ConcatThenSplitIterDataset, ds, 4),
    "rebatch": lambda ds: ds.batch(3).rebatch(2),
    "flat_map": lambda ds: ds.flat_map(lambda x: [x, x + 0.5]),
    "cache": lambda ds: ds.cache(),
}
PACKING = ("first_fit", "best_fit", "concat_then_split")
BEHIND = {
    "nothing": lambda ds: ds,
    "batches": lambda ds: ds.batch(2, batch_fn=list),
    "thread": lambda ds: ds.thread_prefetch(2),
    "workers": lambda ds: ds.multithread_prefetch(num_threads=2, buffer_size=1),
}
CHANGES = [({"a": 1, "b": 2}, {"a": 3, "b": 1}), ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 2})]
CHANGES += [({"a": 1, "b": 2, "c": 1}, {"a": 1, "b": 2}), ({"a": 1, "b": 1}, {"a": 1, "c": 1})]


def check_each_once(delivered, before, after, *, is_packed=False, has_gaps=False):
    """Check that elements of the components that stay came once, without gaps before them."""
    for name in set(before) & set(after):
        first = 1000 * "abc".index(name)
        found = Counter([x for x in delivered if first <= x < first + 1000])
        assert found == {x: x % 3 + 1 if is_packed else 1 for x in found}
        assert has_gaps or sorted(found) == [*range(first, first + len(found))]


@pytest.mark.parametrize("name", HOLD_NOTHING)
def test_where_nothing_is_held_all_components_continue(name):
    step = HOLD_NOTHING[name]
    for (before, after), num in itertools.product(CHANGES, (0, 1, 2, 3, 5, 8, 11)):
        with iter(step(mixture(before))) as it, iter(step(mixture(after))) as other:
            delivered = [x for _ in range(num) for x in flat(next(it))]
            other.set_state(json.loads(json.dumps(it.get_state())), drop=set(before) - set(after))
            delivered += [x for _ in range(12) for x in flat(next(other))]
            check_each_once(delivered, before, after, has_gaps=name == "filter")


# Any two meet.
CASES = [
    (name, behind, (i + i // 4) % 4)
    for i, (name, behind) in enumerate(itertools.product(HOLD, BEHIND))
]


@pytest.mark.parametrize(("name", "behind", "change"), CASES)
def test_a_stage_that_holds_elements_refills_or_refuses(name, behind, change):
    """It refuses where it needs a component that is gone, not knowing for what: a cache, and what
    cuts batches of several.
    """
    (before, after), step = CHANGES[change], HOLD[name]
    gone, num_refused = set(before) - set(after), 0
    for num in range(9):
        it, other, same = [
            iter(BEHIND[behind](step(mixture(weights)))) for weights in (before, after, before)
        ]
        delivered = [x for _ in range(num) for x in flat(next(it))]
        start, state = other.get_state(), json.loads(json.dumps(it.get_state()))
        try:
            other.set_state(state, drop=gone)
        except StateMismatchError as refusal:
            num_refused += 1
            with pytest.raises(StateMismatchError, match="holds elements of components that"):
                raise refusal
            assert "MixedDatasetIterator" in str(refusal) and other.get_state() == start
        else:
            delivered += [x for _ in range(9) for x in flat(next(other))]
            found = Counter(delivered)
            assert all(n <= (x % 3 + 1 if name in PACKING else 1) for x, n in found.items())
            if name == "rebatch" and behind == "nothing":
                check_each_once(delivered, before, after)
        same.set_state(state)
        assert flat(next(same)) == flat(next(it))
        for iterator in (it, other, same):
            iterator.close()
    goes_on = name not in ("cache", "rebatch")
    assert (num_refused > 0) == bool(gone and not goes_on)


HANDLER = CheckpointHandler()


def write(folder, kind="array_record", num_files=2, first=0, num_records=5, size=4):
    folder.mkdir()
    for i in range(num_files):
        path = folder / f"{first + i}.{kind}"
        records = [random.Random(f"{i} {k}").randbytes(size) for k in range(num_records)]
        if kind == "array_record":
            array_record = pytest.importorskip("array_record.python.array_record_module")
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


TWICE = operation(gx.FlatMapTransform, "flat_map", lambda x: [x, x], max_fan_out=2)
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
    ("tfrecord", "batch"): lambda folder: iter(
        gx.TFRecordIterDataset(paths(folder)).batch(2, batch_fn=list)
    ),
    ("parquet", ""): lambda folder: iter(gx.ParquetIterDataset(paths(folder))),
    ("tfrecord", "interleave"): lambda folder: iter(
        gx.InterleaveIterDataset(
            [gx.TFRecordIterDataset(path) for path in paths(folder)], cycle_length=2
        )
    ),
}


def rest(it):
    return [str(element) for element in it]


@pytest.mark.parametrize(
    ("pipeline", "num_files"), [*zip([*PIPELINES] * 2, itertools.cycle([1, 2, 12]))]
)
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
    "name": (
        {"first": 7},
        r"file 0.* '0.array_record\[0:5\], \d+ bytes'.* '7.array_record\[0:5\], \d+ bytes'",
    ),
    "size": (
        {"size": 50_000},
        r"file 0.* '0.array_record\[0:5\], \d+ bytes'.* '0.array_record\[0:5\], \d+ bytes'",
    ),
    "count": (
        {"num_records": 6},
        r"file 0.* '0.array_record\[0:5\], \d+ bytes'.* '0.array_record\[0:6\], \d+ bytes'",
    ),
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
        check_refused(
            other,
            f"{named}|{length_is_named}",
            lambda other=other: HANDLER.restore(tmp_path, other),
        )
        if name in LOADERS:
            check_refused(other, named, lambda other=other: other.set_state(it.get_state()))


@pytest.mark.parametrize("name", LOADERS)
def test_other_records_of_the_same_files_are_refused(name, tmp_path):
    """Grain's text for a source has no ranges, and a hash of the paths."""
    make = LOADERS[name]
    write(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    state = make(tmp_path / "old", "[0:2]").get_state()
    make(tmp_path / "new", "[0:2]").set_state(state)
    other = make(tmp_path / "old", "[1:3]")
    check_refused(
        other,
        r"file 0.* '0.array_record\[0:2\], .* '0.array_record\[1:3\], ",
        lambda: other.set_state(state),
    )
    it, again, moved = make(tmp_path / "old"), make(tmp_path / "old"), make(tmp_path / "new")
    next(it)
    without_files = json.loads(it.get_state())
    del without_files["data_source_files"]
    again.set_state(without_files)
    assert rest(again) == rest(it)
    words = r"another folder.*only a hash of the paths.*validate_state=False"
    check_refused(moved, words, lambda: moved.set_state(without_files))


def test_of_many_files_a_state_names_some_and_a_checkpoint_more(tmp_path):
    write(tmp_path / "old", num_files=30)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    write(tmp_path / "larger", num_files=21, size=50_000)
    shutil.copy(tmp_path / "larger" / "20.array_record", tmp_path / "new")
    it, other = [loader_of(records_of(tmp_path / folder)) for folder in ("old", "new")]
    assert len(it.get_state()) < 1024
    check_refused(
        other,
        r"file 3.* '27 more, SHA-1 .* '27 more, SHA-1 ",
        lambda: other.set_state(it.get_state()),
    )
    HANDLER.save(tmp_path, it)
    check_refused(
        other,
        r"file 20.* '20.array_record\[0:5\], \d+ bytes'",
        lambda: HANDLER.restore(tmp_path, other),
    )
    shutil.rmtree(tmp_path / "new")  # a description that says nothing of files is about their paths
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    make, file = OF_ARRAY_RECORDS["chain"], tmp_path / "pipeline_0-of-1.json"
    HANDLER.save(tmp_path, make(tmp_path / "old"))
    without_files = json.loads(
        file.read_text(), object_hook=lambda x: {key: x[key] for key in x if key != "source_files"}
    )
    assert ".array_record" in file.read_text() and ".array_record" not in json.dumps(without_files)
    file.write_text(json.dumps(without_files))
    HANDLER.restore(tmp_path, make(tmp_path / "old"))
    moved = make(tmp_path / "new")
    check_refused(moved, "only a hash of the paths", lambda: HANDLER.restore(tmp_path, moved))
