"""``TFRecordIterDataset`` and ``ParquetIterDataset`` as stages; files and their values are tested
with the sources.
"""

import functools
import gc
import gzip
import io
import itertools
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusing import assert_raises, assert_stays
from tfrecords import framed

from gristmill.core.element_spec import ShapeDtypeStruct
from gristmill.core.errors import StateIndexError
from gristmill.core.options import MultiprocessingOptions
from gristmill.dataset.bases.element_spec import get_element_spec
from gristmill.dataset.bases.next_index import get_next_index, set_next_index
from gristmill.dataset.slicing import slice_pipeline
from gristmill.dataset.stages.parquet import ParquetIterDataset
from gristmill.dataset.stages.tfrecord import TFRecordIterDataset
from gristmill.sources import parquet, tfrecord
from gristmill.testing import assert_equal_output_after_checkpoint

RECORDS = [f"record {i}".encode() * i for i in range(30)]
GROUPS = [[0, 1, 2], [], [3, 4], [5, 6, 7, 8]]  # rows in row groups
ROWS = [{"x": x, "text": f"row {x}"} for x in range(9)]


def write_records(path, records=RECORDS):
    Path(path).write_bytes(b"".join(map(framed, records)))
    return str(path)


def write_rows(path, groups=GROUPS):
    schema = pa.schema([("x", pa.int64()), ("text", pa.string())])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for group in groups:
            writer.write_table(
                pa.table([pa.array(group, pa.int64()), [f"row {x}" for x in group]], schema=schema)
            )
    return str(path)


def offset(i):
    return {"reader_offset": sum(16 + len(record) for record in RECORDS[:i])}


def state(group, row):
    return {"row_group": group, "index_within_row_group": row}


# A file format: its dataset, what is in a file, and the states before, between and after its
# elements.
TF = SimpleNamespace(
    name="TFRecord", dataset=TFRecordIterDataset, write=write_records, elements=RECORDS, number=int
)
TF.states = [offset(i) for i in range(31)]
TF.write_numbers = lambda path, numbers: write_records(path, [b"%d" % x for x in numbers])
PQ = SimpleNamespace(name="Parquet", dataset=ParquetIterDataset, write=write_rows, elements=ROWS)
PQ.states = [
    *[state(0, r) for r in range(4)],
    state(2, 1),
    state(2, 2),
    *[state(3, r) for r in range(1, 5)],
]
PQ.write_numbers = lambda path, numbers: write_rows(path, [numbers])
PQ.number = lambda row: int(row["x"])
each_kind = pytest.mark.parametrize("kind", [TF, PQ], ids=lambda kind: kind.name)


@pytest.fixture(params=[1, 2, 4096])
def blocks(request, monkeypatch):
    """Files are read in blocks of all sizes."""
    monkeypatch.setattr(parquet, "_BLOCK_ROWS", request.param)
    monkeypatch.setattr(tfrecord, "_BLOCK_BYTES", 64 * request.param)


@pytest.fixture
def records(tmp_path):
    return write_records(tmp_path / "a.tfrecord")


@pytest.fixture
def rows(tmp_path):
    return write_rows(tmp_path / "a.parquet")


