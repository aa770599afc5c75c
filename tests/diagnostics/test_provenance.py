"""Particular results of ``explain``, ledgers that were torn or continued, and the commands that
show them.
"""

import itertools
import json
import random
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest
from loaders import AS_RECORDS, DRAW, TO_TUPLE, Kept, make
from refusing import assert_raises
from tfrecords import framed
from users_datasets import BareIterator, BareStream, Plain

from gristmill import (
    DatasetIterator,
    IterDataset,
    Ledger,
    MapDataset,
    MultiprocessingOptions,
    ReadOptions,
    ShardOptions,
    explain,
    observe,
)
from gristmill import experimental as gx
from gristmill.checkpoint import CheckpointHandler
from gristmill.diagnostics.cli import main
from gristmill.diagnostics.provenance import Record
from gristmill.loader import DataLoaderIterator
from gristmill.sources import JsonlSource, RangeDataSource
from gristmill.transforms import Batch


def keys(told):
    return [[record.record_key for record in row.records] for row in told.rows]


def boom(*args):
    raise AssertionError("this element is not needed")


def test_the_fields_of_a_record():
    web = (
        MapDataset.source(RangeDataSource(0, 6, 1))
        .seed(7)
        .shuffle()
        .repeat()
        .random_map(boom, seed=5)
    )
    books = (
        MapDataset.mix([MapDataset.range(9), MapDataset.range(100, 103)], [1, 2]).repeat().map(boom)
    )
    streams = {
        name: ds.to_iter_dataset(allow_nones=True)
        for name, ds in {"web": web, "books": books}.items()
    }
    ds = IterDataset.mix(streams, {"web": 2, "books": 1}).random_map(boom, seed=3).batch(6)
    told = explain(ds, step=5)
    records = [row.records[0] for row in told.rows]
    of_web = [record for record in records if record.component == "web"]
    assert [record.index for record in of_web] == [20, 21, 22, 23] and {
        record.epoch for record in of_web
    } == {3}
    assert [record.record_key for record in of_web] == [web.parents[0][i] for i in range(20, 24)]
    assert of_web[0].source == repr(RangeDataSource(0, 6, 1)) and of_web[0].span is None
    assert [record.seeds for record in of_web] == [
        ((5, record.index), (3, 30 + records.index(record))) for record in of_web
    ]
    assert all([record.seed == record.seeds[-1] for record in records])
    of_books = [record for record in records if record.components[0] == "books"]
    assert [(record.component, record.components) for record in of_books] == [(1, ("books", 1))] * 2
    assert "books/1" in str(told) and "<td>books/1</td>" in told._repr_html_()
    named = MapDataset.mix({"web": MapDataset.range(4), "code": MapDataset.range(4)})
    for mixed in (named, named.split({"one": 0.5, "other": 0.5})["one"]):
        assert [explain(mixed, step=i).rows[0].records[0].component for i in range(3)] == [
            "code",
            "web",
            "code",
        ]
    plain = json.loads(json.dumps(told.to_dict()))
    assert (
        plain["rows"][0]["records"][0]["record_key"] == records[0].record_key
        and told.faults == plain["faults"] == []
    )
    assert eval(repr(records[0]), {"Record": Record}) == records[0]


def test_functions_run_only_where_they_decide():
    seen = []
    assert keys(explain(MapDataset.range(30).filter(boom).map(boom), step=5)) == [[5]]
    ds = MapDataset.range(30).shuffle(seed=1).map(lambda x: seen.append(x) or x)
    # no thread continues while it is explained
    ds = ds.to_iter_dataset(ReadOptions(num_threads=0)).map_with_index(max)
    ds = ds.batch(4).mp_prefetch(MultiprocessingOptions(num_lanes=2))
    it = iter(ds)
    next(it), next(it)
    seen.clear()
    assert explain(it) == explain(ds, step=1) and explain(ds, step=3).rows and not seen
    it = iter(MapDataset.range(30).map(lambda x: x if x % 3 else None).to_iter_dataset().batch(4))
    next(it), next(it)
    assert keys(explain(it)) == [[7], [8], [10], [11]]  # although it dropped some


BASE = MapDataset.range(60)
THIRDS = BASE.filter(lambda x: x % 3 == 0)
SOME = [x if x % 4 == 0 else None for x in range(60)]


class Sparse(MapDataset):
    def __len__(self):
        return 60

    def __getitem__(self, i):
        return SOME[i % 60]


