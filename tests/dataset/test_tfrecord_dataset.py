"""``TFRecordIterDataset`` as a stage; files themselves are tested with the source."""

import gc
import gzip
import itertools
import pickle
import struct
import threading
from pathlib import Path

import pytest

from gristmill import MapDataset
from gristmill.core.errors import StateIndexError
from gristmill.core.options import MultiprocessingOptions
from gristmill.dataset.stages.interleave import InterleaveIterDataset
from gristmill.dataset.stages.tfrecord import TFRecordIterDataset
from gristmill.sources import tfrecord
from gristmill.sources.crc32c import masked_crc32c

RECORDS = [f"record {i}".encode() * i for i in range(30)]


def write(path, records):
    with Path(path).open("wb") as file:
        for data in records:
            for part in (struct.pack("<Q", len(data)), data):
                file.write(part + struct.pack("<I", masked_crc32c([part])[0]))
    return str(path)


def begin_of(i):
    return sum(16 + len(record) for record in RECORDS[:i])


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.tfrecord", RECORDS)


@pytest.fixture(params=[64, 1 << 18], ids=["small_blocks", "one_block"])
def block_bytes(request, monkeypatch):
    monkeypatch.setattr(tfrecord, "_BLOCK_BYTES", request.param)


def damage(path, position):
    content = bytearray(Path(path).read_bytes())
    content[position] ^= 1
    Path(path).write_bytes(content)


