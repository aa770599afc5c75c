"""``ParquetIterDataset`` as a stage; values of all types are tested with the source."""

import gc
import itertools
import pickle
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.core.element_spec import ShapeDtypeStruct
from gristmill.core.errors import StateIndexError
from gristmill.core.options import MultiprocessingOptions
from gristmill.dataset.bases.element_spec import get_element_spec
from gristmill.dataset.bases.next_index import get_next_index, set_next_index
from gristmill.dataset.slicing import slice_pipeline
from gristmill.dataset.stages.parquet import ParquetIterDataset
from gristmill.sources import parquet

SIZES = [3, 0, 2, 4]  # rows in row groups
NUM_ROWS = sum(SIZES)


def write(path, sizes=SIZES, start=0):
    """A file of numbers from ``start`` on, in row groups of the given sizes."""
    schema = pa.schema([("x", pa.int64()), ("text", pa.string())])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for size in sizes:
            numbers = range(start, start + size)
            writer.write_table(pa.table([pa.array(numbers, pa.int64()), [f"row {x}" for x in numbers]], schema=schema))
            start += size
    return str(path)


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.parquet")


@pytest.fixture(params=[1, 2, 4096], ids=lambda size: f"block_{size}")
def block_rows(request, monkeypatch):
    monkeypatch.setattr(parquet, "_BLOCK_ROWS", request.param)


def numbers(it):
    return [int(row["x"]) for row in it]


def state(group, row):
    return {"row_group": group, "index_within_row_group": row}