class Twice(gx.FlatMapTransform):
    max_fan_out = 2

    def flat_map(self, x):
        return [x] * (x % 3)


def odd(x):
    if x % 2 == 0:
        raise OSError(x)
    return x


HOLES = {
    "filter": THIRDS,
    "shuffle": THIRDS.shuffle(seed=1),
    "window": THIRDS.window_shuffle(4, seed=1),
    "slice": THIRDS[1::2],
    "repeat": THIRDS.repeat(2),
    "mix": MapDataset.mix([THIRDS, BASE]),
    "flat_map": gx.FlatMapMapDataset(BASE, Twice()),
    "tolerate": BASE.map(odd).tolerate(max_rate=None),
    "dataset_as_source": MapDataset.source(THIRDS),
    "stream_mix": IterDataset.mix([THIRDS.to_iter_dataset(), BASE.to_iter_dataset()]),
    "lanes": THIRDS.to_iter_dataset().mp_prefetch(MultiprocessingOptions(num_lanes=2)),
    "batch": THIRDS.to_iter_dataset().batch(1, batch_fn=lambda x: x[0]),
    "limit": THIRDS.to_iter_dataset().limit(9),
}
MAYBE_HOLES = {  # steps are taken to have none
    "map": BASE.map(lambda x: x if x % 4 == 0 else None),
    "source": MapDataset.source(SOME),
    "own": Sparse(),
}


@pytest.mark.parametrize("name", [*HOLES, *MAYBE_HOLES])
def test_outputs_over_holes_are_not_numbered_by_index(name, tmp_path):
    ds = {**HOLES, **MAYBE_HOLES}[name]
    ds = ds.to_iter_dataset() if isinstance(ds, MapDataset) else ds
    it = iter(ds)
    states, expected = [], []
    for x in Ledger(tmp_path / "ledger").follow(it):
        expected.append([[int(x)]])
        assert keys(explain(it)) == expected[-1]
        states.append(it.get_state())
    for step in range(5):
        if name in HOLES:
            assert_raises(
                NotImplementedError,
                "(Filter|FlatMap|Tolerate|Source)MapDataset.*Ledger",
                explain,
                ds,
                step=step,
            )
        assert keys(explain(ds, state=states[step])) == keys(
            explain(ds, step=step + 1, ledger=tmp_path / "ledger")
        )
        assert keys(explain(ds, step=step, ledger=tmp_path / "ledger")) == expected[step]
    it.set_state(states[4])
    later = Ledger(tmp_path / "begun_later")
    assert_raises(ValueError, "step=", later.follow, it)
    assert [int(next(later.follow(it, step=5)))] == expected[5][0] and list(later.steps()) == [5]


def tokens(key):
    return {
        name: np.arange(1, key % size + 1) + 100 * (key + 1) for name, size in (("x", 5), ("y", 3))
    }


def selected(*names):
    return lambda row: {name: row[name] for name in names}


def of_x(function):
    return lambda row: {"x": function(row["x"])}


ROWS = MapDataset.range(40).shuffle(seed=2).map(tokens).to_iter_dataset()


def first_fit(ds, num=9):
    return gx.FirstFitPackIterDataset(
        ds, length_struct={"x": num, "y": 90}, num_packing_bins=3, seed=2
    )


def best_fit(ds, num=9):
    return gx.BestFitPackIterDataset(
        ds, length_struct={"x": num, "y": 90}, num_packing_bins=3, seed=2
    )


def split(ds, num=9):
    return gx.ConcatThenSplitIterDataset(
        ds.map(selected("x", "y")), length_struct={"x": num, "y": 90}
    )


def split_x(ds, num=9):
    return gx.ConcatThenSplitIterDataset(ds.map(selected("x")), length_struct={"x": num})


