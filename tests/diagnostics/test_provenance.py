"""What ``explain`` tells in particular, ledgers that were torn or gone on with, and the commands that show it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from refusing import assert_raises
from tfrecords import framed
from users_datasets import BareStream, Plain

from gristmill import IterDataset, Ledger, MapDataset, MultiprocessingOptions, ReadOptions, explain
from gristmill import experimental as gx
from gristmill.diagnostics.cli import main
from gristmill.diagnostics.provenance import Record
from gristmill.sources import RangeDataSource
from gristmill.transforms import Batch

sys.path.append(str(Path(__file__).parents[1] / "loader"))

from loaders import AS_RECORDS, DRAW, TO_TUPLE, Kept, make


def keys(told):
    return [[record.record_key for record in row.records] for row in told.rows]


def boom(*args):
    raise AssertionError("nobody needs this element")


def test_what_is_told_of_a_record():
    web = MapDataset.source(RangeDataSource(0, 6, 1)).seed(7).shuffle().repeat().random_map(boom, seed=5)
    books = MapDataset.mix([MapDataset.range(9), MapDataset.range(100, 103)], [1, 2]).repeat().map(boom)
    streams = {name: ds.to_iter_dataset(allow_nones=True) for name, ds in {"web": web, "books": books}.items()}
    ds = IterDataset.mix(streams, {"web": 2, "books": 1}).random_map(boom, seed=3).batch(6)
    told = explain(ds, step=5)
    records = [row.records[0] for row in told.rows]
    of_web = [record for record in records if record.component == "web"]
    assert [record.index for record in of_web] == [20, 21, 22, 23] and {record.epoch for record in of_web} == {3}
    assert [record.record_key for record in of_web] == [web.parents[0][i] for i in range(20, 24)]
    assert of_web[0].source == repr(RangeDataSource(0, 6, 1)) and of_web[0].span is None
    assert [record.seeds for record in of_web] == [((5, record.index), (3, 30 + records.index(record))) for record in of_web]
    assert all([record.seed == record.seeds[-1] for record in records])
    of_books = [record for record in records if record.components[0] == "books"]
    assert [(record.component, record.components) for record in of_books] == [(1, ("books", 1))] * 2
    assert "books/1" in str(told) and "<td>books/1</td>" in told._repr_html_()
    named = MapDataset.mix({"web": MapDataset.range(4), "code": MapDataset.range(4)})
    for mixed in (named, named.split({"one": 0.5, "other": 0.5})["one"]):
        assert [explain(mixed, step=i).rows[0].records[0].component for i in range(3)] == ["code", "web", "code"]
    plain = json.loads(json.dumps(told.to_dict()))
    assert plain["rows"][0]["records"][0]["record_key"] == records[0].record_key and told.faults == plain["faults"] == []
    assert eval(repr(records[0]), {"Record": Record}) == records[0]


def test_functions_run_only_where_they_decide():
    seen = []
    assert keys(explain(MapDataset.range(30).filter(boom).map(boom), step=5)) == [[5]]
    ds = MapDataset.range(30).shuffle(seed=1).map(lambda x: seen.append(x) or x)
    ds = ds.to_iter_dataset(ReadOptions(num_threads=0)).map_with_index(max)  # no thread goes on while it is explained
    ds = ds.batch(4).mp_prefetch(MultiprocessingOptions(num_lanes=2))
    it = iter(ds)
    next(it), next(it)
    seen.clear()
    assert explain(it) == explain(ds, step=1) and explain(ds, step=3).rows and not seen
    it = iter(MapDataset.range(30).map(lambda x: x if x % 3 else None).to_iter_dataset().batch(4))
    next(it), next(it)
    assert keys(explain(it)) == [[7], [8], [10], [11]]  # although it left out some


@pytest.mark.parametrize("cls", [gx.FirstFitPackIterDataset, gx.BestFitPackIterDataset, gx.ConcatThenSplitIterDataset])
def test_spans_are_those_of_the_tokens(cls):
    def tokens(key):
        return {"x": np.arange(1, key % 5 + 1) + 100 * key, "y": np.arange(key % 3)}

    arguments = {} if cls is gx.ConcatThenSplitIterDataset else {"num_packing_bins": 3, "seed": 2}
    ds = cls(MapDataset.range(40).shuffle(seed=2).map(tokens).to_iter_dataset(), length_struct={"x": 9, "y": 90}, **arguments)
    it = iter(ds.multithread_prefetch(2, 1).batch(3))
    for batch in it:
        for row, told in zip(batch["x"], explain(it).rows, strict=True):
            whose = np.zeros(9, int) - 1
            for record in told.records:
                start, stop = record.span
                assert (whose[start:stop] == -1).all()
                whose[start:stop] = record.record_key
            assert (whose[row > 0] == row[row > 0] // 100).all()


def test_records_of_files(tmp_path):
    contents = [b"a" * n for n in (3, 0, 5, 7)]
    paths = [tmp_path / f"{i}.tfrecord" for i in range(3)]
    for i, path in enumerate(paths):
        path.write_bytes(b"".join([framed(content + bytes([i])) for content in contents]))
    offsets = np.cumsum([0, *[len(content) + 17 for content in contents]]).tolist()
    it = iter(gx.TFRecordIterDataset([str(path) for path in paths]).batch(2, batch_fn=list).thread_prefetch(1))
    for batch in it:
        for content, row in zip(batch, explain(it).rows, strict=True):
            (record,) = row.records
            assert paths[content[-1]].name in record.source and record.record_key == offsets[contents.index(content[:-1])]
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"x": range(10)}), tmp_path / "x.parquet", row_group_size=3)
    it = iter(gx.ParquetIterDataset(tmp_path / "x.parquet").mp_prefetch(MultiprocessingOptions(num_lanes=2)))
    for element in it:
        assert keys(explain(it)) == [[divmod(int(element["x"]), 3)]]


@pytest.mark.parametrize("worker_count", [0, 2])
def test_data_loaders(worker_count):
    loader = make(40, *AS_RECORDS, Kept(lambda x: x % 4), TO_TUPLE, DRAW, Batch(3, batch_fn=list), worker_count=worker_count)
    it = iter(loader)
    for _ in range(3):
        state = it.get_state()
        batch, told = next(it), explain(it)
        assert [key for (key,) in keys(told)] == [x for x, _ in batch] and explain(loader, state=state) == told
        assert told.rows[0].records[0].seed == (3, batch[0][0]) and told.rows[0].records[0].index == batch[0][0]
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
    for stream in (BareStream(9), Plain(9)):
        it = iter(stream.map(bool))
        next(it)
        assert_raises(NotImplementedError, type(stream).__name__, explain, it)
    other = type("Other", (MapDataset,), {"__len__": lambda self: 3, "__getitem__": lambda self, i: i % 3})
    assert keys(explain(other().slice([2, 1, 0]).repeat(2), step=4)) == [[1]]  # what has no parents is a source
    assert_raises(NotImplementedError, "Other", explain, other(MapDataset.range(3)), step=1)


def packed():
    sequences = MapDataset.range(200).shuffle(seed=3).map(lambda i: {"x": np.full(i % 7 + 1, i)})
    return gx.FirstFitPackIterDataset(sequences.to_iter_dataset(), length_struct={"x": 12}, num_packing_bins=4).batch(2)


@pytest.mark.parametrize("every", [1, 4])
def test_a_ledger_goes_on_after_restarts_and_damage(tmp_path, every):
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
    next(Ledger(path, every).follow(iter(ds.limit(50)), step=4))  # another pipeline: later records are of the past
    assert list(Ledger(path, every).steps()) == list(range(0, 5, every))
    assert_raises(ValueError, "every must be", Ledger, path, every + 1)
    it = iter(ds)
    next(it)
    assert_raises(ValueError, "does not know the step", Ledger(tmp_path / "other").follow, it)


PIPELINES = """
import numpy as np
import gristmill
ds = gristmill.MapDataset.range(40).map(lambda i: {"image": np.full((4, 4), 6 * i, np.uint8), "n": {"i": i}})
stream = ds.to_iter_dataset().filter(lambda x: x["n"]["i"] % 2).batch(4)
"""


def test_show_and_trace(tmp_path, capsys, monkeypatch):
    (tmp_path / "provenance_pipelines.py").write_text(PIPELINES)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])

    def call(command, code=0):
        assert main(command.replace("@", f"{tmp_path / 'provenance_pipelines.py'}:").split()) == code
        captured = capsys.readouterr()
        return captured.out + captured.err

    shown = call("show @ds --step 43 --field image")
    assert "image: uint8[4, 4]  [18" in shown and shown.splitlines()[-1] == shown.splitlines()[-2] == " " * 8
    assert "Ledger" in call("show @stream --step 1", 1) and "no field 'm'" in call("show @ds --step 1 --field m", 2)
    (tmp_path / "state").write_text('{"next_index": 4}')
    assert call(f"show @stream --state {tmp_path / 'state'}").count("RangeMapDataset") == 4
    assert call("trace @stream --record 11").splitlines()[-1] == "record 11: used 1 time in 5 outputs"
    from provenance_pipelines import stream

    list(Ledger(tmp_path / "ledger", every=3).follow(iter(stream)))
    assert "n.i: int64[4]  [ 9 11 13 15]" in call(f"show @stream --step 1 --ledger {tmp_path / 'ledger'} --field n.i")
    del sys.modules["provenance_pipelines"]
    command = [sys.executable, "-m", "gristmill", "show", "provenance_pipelines.py:ds", "--step", "52"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    assert found.splitlines()[0] == "step 52" and found.split()[-3:] == ["12", "52", "1"]