def open_files(folder):
    """The files in ``folder`` that this process has open."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [target for link in links if (target := str(link.readlink())).startswith(str(folder))]


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not list open files there")


def test_elements_and_states(path, block_rows):
    it = iter(ParquetIterDataset(path))
    states = [state(0, 0)]
    for i in range(NUM_ROWS):
        row = next(it)
        assert row == {"x": i, "text": f"row {i}"}
        assert type(row["x"]) is np.int64 and type(row["text"]) is str
        states.append(it.get_state())
    assert states == [*[state(0, r) for r in range(4)], state(2, 1), state(2, 2), *[state(3, r) for r in range(1, 5)]]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(it)
        assert it.get_state() == state(3, 4)


@pytest.mark.parametrize(
    ("sizes", "end"),
    [([], state(0, 0)), ([0], state(0, 0)), ([0, 0], state(1, 0)), ([2, 0, 0], state(2, 0)), ([0, 0, 2], state(2, 2))],
)
def test_empty_row_groups(tmp_path, sizes, end):
    ds = ParquetIterDataset(write(tmp_path / "a.parquet", sizes))
    it = iter(ds)
    assert numbers(it) == list(range(sum(sizes)))
    assert it.get_state() == end
    again = iter(ds)
    again.set_state(end)
    assert list(again) == []
    assert again.get_state() == end


def test_one_file_in_any_form(path):
    for form in (path, Path(path), [path], (Path(path),)):
        it = iter(ParquetIterDataset(form))
        assert numbers(it) == list(range(NUM_ROWS))
        assert "row_group" in it.get_state()


def test_several_files(path, tmp_path):
    ds = ParquetIterDataset([path, write(tmp_path / "b.parquet", [1, 1], start=100), path])
    assert numbers(itertools.islice(ds, 8)) == [0, 100, 0, 1, 101, 1, 2, 2]
    assert iter(ds).get_state()["iterators_in_use_states"] == [state(0, 0)] * 3
    assert list(ParquetIterDataset([])) == []
    paths = [write(tmp_path / f"{i}.parquet", [2], start=2 * i) for i in range(18)]
    expected = [*range(0, 32, 2), *range(1, 32, 2), 32, 34, 33, 35]
    assert numbers(ParquetIterDataset(paths)) == expected


def test_columns(path):
    assert list(ParquetIterDataset(path, columns=["text"]))[1] == {"text": "row 1"}
    assert list(ParquetIterDataset([path, path], columns=("text",)))[2] == {"text": "row 1"}
    for wrong in ("text", [1], 3, iter(["text"])):
        with pytest.raises(TypeError, match="columns must be a sequence of names"):
            ParquetIterDataset(path, columns=wrong)
    with pytest.raises(ValueError, match="columns must not be empty"):
        ParquetIterDataset(path, columns=[])
    it = iter(ParquetIterDataset(path, columns=["y"]))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"a\.parquet has no 'y', it has \['x', 'text'\]"):
            next(it)


def test_arguments(path):
    for wrong in (None, 3, b"bytes", {"a"}, [None], iter(["a"])):
        with pytest.raises(TypeError, match="path must be a path or a sequence of paths"):
            ParquetIterDataset(wrong)
    assert numbers(ParquetIterDataset(path, memory_map=True)) == list(range(NUM_ROWS))
    with pytest.raises(TypeError, match="no_such_argument"):
        list(ParquetIterDataset(path, no_such_argument=1))


def test_texts(path):
    assert str(ParquetIterDataset(path)) == f"ParquetIterDataset({path})"
    assert str(iter(ParquetIterDataset(path))) == f"ParquetDatasetIterator({path})"
    assert str(ParquetIterDataset([path, path])) == "ParquetIterDataset([2 files])"


@needs_proc
def test_when_the_file_is_open(path, tmp_path):
    missing = iter(ParquetIterDataset(tmp_path / "missing.parquet"))  # nothing is opened here,
    missing.set_state(state(1, 5))  # nor here
    missing.start_prefetch()
    it = iter(ParquetIterDataset(path))
    assert open_files(tmp_path) == []
    next(it)
    assert open_files(tmp_path) == [path]
    list(it)
    assert open_files(tmp_path) == []
    it.set_state(state(0, 0))
    next(it)
    it.close()
    assert open_files(tmp_path) == []
    with pytest.raises(ValueError, match="closed"):
        next(it)
    other = iter(ParquetIterDataset(path))
    next(other)
    del other
    gc.collect()
    assert open_files(tmp_path) == []


def test_a_missing_file(tmp_path):
    path = tmp_path / "a.parquet"
    it = iter(ParquetIterDataset(path))
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match=r"a\.parquet"):
            next(it)
    with pytest.raises(FileNotFoundError):
        it.skip_failed()
    write(path)
    assert numbers(it) == list(range(NUM_ROWS))


def test_a_foreign_file_among_others(path, tmp_path):
    (tmp_path / "b.parquet").write_text("some text")
    it = iter(ParquetIterDataset([path, tmp_path / "b.parquet"]))
    assert numbers([next(it)]) == [0]
    for _ in range(2):
        with pytest.raises(ValueError, match=r"b\.parquet cannot be read as Parquet"):
            next(it)


def damage(path, group):
    """Makes the column ``x`` of a row group unreadable; returns what mends it."""
    content = Path(path).read_bytes()
    start = pq.ParquetFile(path).metadata.row_group(group).column(0).data_page_offset
    Path(path).write_bytes(content[:start] + bytes(30) + content[start + 30 :])
    return lambda: Path(path).write_bytes(content)


@pytest.mark.parametrize("after_restore", [False, True])
def test_a_damaged_row_group(path, block_rows, after_restore):
    mend = damage(path, 2)
    it = iter(ParquetIterDataset(path))
    if after_restore:
        it.set_state(state(2, 1))
        place, rest = state(2, 1), [4, 5, 6, 7, 8]
    else:
        assert numbers(next(it) for _ in range(3)) == [0, 1, 2]
        place, rest = state(0, 3), [3, 4, 5, 6, 7, 8]
    for _ in range(2):
        with pytest.raises(ValueError, match=r"row group 2 of .*a\.parquet cannot be read as Parquet: .* leave it out"):
            next(it)
        assert it.get_state() == place
    it.skip_failed()
    assert it.get_state() == state(2, 2)
    assert numbers(it) == [5, 6, 7, 8]
    it.set_state(place)
    with pytest.raises(ValueError, match="row group 2"):
        next(it)
    mend()
    assert numbers(it) == rest


def test_the_last_row_group_is_damaged(path):
    damage(path, 3)
    it = iter(ParquetIterDataset(path))
    assert numbers(next(it) for _ in range(5)) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="row group 3"):
        next(it)
    it.skip_failed()
    assert it.get_state() == state(3, 4)
    assert list(it) == []
    again = iter(ParquetIterDataset(path))
    again.set_state(state(3, 4))
    assert list(again) == []


def test_states_of_another_file(path):
    it = iter(ParquetIterDataset(path))
    for wrong in (state(4, 0), state(0, 4), state(1, 1), state(3, 5), state(100, 0)):
        it.set_state(wrong)
        assert it.get_state() == wrong
        for use in (next, next, get_next_index):
            with pytest.raises(StateIndexError, match="has become shorter"):
                use(it)
    it.set_state(state(3, 3))
    assert numbers(it) == [8]


def test_every_state_of_every_form_restores(path, block_rows):
    """A boundary has two names: the end of a row group, and the beginning of the next one."""
    it = iter(ParquetIterDataset(path))
    begin = 0
    for group, size in enumerate(SIZES):
        for row in range(size + 1):
            it.set_state(state(group, row))
            assert it.get_state() == state(group, row)
            assert numbers(it) == list(range(begin + row, NUM_ROWS))
        begin += size


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_workers_share_the_row_groups_of_one_file(path, count):
    groups = [[0, 1, 2], [], [3, 4], [5, 6, 7, 8]]
    for index in range(count):
        for ds in (ParquetIterDataset(path), ParquetIterDataset([path])):
            share = slice_pipeline(ds.map(lambda row: int(row["x"])), index, count)
            expected = [x for group in groups[index::count] for x in group]
            it = iter(share)
            assert it.get_state() == state(0, 0)
            assert list(it) == expected
            for i in range(len(expected)):
                it.set_state(state(0, 0))
                assert list(itertools.islice(it, i)) == expected[:i]
                again = iter(share)
                again.set_state(it.get_state())
                assert list(again) == expected[i:]


def test_workers_share_files(path, tmp_path):
    paths = [write(tmp_path / f"{i}.parquet", [2, 1], start=10 * i) for i in range(3)]
    it = iter(ParquetIterDataset(paths).mp_prefetch(MultiprocessingOptions(num_workers=2)))
    expected = [0, 10, 20, 11, 1, 12, 21, 2, 22]
    try:
        assert numbers(next(it) for _ in range(4)) == expected[:4]
        saved = it.get_state()
        assert numbers(it) == expected[4:]
        it.set_state(saved)
        assert numbers(it) == expected[4:]
    finally:
        it.close()


def test_more_workers_than_row_groups(path):
    with iter(ParquetIterDataset(path).mp_prefetch(MultiprocessingOptions(num_workers=6))) as it:
        assert numbers(it) == [0, 3, 5, 1, 4, 6, 2, 7, 8]


def test_next_index(path, tmp_path):
    it = iter(ParquetIterDataset(path))
    for i in range(NUM_ROWS):
        assert get_next_index(it) == i
        assert int(next(it)["x"]) == i
    assert list(it) == []
    assert get_next_index(it) == NUM_ROWS
    assert open_files(tmp_path) == []
    for i in (4, 0, NUM_ROWS, 3, 5, 8):
        set_next_index(it, i)
        assert get_next_index(it) == i
        assert numbers(it) == list(range(i, NUM_ROWS))
    with pytest.raises(IndexError, match=r"index must be in \[0, 9\], the number of rows, got 10"):
        set_next_index(it, NUM_ROWS + 1)
    empty = iter(ParquetIterDataset(write(tmp_path / "empty.parquet", [])))
    set_next_index(empty, 0)
    assert get_next_index(empty) == 0
    empty.close()
    with pytest.raises(ValueError, match="closed"):
        get_next_index(empty)


def test_element_spec(path):
    expected = {"x": ShapeDtypeStruct((), np.int64)}
    for ds in (ParquetIterDataset(path, columns=["x"]), ParquetIterDataset([path, path], columns=["x"])):
        assert get_element_spec(ds) == expected
        assert get_element_spec(ds.batch(2, drop_remainder=True)) == {"x": ShapeDtypeStruct((2,), np.int64)}
    with pytest.raises(NotImplementedError, match="column 'text'"):
        get_element_spec(ParquetIterDataset(path))
    with pytest.raises(NotImplementedError, match="no rows"):
        get_element_spec(ParquetIterDataset([]))


def test_batches(path):
    batches = list(ParquetIterDataset(path).batch(4))
    assert [batch["x"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert batches[0]["text"].tolist() == ["row 0", "row 1", "row 2", "row 3"]


def test_many_threads(path):
    ds = pickle.loads(pickle.dumps(ParquetIterDataset([path, path], columns=["x"])))
    expected, results = numbers(ds), []
    threads = [threading.Thread(target=lambda: results.append(numbers(ds))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 8


def test_a_failing_filesystem_is_not_a_damaged_file():
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")

    class Down(type(memory)):
        def _open(self, *args, **kwargs):
            raise ConnectionError("reset by peer")

    with pytest.raises(FileNotFoundError, match=r"nothing\.parquet"):
        list(ParquetIterDataset("/nothing.parquet", filesystem=memory))
    memory.pipe("/there.parquet", b"123")
    with pytest.raises(ConnectionError, match="reset by peer"):
        list(ParquetIterDataset("/there.parquet", filesystem=Down()))
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        list(ParquetIterDataset("/there.parquet", filesystem=memory))