NUMBERS = (
    MapDataset.range(40).shuffle(seed=2).map(lambda key: {"x": 100 * (key + 1)}).to_iter_dataset()
)
CUT = {
    "first_fit": first_fit(ROWS),
    "best_fit": best_fit(ROWS),
    "split": split(ROWS),
    "batches": first_fit(ROWS).multithread_prefetch(2, 1).batch(3),
    "first_fit_split": split(first_fit(ROWS), 5),
    "best_fit_split": split(best_fit(ROWS), 5),
    "split_split": split(split(ROWS), 4),
    "split_first_fit": first_fit(split(ROWS, 4), 20),
    "first_fit_first_fit": first_fit(first_fit(ROWS, 6), 20),
    "first_fit_split_split": split(split(first_fit(ROWS), 7), 4),
    "selected_split": split_x(first_fit(ROWS), 5),
    "renamed": split_x(
        split_x(ROWS).map(lambda row: {"z": row["x"]}).map(lambda row: {"x": row["z"]}), 5
    ),
    "new_axis": split_x(ROWS).map(of_x(lambda x: x[None])),
    "copies": first_fit(ROWS).flat_map(lambda row: [row, row]),
    "batch_split": split_x(NUMBERS.batch(4), 3),
    "batch_rebatch": gx.RebatchIterDataset(NUMBERS.batch(4).map(of_x(lambda x: x + 0)), 3),
    "rows_rebatch": gx.RebatchIterDataset(split_x(ROWS).map(selected("x")), 5),
    "batch_of_rows_rebatch": gx.RebatchIterDataset(first_fit(ROWS).batch(3), 2),
}