def open_files(folder):
    """The files in ``folder`` that this process has open."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [target for link in links if (target := str(link.readlink())).startswith(str(folder))]


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not list open files there")


def test_elements_and_states(path, block_bytes):
    it = iter(TFRecordIterDataset(path))
    for i, record in enumerate(RECORDS):
        assert it.get_state() == {"reader_offset": begin_of(i)}
        assert next(it) == record
    end = {"reader_offset": Path(path).stat().st_size}
    assert it.get_state() == end
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(it)
        assert it.get_state() == end


def test_one_file_in_any_form(path):
    for form in (path, Path(path), [path], (Path(path),)):
        it = iter(TFRecordIterDataset(form))
        assert list(it) == RECORDS
        assert list(it.get_state()) == ["reader_offset"]


def test_several_files(path, tmp_path):
    other = write(tmp_path / "b.tfrecord", [b"x", b"y"])
    ds = TFRecordIterDataset([path, other, path])
    assert list(itertools.islice(ds, 8)) == [b"", b"x", b"", RECORDS[1], b"y", RECORDS[1], RECORDS[2], RECORDS[2]]
    assert sorted(ds) == sorted([*RECORDS, *RECORDS, b"x", b"y"])
    state = iter(ds).get_state()
    assert state["iterators_in_use_states"] == [{"reader_offset": 0}] * 3
    assert list(TFRecordIterDataset([])) == []


def test_sixteen_files_are_read_in_turn(tmp_path):
    paths = [write(tmp_path / f"{i}.tfrecord", [bytes([i]), bytes([i, 1])]) for i in range(18)]
    first, second = [bytes([i]) for i in range(18)], [bytes([i, 1]) for i in range(18)]
    expected = [*first[:16], *second[:16], first[16], first[17], second[16], second[17]]
    assert list(TFRecordIterDataset(paths)) == expected


def test_interleaved_by_hand(path, tmp_path):
    other = write(tmp_path / "b.tfrecord", [b"x", b"y"])
    ds = InterleaveIterDataset(MapDataset.source([path, other]).map(TFRecordIterDataset), cycle_length=2)
    assert list(ds) == list(TFRecordIterDataset([path, other]))


def test_compressed(tmp_path, path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(Path(path).read_bytes()))
    it = iter(TFRecordIterDataset(tmp_path / "a.gz", compression="gzip"))
    assert [next(it) for _ in range(20)] == RECORDS[:20]
    state = it.get_state()
    assert state == {"reader_offset": begin_of(20)}
    it.set_state({"reader_offset": begin_of(3)})
    assert next(it) == RECORDS[3]
    it.set_state(state)
    assert list(it) == RECORDS[20:]


def test_arguments():
    for wrong in (None, 3, b"bytes", {"a"}, [None], [["a"]], iter(["a"])):
        with pytest.raises(TypeError, match="path must be a path or a sequence of paths"):
            TFRecordIterDataset(wrong)
    with pytest.raises(ValueError, match="compression"):
        TFRecordIterDataset("a", compression="bz2")


def test_texts(path, tmp_path):
    ds = TFRecordIterDataset(path)
    assert str(ds) == f"TFRecordIterDataset({path})"
    assert str(iter(ds)) == f"TFRecordDatasetIterator({path})"
    assert str(TFRecordIterDataset([path, path])) == "TFRecordIterDataset([2 files])"


@needs_proc
def test_when_the_file_is_open(path, tmp_path, block_bytes):
    missing = iter(TFRecordIterDataset(tmp_path / "missing.tfrecord"))  # nothing is opened here,
    missing.set_state({"reader_offset": 5})  # nor here
    missing.start_prefetch()
    it = iter(TFRecordIterDataset(path))
    assert open_files(tmp_path) == []
    next(it)
    assert open_files(tmp_path) == [path]
    list(it)
    assert open_files(tmp_path) == []
    it.set_state({"reader_offset": 0})
    assert open_files(tmp_path) == []
    next(it)
    it.close()
    assert open_files(tmp_path) == []
    with pytest.raises(ValueError, match="closed"):
        next(it)
    other = iter(TFRecordIterDataset(path))
    next(other)
    del other
    gc.collect()
    assert open_files(tmp_path) == []


def test_a_missing_file(tmp_path):
    path = tmp_path / "a.tfrecord"
    it = iter(TFRecordIterDataset(path))
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match=r"a\.tfrecord"):
            next(it)
    with pytest.raises(FileNotFoundError):
        it.skip_failed()
    write(path, [b"there"])
    assert list(it) == [b"there"]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_damaged_data(path, block_bytes, size):
    whole = list(TFRecordIterDataset(path))
    damage(path, begin_of(10) + 20)
    it = iter(TFRecordIterDataset(path).batch(size, batch_fn=list))
    batches = [whole[i : i + size] for i in range(0, len(whole), size)]
    for batch in batches:
        if RECORDS[10] not in batch:
            assert next(it) == batch
            continue
        before = it.get_state()
        for _ in range(2):
            with pytest.raises(ValueError, match=rf"a\.tfrecord .* byte {begin_of(10)} has a wrong checksum of its data"):
                next(it)
            assert it.get_state() == before
        it.skip_failed()
    with pytest.raises(StopIteration):
        next(it)


def test_a_damage_that_heals(path, block_bytes):
    damage(path, begin_of(10) + 20)
    it = iter(TFRecordIterDataset(path))
    assert [next(it) for _ in range(10)] == RECORDS[:10]
    with pytest.raises(ValueError, match="checksum"):
        next(it)
    damage(path, begin_of(10) + 20)
    assert list(it) == RECORDS[10:]


def test_a_damaged_length_cannot_be_skipped(path, block_bytes):
    damage(path, begin_of(10))
    it = iter(TFRecordIterDataset(path))
    assert [next(it) for _ in range(10)] == RECORDS[:10]
    for _ in range(2):
        with pytest.raises(ValueError, match=f"byte {begin_of(10)} has a wrong checksum of its length"):
            next(it)
        with pytest.raises(ValueError, match="checksum of its length"):
            it.skip_failed()
    assert it.get_state() == {"reader_offset": begin_of(10)}


@pytest.mark.parametrize("left", [5, 12, 40])
def test_a_cut_off_record_is_the_last_one(path, block_bytes, left):
    Path(path).write_bytes(Path(path).read_bytes()[: begin_of(10) + left])
    it = iter(TFRecordIterDataset(path))
    assert [next(it) for _ in range(10)] == RECORDS[:10]
    for _ in range(2):
        with pytest.raises(ValueError, match=f"byte {begin_of(10)} is cut off"):
            next(it)
    it.skip_failed()
    assert list(it) == []
    assert it.get_state() == {"reader_offset": begin_of(10) + left}
    state = it.get_state()
    it.set_state(state)
    assert list(it) == []


def test_a_state_of_a_longer_file(path):
    it = iter(TFRecordIterDataset(path))
    it.set_state({"reader_offset": 10**6})
    assert it.get_state() == {"reader_offset": 10**6}
    for _ in range(2):
        with pytest.raises(StateIndexError, match="reader_offset must be at most"):
            next(it)
    it.set_state({"reader_offset": 0})
    assert list(it) == RECORDS


def test_one_of_several_files_is_damaged(path, tmp_path):
    other = write(tmp_path / "b.tfrecord", [b"x", b"y", b"z"])
    damage(other, 17 + 12)
    it = iter(TFRecordIterDataset([path, other]))
    assert [next(it) for _ in range(3)] == [RECORDS[0], b"x", RECORDS[1]]
    with pytest.raises(ValueError, match=r"b\.tfrecord .* byte 17 "):
        next(it)
    it.skip_failed()
    assert list(it) == [RECORDS[2], b"z", *RECORDS[3:]]


def test_workers_share_files(path, tmp_path):
    paths = [write(tmp_path / f"{i}.tfrecord", [b"%d-%d" % (i, k) for k in range(3)]) for i in range(3)]
    ds = TFRecordIterDataset(paths).mp_prefetch(MultiprocessingOptions(num_workers=2))
    expected = [b"0-0", b"1-0", b"2-0", b"1-1", b"0-1", b"1-2", b"2-1", b"0-2", b"2-2"]
    it = iter(ds)
    try:
        assert [next(it) for _ in range(4)] == expected[:4]
        state = it.get_state()
        assert list(it) == expected[4:]
        it.set_state(state)
        assert list(it) == expected[4:]
    finally:
        it.close()


def test_one_file_cannot_be_shared(path):
    for form, is_refused in ((path, True), (Path(path), True), ([path], False)):
        ds = TFRecordIterDataset(form)
        if is_refused:
            with pytest.raises(ValueError, match="one file, which cannot be sliced"):
                ds.set_slice(slice(1, None, 2))
        else:
            ds.set_slice(slice(1, None, 2))
            assert list(ds) == []


def test_many_threads(path):
    ds = pickle.loads(pickle.dumps(TFRecordIterDataset([path, path])))
    expected, results = list(ds), []
    threads = [threading.Thread(target=lambda: results.append(list(ds))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 8