def open_files(folder):
    """The files in ``folder`` that this process has open."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [target for link in links if (target := str(link.readlink())).startswith(str(folder))]


@each_kind
def test_elements_and_states(kind, tmp_path, blocks):
    it = iter(kind.dataset(kind.write(tmp_path / "a")))
    for element, before in zip(kind.elements, kind.states, strict=False):
        assert it.get_state() == before
        found = next(it)
        assert found == element
        assert kind is TF or (type(found["x"]), type(found["text"])) == (np.int64, str)
    for _ in range(2):
        assert it.get_state() == kind.states[-1]
        assert_raises(StopIteration, None, next, it)


@each_kind
def test_one_file_or_several(kind, tmp_path):
    path = kind.write(tmp_path / "a")
    for form in (path, Path(path), [path], (Path(path),)):
        it = iter(kind.dataset(form))
        assert it.get_state() == kind.states[0] and list(it) == kind.elements
    other = kind.write_numbers(tmp_path / "b", [100, 101])
    ds, (a, b, c), (x, y) = (
        kind.dataset([path, other, path]),
        kind.elements[:3],
        kind.dataset(other),
    )
    assert list(itertools.islice(ds, 8)) == [a, x, a, b, y, b, c, c]
    assert len(list(ds)) == 2 * len(kind.elements) + 2
    assert iter(ds).get_state()["iterators_in_use_states"] == [kind.states[0]] * 3
    assert list(kind.dataset([])) == []
    paths = [kind.write_numbers(tmp_path / f"{i}", [2 * i, 2 * i + 1]) for i in range(18)]
    assert [*map(kind.number, kind.dataset(paths))] == [
        *range(0, 32, 2),
        *range(1, 32, 2),
        32,
        34,
        33,
        35,
    ]
    assert str(kind.dataset(path)) == f"{kind.name}IterDataset({path})"
    assert str(iter(kind.dataset(path))) == f"{kind.name}DatasetIterator({path})"
    assert str(ds) == f"{kind.name}IterDataset([3 files])"
    for wrong in (None, 3, b"bytes", {"a"}, [None], [["a"]], iter(["a"])):
        assert_raises(TypeError, "path must be a path or a sequence of paths", kind.dataset, wrong)
    it = iter(kind.dataset(tmp_path / "missing"))
    for call in (it.__next__, it.__next__, it.skip_failed):
        assert_raises(FileNotFoundError, "missing", call)
    kind.write(tmp_path / "missing")
    assert list(it) == kind.elements


@each_kind
def test_workers_share_files(kind, tmp_path):
    paths = [
        kind.write_numbers(tmp_path / f"{i}", [10 * i, 10 * i + 1, 10 * i + 2]) for i in range(3)
    ]
    ds = kind.dataset(paths).map(kind.number)
    assert [list(slice_pipeline(ds, i, 2)) for i in range(2)] == [
        [0, 20, 1, 21, 2, 22],
        [10, 11, 12],
    ]
    assert [
        list(slice_pipeline(kind.dataset(paths[:1]).map(kind.number), i, 2)) for i in range(2)
    ] == [[0, 1, 2], []]
    for path in (paths[0], Path(paths[0])) if kind is TF else ():
        with pytest.raises(ValueError, match="one file, which cannot be sliced"):
            kind.dataset(path).set_slice(slice(1, None, 2))


@pytest.mark.skipif(
    not Path("/proc/self/fd").is_dir(), reason="the system does not list open files there"
)
@each_kind
def test_when_the_file_is_open(kind, tmp_path, blocks):
    missing = iter(kind.dataset(tmp_path / "missing"))  # nothing is opened here,
    missing.set_state(kind.states[2])  # nor here
    missing.start_prefetch()
    path = kind.write(tmp_path / "a")
    it, dropped = iter(kind.dataset(path)), [iter(kind.dataset(path))]
    for use, opened in (
        (lambda: None, []),
        (lambda: next(it), [path]),
        (lambda: list(it), []),
        (lambda: it.set_state(kind.states[0]), []),
        (lambda: (next(it), it.close()), []),
        (lambda: next(*dropped), [path]),
    ):
        use()
        assert open_files(tmp_path) == opened
    dropped.clear()
    gc.collect()
    assert open_files(tmp_path) == []


class Blob(io.BytesIO):
    """A file of an object store, whose connection breaks where the bytes at ``breaks`` are asked
    for.
    """

    def __init__(self, content, seeks, breaks):
        super().__init__(content)
        self.seeks, self.breaks = seeks, breaks

    def seekable(self):
        return self.seeks

    def read(self, size):
        if any(self.tell() <= offset < self.tell() + size for offset in self.breaks):
            raise EOFError("connection lost")
        return super().read(size)


@pytest.mark.parametrize("compress", [None, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("seeks", [True, False], ids=["seeks", "streams"])
def test_files_that_a_function_opens(blocks, seeks, compress):
    content, breaks, opened = b"".join(map(framed, RECORDS)), [], []

    def open_blob(path):
        opened.append(Blob(compress(content) if compress else content, seeks, breaks))
        return opened[-1]

    path = "gs://bucket/a"
    ds = TFRecordIterDataset(path, open=open_blob, compression=compress and "gzip")
    assert f"TFRecordIterDataset({path}, open=open_blob" in repr(ds)
    it = iter(ds)
    for position in (0, 20, 3, 30, 7):
        it.set_state(offset(position))
        assert it.get_state() == offset(position) and list(it) == RECORDS[position:]
        assert all(file.closed for file in opened)
    it.set_state(offset(9))
    breaks += [5, 6] if compress else [offset(12)["reader_offset"] + 3, offset(20)["reader_offset"]]
    read, num_errors = [], 0
    while len(read) < 21:
        before = it.get_state()
        try:
            read.append(next(it))
        except EOFError as error:
            assert it.get_state() == before and all(file.closed for file in opened)
            assert any(f"{path} was to be read behind byte" in note for note in error.__notes__)
            num_errors += 1
            del breaks[0]
    assert read == RECORDS[9:] and num_errors == 2
    it.set_state(offset(5))
    assert next(it) == RECORDS[5] and not opened[-1].closed
    it.close()
    assert opened[-1].closed


def lost(path):
    raise LookupError("no such blob")


def as_text(path):
    return Path(path).open()


def of_text(path):
    return SimpleNamespace(read=lambda size: "text", close=int)


USELESS = [
    (lost, LookupError, "no such blob.*a.tfrecord was to be opened by lost"),
    pytest.param(
        as_text,
        TypeError,
        "as_text.* returned for .*a.tfrecord a TextIOWrapper, which is a text file: use the"
        " mode rb",
    ),
    (len, TypeError, "but len returned for .*a.tfrecord a int"),
    (of_text, TypeError, "must return bytes, that of .*a.tfrecord returned 'text'"),
]


@pytest.mark.parametrize(
    ("opener", "error", "match"), USELESS, ids=lambda x: getattr(x, "__name__", "")
)
def test_functions_that_open_nothing_of_use(records, opener, error, match):
    it = iter(TFRecordIterDataset(records, open=opener))
    for _ in range(2):
        with pytest.raises(error) as raised:
            next(it)
        assert re.search(
            match, "\n".join([*map(str, raised.value.args), *raised.value.__notes__]), re.DOTALL
        )
    assert_raises(TypeError, "open must be a function", TFRecordIterDataset, records, open="rb")


def test_workers_open_files_by_a_function(tmp_path):
    paths = [
        write_records(tmp_path / f"{i}", [b"%d" % x for x in range(10 * i, 10 * i + 3)])
        for i in range(2)
    ]

    def numbers(opener):
        ds = TFRecordIterDataset(paths, open=opener).map(int)
        return list(ds.mp_prefetch(MultiprocessingOptions(num_workers=2, executor="processes")))

    assert numbers(lambda path: io.BytesIO(Path(path).read_bytes())) == [0, 10, 1, 11, 2, 12]
    with pytest.raises(TypeError, match="pickle") as error:
        numbers(functools.partial(open, opener=threading.Lock()))
    assert any(
        re.search(r"open of TFRecordIterDataset\(\[2 files\].*cannot be pickled", note)
        for note in error.value.__notes__
    )


def flip(path, position):
    content = bytearray(Path(path).read_bytes())
    content[position] ^= 1
    Path(path).write_bytes(content)


TENTH = offset(10)["reader_offset"]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_damaged_record(records, blocks, size):
    flip(records, TENTH + 20)
    it = iter(TFRecordIterDataset(records).batch(size, batch_fn=list))
    for batch in [RECORDS[i : i + size] for i in range(0, len(RECORDS), size)]:
        if RECORDS[10] not in batch:
            assert next(it) == batch
            continue
        before = it.get_state()
        assert_stays(
            it, ValueError, rf"a\.tfrecord .* byte {TENTH} has a wrong checksum of its data"
        )
        it.skip_failed()
    assert list(it) == []
    it.set_state(before)
    assert_raises(ValueError, "checksum", next, it)
    flip(records, TENTH + 20)  # it heals
    assert [x for batch in it for x in batch] == RECORDS[10 // size * size :]


def test_a_damaged_length_cannot_be_skipped(records, blocks):
    flip(records, TENTH)
    it = iter(TFRecordIterDataset(records))
    assert [next(it) for _ in range(10)] == RECORDS[:10]
    for use in (lambda: next(it), it.skip_failed) * 2:
        assert_raises(ValueError, f"byte {TENTH} has a wrong checksum of its length", use)
    assert it.get_state() == offset(10)
    flip(records, TENTH)
    Path(records).write_bytes(Path(records).read_bytes()[: TENTH + 12])
    it = iter(TFRecordIterDataset(records))
    assert [next(it) for _ in range(10)] == RECORDS[:10]
    assert_stays(it, ValueError, f"byte {TENTH} is cut off")
    it.skip_failed()
    for _ in range(2):
        assert list(it) == []
        assert it.get_state() == {"reader_offset": TENTH + 12}
        it.set_state(it.get_state())


def test_states_of_a_longer_file_and_shared_row_groups(rows):
    it = iter(ParquetIterDataset(rows))
    for wrong in (state(4, 0), state(0, 4), state(1, 1), state(3, 5), state(100, 0)):
        it.set_state(wrong)
        assert it.get_state() == wrong
        for use in (next, next, get_next_index):
            assert_raises(StateIndexError, "has become shorter", use, it)
    it.set_state(state(3, 3))
    assert list(it) == ROWS[8:]
    for count, path in itertools.product((1, 2, 3, 4, 6), (rows, [rows])):
        for index in range(count):
            share = slice_pipeline(ParquetIterDataset(path).map(PQ.number), index, count)
            assert list(share) == [x for group in GROUPS[index::count] for x in group]
            assert iter(share).get_state() == state(0, 0)
            if index < 4 and index != 1:
                assert_equal_output_after_checkpoint(share, at_end=True)


def test_empty_row_groups_and_boundaries_which_have_two_names(tmp_path, rows, blocks):
    ends = {
        (): state(0, 0),
        (0,): state(0, 0),
        (0, 0): state(1, 0),
        (2, 0, 0): state(2, 0),
        (0, 0, 2): state(2, 2),
    }
    for sizes, end in ends.items():
        it = iter(
            ParquetIterDataset(write_rows(tmp_path / "b.parquet", [range(size) for size in sizes]))
        )
        assert [*map(PQ.number, it)] == list(range(sum(sizes)))
        for _ in range(2):
            assert it.get_state() == end
            it.set_state(end)
            assert list(it) == []
    it = iter(ParquetIterDataset(rows))
    for number, group in enumerate(GROUPS):
        for row in range(len(group) + 1):
            it.set_state(state(number, row))
            assert it.get_state() == state(number, row)
            assert list(it) == ROWS[sum(map(len, GROUPS[:number])) + row :]


DAMAGES = [
    (2, state(0, 3), state(2, 2)),
    (2, state(2, 1), state(2, 2)),
    (3, state(2, 2), state(3, 4)),
]


@pytest.mark.parametrize(("damaged", "place", "behind"), DAMAGES)
def test_a_damaged_row_group(rows, blocks, damaged, place, behind):
    content = Path(rows).read_bytes()
    start = pq.ParquetFile(rows).metadata.row_group(damaged).column(0).data_page_offset
    Path(rows).write_bytes(content[:start] + bytes(30) + content[start + 30 :])
    it = iter(ParquetIterDataset(rows))
    first = PQ.states.index(place)
    if place == state(2, 1):
        it.set_state(place)
    assert place == state(2, 1) or [next(it) for _ in range(first)] == ROWS[:first]
    assert_stays(
        it,
        ValueError,
        rf"row group {damaged} of .*a\.parquet cannot be read as Parquet: .* leave it out",
        place,
    )
    it.skip_failed()
    assert it.get_state() == behind
    assert list(it) == ROWS[PQ.states.index(behind) :]
    it.set_state(place)
    assert_raises(ValueError, f"row group {damaged}", next, it)
    Path(rows).write_bytes(content)
    assert list(it) == ROWS[first:]


def test_columns_and_other_arguments_and_next_index(rows, tmp_path):
    assert list(ParquetIterDataset(rows, columns=["text"]))[1] == {"text": "row 1"}
    assert list(ParquetIterDataset(rows, memory_map=True)) == ROWS
    for wrong in ("text", [1], 3, iter(["text"])):
        with pytest.raises(TypeError, match="columns must be a sequence of names"):
            ParquetIterDataset(rows, columns=wrong)
    assert_raises(ValueError, "columns must not be empty", ParquetIterDataset, rows, columns=[])
    assert_raises(TypeError, "no_such_argument", list, ParquetIterDataset(rows, no_such_argument=1))
    for ds in (
        ParquetIterDataset(rows, columns=["x"]),
        ParquetIterDataset([rows, rows], columns=("x",)),
    ):
        assert get_element_spec(ds.batch(2, drop_remainder=True)) == {
            "x": ShapeDtypeStruct((2,), np.int64)
        }
    for ds, match in (
        (ParquetIterDataset(rows), "column 'text'"),
        (ParquetIterDataset([]), "no rows"),
    ):
        assert_raises(NotImplementedError, match, get_element_spec, ds)
    it = iter(ParquetIterDataset(rows, columns=["y"]))
    assert_stays(it, ValueError, r"a\.parquet has no 'y', it has \['x', 'text'\]")
    it = iter(ParquetIterDataset(rows))
    for i in (4, 0, 9, 3, 5, 8):
        set_next_index(it, i)
        assert get_next_index(it) == i
        assert list(it) == ROWS[i:]
        assert get_next_index(it) == 9
    assert_raises(
        IndexError, r"index must be in \[0, 9\], the number of rows, got 10", set_next_index, it, 10
    )
    empty = iter(ParquetIterDataset(write_rows(tmp_path / "empty.parquet", [])))
    set_next_index(empty, 0)
    assert get_next_index(empty) == 0
    empty.close()
    assert_raises(ValueError, "closed", get_next_index, empty)


def test_a_failing_filesystem_is_not_a_damaged_file():
    memory = pytest.importorskip("fsspec").filesystem("memory")

    class Down(type(memory)):
        def _open(self, *args, **kwargs):
            raise ConnectionError("reset by peer")

    memory.pipe("/there.parquet", b"123")
    for name, filesystem, error, match in [
        ("nothing", memory, FileNotFoundError, r"nothing\.parquet"),
        ("there", Down(), ConnectionError, "reset by peer"),
        ("there", memory, ValueError, "cannot be read as Parquet"),
    ]:
        with pytest.raises(error, match=match):
            list(ParquetIterDataset(f"/{name}.parquet", filesystem=filesystem))