@pytest.mark.parametrize("name", CUT)
def test_records_of_rows_are_those_of_the_cells(name):
    it, num = iter(CUT[name]), 0
    for batch in it:
        told = explain(it)
        rows = batch["x"].reshape(len(told.rows), -1)
        # A record may have cells of this feature only.
        others = {*np.unique(batch.get("y", 0)) // 100 - 1}
        for row, one in zip(rows, told.rows, strict=True):
            whose = np.zeros(len(row), int) - 1
            for record in one.records:
                start, stop = record.span or (0, len(row))
                assert (whose[start:stop] == -1).all()
                whose[start:stop] = record.record_key
                assert stop > start or record.record_key in others or not record.record_key % 5
            assert (whose == row // 100 - 1).all()
            num += 1
    assert num > 4


@pytest.mark.parametrize(
    ("ds", "stage"),
    [
        (first_fit(ROWS).map(of_x(lambda x: x[:5])), "MapIter"),
        (split_x(first_fit(ROWS).map(of_x(lambda x: x[2:7])), 4), "MapIter"),
        (first_fit(ROWS).map(lambda row: {**row, "x": row["x"][:4]}), "MapIter"),
        (first_fit(ROWS).map(lambda row: {"z": row["x"][:4], "y": row["y"]}), "MapIter"),
        (first_fit(ROWS).batch(2).map(of_x(lambda x: x[:, 1:])), "MapIter"),
        (
            first_fit(ROWS).flat_map(lambda row: [{"x": row["x"][:4]}, {"x": row["x"][4:]}]),
            "FlatMapIter",
        ),
        (
            first_fit(ROWS).random_map(lambda row, rng: {"x": row["x"].sum()}, seed=1),
            "RandomMapIter",
        ),
        (gx.RebatchIterDataset(NUMBERS.batch(4).map(of_x(lambda x: x[:2])), 3), "MapIter"),
        (NUMBERS.batch(4).flat_map(lambda batch: [{"x": x} for x in batch["x"]]), "FlatMapIter"),
        (gx.FlatMapMapDataset(BASE.batch(4), Twice()).to_iter_dataset(), "FlatMapMap"),
    ],
)
def test_stages_that_cut_by_a_function_are_refused_by_name(ds, stage):
    state = iter(ds).get_state()
    assert_raises(
        NotImplementedError,
        f"^{stage}Dataset.*cannot be explained.*not known which records",
        explain,
        ds,
        state=state,
    )


def bad(x):
    if x % 4 == 1:
        raise OSError(x)
    return x


def bad_sequence(x):
    return {"x": np.full(bad(x) % 3 + 1, x)}


def without_feature(x):
    return {"y": np.ones(2)} if x % 4 == 1 else bad_sequence(x)


def any_rate(ds):
    return ds.tolerate(max_rate=None)


def packed_rows(ds):
    return gx.FirstFitPackIterDataset(
        ds, length_struct={"x": 4}, num_packing_bins=1, shuffle_bins=False
    )


TWELVE = MapDataset.range(12)
BY_OUTPUT = {2: [1], 6: [5], 10: [9]}  # the skipped records, by the record of the next output
FAULTS = {
    "map": (any_rate(TWELVE.map(bad).to_iter_dataset()), BY_OUTPUT),
    "map_of_list": (
        any_rate(MapDataset.source(list(range(12))).map(bad).to_iter_dataset()),
        BY_OUTPUT,
    ),
    "map_before_filter": (
        any_rate(TWELVE.map(bad).filter(lambda x: x != 3).to_iter_dataset()),
        BY_OUTPUT,
    ),
    "map_after_filter": (
        any_rate(TWELVE.filter(lambda x: x != 3).map(bad).to_iter_dataset()),
        BY_OUTPUT,
    ),
    "filter": (any_rate(TWELVE.filter(lambda x: bad(x) >= 0).to_iter_dataset()), BY_OUTPUT),
    "batch_of_map": (any_rate(TWELVE.map(bad).batch(2).to_iter_dataset()), BY_OUTPUT),
    "tolerated_map": (any_rate(TWELVE.map(bad)).to_iter_dataset(), BY_OUTPUT),
    "stream_map": (any_rate(TWELVE.to_iter_dataset().map(bad)), BY_OUTPUT),
    "stream_filter": (any_rate(TWELVE.to_iter_dataset().filter(lambda x: bad(x) >= 0)), BY_OUTPUT),
    "stream_flat_map": (any_rate(TWELVE.to_iter_dataset().flat_map(lambda x: [bad(x)])), BY_OUTPUT),
    "random_map": (
        any_rate(TWELVE.to_iter_dataset().random_map(lambda x, rng: bad(x), seed=1)),
        BY_OUTPUT,
    ),
    "lanes": (
        any_rate(
            TWELVE.map(bad).to_iter_dataset().mp_prefetch(MultiprocessingOptions(num_lanes=2))
        ),
        BY_OUTPUT,
    ),
    "batches": (any_rate(TWELVE.map(bad).to_iter_dataset()).batch(2), {0: [1], 6: [5], 8: [9]}),
    "packing": (
        any_rate(packed_rows(TWELVE.to_iter_dataset().map(without_feature))),
        {0: [1], 3: [5], 8: [9]},
    ),
    "splitting": (
        any_rate(
            gx.ConcatThenSplitIterDataset(
                TWELVE.to_iter_dataset().map(without_feature), length_struct={"x": 4}
            )
        ),
        {0: [1], 3: [5], 8: [9]},
    ),
    "packed": (
        packed_rows(any_rate(TWELVE.map(bad_sequence).to_iter_dataset())),
        {0: [1], 3: [5], 8: [9], 10: [9]},
    ),
    "packed_map": (
        packed_rows(any_rate(TWELVE.map(bad_sequence)).to_iter_dataset()),
        {0: [1], 3: [5], 8: [9], 10: [9]},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_that_were_skipped_on_the_way(name, tmp_path):
    ds, expected = FAULTS[name]
    it, found = Ledger(tmp_path / "ledger", every=3).follow(iter(ds)), {}
    while True:
        state = it.get_state()
        if next(it, None) is None:
            break
        told = explain(it)
        assert (
            told
            == explain(ds, state=state)
            == explain(ds, step=it.step - 1, ledger=tmp_path / "ledger")
        )
        if told.faults:
            found[told.records[0].record_key] = [record.record_key for record in told.faults]
            assert {record.source for record in told.faults} == {told.records[0].source}
    assert found == expected and it.faults().total == 3


def test_records_of_files(tmp_path):
    contents = [b"a" * n for n in (3, 0, 5, 7)]
    paths = [tmp_path / f"{i}.tfrecord" for i in range(3)]
    for i, path in enumerate(paths):
        path.write_bytes(b"".join([framed(content + bytes([i])) for content in contents]))
    offsets = np.cumsum([0, *[len(content) + 17 for content in contents]]).tolist()
    it = iter(
        gx.TFRecordIterDataset([str(path) for path in paths])
        .batch(2, batch_fn=list)
        .thread_prefetch(1)
    )
    for batch in it:
        for content, row in zip(batch, explain(it).rows, strict=True):
            (record,) = row.records
            assert (
                paths[content[-1]].name in record.source
                and record.record_key == offsets[contents.index(content[:-1])]
            )
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(
        pyarrow.table({"x": range(10)}), tmp_path / "x.parquet", row_group_size=3
    )
    it = iter(
        gx.ParquetIterDataset(tmp_path / "x.parquet").mp_prefetch(
            MultiprocessingOptions(num_lanes=2)
        )
    )
    for element in it:
        assert keys(explain(it)) == [[divmod(int(element["x"]), 3)]]


@pytest.mark.parametrize("worker_count", [0, 2])
def test_data_loaders(worker_count):
    loader = make(
        40,
        *AS_RECORDS,
        Kept(lambda x: x % 4),
        TO_TUPLE,
        DRAW,
        Batch(3, batch_fn=list),
        worker_count=worker_count,
    )
    it = iter(loader)
    for _ in range(3):
        state = it.get_state()
        batch, told = next(it), explain(it)
        assert [key for (key,) in keys(told)] == [x for x, _ in batch] and explain(
            loader, state=state
        ) == told
        assert (
            told.rows[0].records[0].seed == (3, batch[0][0])
            and told.rows[0].records[0].index == batch[0][0]
        )
    it.close()
    assert keys(explain(make(40, Batch(4), worker_count=worker_count), step=3)) == [
        [i] for i in (range(12, 16) if not worker_count else range(9, 16, 2))
    ]


def test_refusals():
    ds = MapDataset.range(9).to_iter_dataset()
    it = iter(ds)
    next(it)
    it.set_state({"next_index": 5})
    assert_raises(ValueError, "no output", explain, it)
    assert_raises(ValueError, "state or step", explain, ds)
    assert_raises(ValueError, "must not both", explain, ds, state={"next_index": 1}, step=1)
    assert_raises(IndexError, "output 9", explain, ds, step=9)
    assert_raises(TypeError, "it_or_ds", explain, [1, 2])
    assert_raises(NotImplementedError, "Filter.*Ledger", explain, ds.filter(bool), step=3)
    assert_raises(IndexError, "at least 0", explain, ds, step=-1)
    for stream in (BareStream(9), Plain(9)):
        it = iter(stream.map(bool))
        next(it)
        assert_raises(NotImplementedError, type(stream).__name__, explain, it)
    other = type(
        "Other", (MapDataset,), {"__len__": lambda self: 3, "__getitem__": lambda self, i: i % 3}
    )
    # what has no parents is a source
    assert keys(explain(other().slice([2, 1, 0]).repeat(2), step=4)) == [[1]]
    assert_raises(NotImplementedError, "Other", explain, other(MapDataset.range(3)), step=1)


def packed():
    sequences = MapDataset.range(200).shuffle(seed=3).map(lambda i: {"x": np.full(i % 7 + 1, i)})
    return gx.FirstFitPackIterDataset(
        sequences.to_iter_dataset(), length_struct={"x": 12}, num_packing_bins=4
    ).batch(2)


@pytest.mark.parametrize("every", [1, 4])
def test_a_ledger_continues_after_restarts_and_damage(tmp_path, every):
    path, ds = tmp_path / "ledger", packed()
    it = iter(ds)
    expected = [explain(it) for _ in it]
    followed = Ledger(path, every).follow(iter(ds))
    states = [followed.get_state()]
    states += [followed.get_state() for _ in zip(range(10), followed, strict=False)]
    with path.open("ab") as file:
        file.write(b"torn")
    for step in (7, 10):  # to an earlier step: those that are known are the same
        again = Ledger(path, every).follow(iter(ds))
        again.set_state(states[step])
        assert again.step == step
        next(again)
    for _ in again:
        pass
    assert list(Ledger(path, every).steps()) == list(range(0, len(expected), every))
    for step, told in enumerate(expected):
        assert explain(ds, step=step, ledger=path) == told
    for step in (len(expected), len(expected) + 9):
        assert_raises(IndexError, f"no output {step}", explain, ds, step=step, ledger=path)
    content = bytearray(path.read_bytes())
    content[-40] ^= 1  # of the last record but one: that before it is used
    path.write_bytes(content)
    assert explain(ds, step=len(expected) - 2, ledger=path) == expected[-2]
    # another pipeline: later records are of the past
    next(Ledger(path, every).follow(iter(ds.limit(50)), step=4))
    assert list(Ledger(path, every).steps()) == list(range(0, 5, every))
    assert_raises(ValueError, "every must be", Ledger, path, every + 1)
    it = iter(ds)
    next(it)
    assert_raises(ValueError, "does not know the step", Ledger(tmp_path / "other").follow, it)


@pytest.mark.parametrize("every", [1, 4])
def test_a_ledger_answers_for_steps_that_were_made_alone(tmp_path, every):
    ds, ledger = (
        MapDataset.range(100_000).to_iter_dataset().filter(lambda x: x % 3 == 0),
        Ledger(tmp_path / "ledger", every),
    )
    assert_raises(IndexError, "no records", explain, ds, step=0, ledger=ledger)
    it = ledger.follow(iter(ds))
    for _ in range(9):
        next(it)
    assert keys(explain(ds, step=8, ledger=ledger)) == [[24]] and (
        every > 1 or list(ledger.steps()) == list(range(9))
    )
    later = iter(ds)
    later.set_state(it.get_state())
    batches = iter(MapDataset.range(100).to_iter_dataset().batch(4))
    next(batches), next(batches)
    assert Ledger(tmp_path / "arithmetic", every).follow(batches).step == 2
    elastic = [gx.ElasticIterator(BASE, 4, ShardOptions(0, 1)) for _ in range(2)]
    next(elastic[0])
    assert_raises(ValueError, "step=", Ledger(tmp_path / "elastic", every).follow, elastic[0])
    assert Ledger(tmp_path / "elastic", every).follow(elastic[1]).step == 0
    by_hand = BareIterator(9)  # without a dataset that it could be compared with
    assert_raises(ValueError, "step=", Ledger(tmp_path / "by_hand", every).follow, by_hand)
    later = Ledger(tmp_path / "later", every).follow(later, step=20)
    for _ in range(every):
        next(later)
    assert keys(explain(ds, step=20, ledger=tmp_path / "later")) == [[27]]
    for step, path in (
        (-1, "ledger"),
        (12, "ledger"),
        (30_000, "ledger"),
        (10**15, "ledger"),
        (0, "later"),
        (19, "later"),
    ):
        assert_raises(
            IndexError,
            f"({step}|no output {step}) ?",
            explain,
            ds,
            step=step,
            ledger=tmp_path / path,
        )


def raise_interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("every", [1, 10])
def test_interrupts_lose_nothing_that_is_followed(tmp_path, every):
    ds = (
        MapDataset.range(100_000)
        .to_iter_dataset(ReadOptions(num_threads=0))
        .filter(lambda x: x % 3)
    )
    it, seen, num, rng = (
        Ledger(tmp_path / "ledger", every).follow(iter(ds)),
        [],
        0,
        random.Random(every),
    )
    before = signal.signal(signal.SIGALRM, raise_interrupt)
    try:
        while num < 100:
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + rng.random() * 2e-3)
                seen.extend(it)  # appends what next() returns with no bytecode in between
            except KeyboardInterrupt:
                num += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen == list(itertools.islice(ds, len(seen))) and it.step == len(seen)
    assert keys(explain(ds, step=it.step - 1, ledger=tmp_path / "ledger")) == [[seen[-1]]]


def test_a_full_disk_loses_nothing_that_is_followed(tmp_path):
    ds, ledger = packed(), Ledger(tmp_path / "ledger")
    it, states = ledger.follow(iter(ds)), tmp_path / "ledger.states"
    expected = [next(it)["x"].tolist() for _ in range(3)]
    ledger.close()
    states.rename(tmp_path / "kept")
    states.symlink_to("/dev/full")
    for _ in range(2):
        assert_raises(OSError, "No space left", next, it)
    ledger.close()
    states.unlink()
    (tmp_path / "kept").rename(states)
    expected += [batch["x"].tolist() for batch in it]
    assert expected == [batch["x"].tolist() for batch in ds] and list(ledger.steps()) == list(
        range(len(expected))
    )


def test_ledger_with_a_torn_beginning_continues(tmp_path):
    ds, path = MapDataset.range(7).to_iter_dataset().filter(lambda x: x % 2), tmp_path / "ledger"
    it, limits = Ledger(path).follow(iter(ds)), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for most in (10, 20, 40):  # bytes of a file; the header has 32
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
            assert_raises(OSError, "too large", next, it)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [*it] == [1, 3, 5]
    assert keys(explain(ds, step=2, ledger=path)) == [[5]]


@pytest.mark.parametrize(
    "make",
    [packed, lambda: make(40, *AS_RECORDS, TO_TUPLE, Batch(3, batch_fn=list), worker_count=0)],
)
def test_a_followed_iterator_is_like_the_iterator_itself(tmp_path, make):
    inner = iter(make())
    it = Ledger(tmp_path / "ledger").follow(inner)
    assert isinstance(
        it, DatasetIterator if isinstance(inner, DatasetIterator) else DataLoaderIterator
    )
    handler = CheckpointHandler()
    with observe(it) as view:
        next(it), next(it)
    assert repr(it).endswith(repr(Ledger(tmp_path / "ledger"))) or not isinstance(
        it, DatasetIterator
    )
    assert view.summary()[0].num_produced_elements == 2 and it.faults().total == 0
    (tmp_path / "saved").mkdir()
    handler.save(tmp_path / "saved", it)
    expected = [str(x) for x in it]
    assert (
        handler.restore(tmp_path / "saved", it) is it
        and it.step == 2
        and explain(make(), state=it.get_state())
    )
    assert [str(x) for x in it] == expected and it.step == 2 + len(expected)
    # The checkpoint is one of the pipeline without the ledger.
    plain = handler.restore(tmp_path / "saved", iter(make()))
    assert [str(x) for x in plain] == expected
    assert_raises(TypeError, "iterator must be", Ledger(tmp_path / "ledger").follow, iter([1]))
    it.close()


PIPELINES = """
import numpy as np
import gristmill
ds = gristmill.MapDataset.range(40).map(
    lambda i: {"image": np.full((4, 4), 6 * i, np.uint8), "n": {"i": i}}
)
stream = ds.to_iter_dataset().filter(lambda x: x["n"]["i"] % 2).batch(4)
odd = gristmill.MapDataset.range(40).filter(lambda x: x % 2)
holes = odd.to_iter_dataset()
"""


def test_show_and_trace(tmp_path, capsys, monkeypatch):
    (tmp_path / "provenance_pipelines.py").write_text(PIPELINES)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])

    def call(command, code=0):
        assert (
            main(command.replace("@", f"{tmp_path / 'provenance_pipelines.py'}:").split()) == code
        )
        captured = capsys.readouterr()
        return captured.out + captured.err

    shown = call("show @ds --step 43 --field image")
    assert (
        "image: uint8[4, 4]  [18" in shown
        and shown.splitlines()[-1] == shown.splitlines()[-2] == " " * 8
    )
    assert "FilterMapDataset" in call("show @holes --step 1", 1)
    assert call("trace @odd --record 11").endswith("used 1 time in 20 outputs\n")
    assert call("trace @odd --record 12").endswith("used 0 times in 20 outputs\n")
    assert "Ledger" in call("show @stream --step 1", 1) and "no field 'm'" in call(
        "show @ds --step 1 --field m", 2
    )
    (tmp_path / "state").write_text('{"next_index": 4}')
    assert call(f"show @stream --state {tmp_path / 'state'}").count("RangeMapDataset") == 4
    assert (
        call("trace @stream --record 11").splitlines()[-1] == "record 11: used 1 time in 5 outputs"
    )
    from provenance_pipelines import stream

    list(Ledger(tmp_path / "ledger", every=3).follow(iter(stream)))
    (tmp_path / "a.jsonl").write_text("1\n2\n")
    (tmp_path / "b.jsonl").write_text("3\n4\n")
    lines = (
        MapDataset.source(JsonlSource([tmp_path / "a.jsonl", tmp_path / "b.jsonl"]))
        .to_iter_dataset()
        .batch(4)
    )
    assert [record.place for record in explain(lines, step=0).records][1:3] == [
        "a.jsonl, record 1",
        "b.jsonl, record 0",
    ]
    batches = MapDataset.range(10).to_iter_dataset().batch(4)
    assert_raises(
        IndexError, "there is no output 9: the stream has 3 outputs", explain, batches, step=9
    )
    assert "no output 9 " in call(f"show @stream --step 9 --ledger {tmp_path / 'ledger'}", 1)
    assert "n.i: int64[4]  [ 9 11 13 15]" in call(
        f"show @stream --step 1 --ledger {tmp_path / 'ledger'} --field n.i"
    )
    del sys.modules["provenance_pipelines"]
    command = [
        sys.executable,
        "-m",
        "gristmill",
        "show",
        "provenance_pipelines.py:ds",
        "--step",
        "52",
    ]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    assert found.splitlines()[0] == "step 52" and found.split()[-3:] == ["12", "52", "1"]


def test_a_hole_in_the_last_batch_is_not_named():
    ds = (
        MapDataset.range(5)
        .map(lambda x: None if x == 3 else x)
        .to_iter_dataset(ReadOptions(0))
        .batch(3)
    )
    it = iter(ds)
    for expected in ([0, 1, 2], [4]):
        assert next(it).tolist() == expected
        assert [record.record_key for record in explain(it).records] == expected
