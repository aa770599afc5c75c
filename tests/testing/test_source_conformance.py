"""``assert_source_conforms`` accepts whatever is a source, and names the law that a wrong one breaks."""

import itertools
import os
import threading
from collections import OrderedDict

import numpy as np
import pytest

from gristmill.sources import InMemoryDataSource, RangeDataSource
from gristmill.testing import assert_source_conforms

ARRAYS = [np.arange(i, i + 3) for i in range(20)]


class Right:
    """A source without any mistake, to derive mistakes from."""

    def __init__(self):
        self.records = [np.arange(i, i + 3) for i in range(20)]

    def __len__(self):
        return len(self.records)

    def __getitem__(self, key):
        return self.records[key]

    def __repr__(self):
        return "Numbers(20)"


class RightVectored(Right):
    def __getitems__(self, keys):
        return [self[key] for key in keys]


class Unread(Right):
    """Opens what it needs at the first read, as sources of files do."""

    opened = None

    def __getitem__(self, key):
        if self.opened is None:
            self.opened = threading.Lock()
        return super().__getitem__(key)

    def __getstate__(self):
        return {**self.__dict__, "opened": None}


class NotComparable(Right):
    """Its records have no ``==``."""

    def __getitem__(self, key):
        return Opaque(super().__getitem__(key))


class Opaque:
    def __init__(self, value):
        self.value = value


class Huge(Right):
    def __len__(self):
        return 10**15

    def __getitem__(self, key):
        if key >= 10**15:
            raise IndexError(key)
        return key * 2


RIGHT = {
    "list": list("abc"),
    "tuple": ({"x": 1}, {"x": None}),
    "text": "some text",
    "range": range(1000),
    "array": np.arange(12.0).reshape(4, 3),
    "structured": np.array([(1, np.nan), (2, 3.0)], [("a", int), ("b", float)]),
    "empty": [],
    "plain": Right(),
    "vectored": RightVectored(),
    "unread": Unread(),
    "not_comparable": NotComparable(),
    "huge": Huge(),
    "range_source": RangeDataSource(3, 100, 7),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_accepted(name):
    assert_source_conforms(RIGHT[name])


def test_sources_in_shared_memory_are_accepted():
    source = InMemoryDataSource([1, 2.5, "three", b"four", None])
    assert_source_conforms(source)
    source.unlink()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_array_record_files_are_accepted(tmp_path):
    from array_record.python.array_record_module import ArrayRecordWriter

    from gristmill.sources import ArrayRecordDataSource

    path = str(tmp_path / "records.array_record")
    writer = ArrayRecordWriter(path, "group_size:2")
    for i in range(9):
        writer.write(b"record %d" % i)
    writer.close()
    with ArrayRecordDataSource(path) as source:
        assert_source_conforms(source)


def test_a_worker_process_reads_the_same():
    assert_source_conforms(RightVectored(), in_worker=True)


def test_a_source_of_one_record_and_few_keys():
    assert_source_conforms(["only"], max_records=1)
    assert_source_conforms(Right(), max_records=1)


def test_a_source_may_answer_every_key():
    class Squares(Right):
        def __getitem__(self, key):
            return key**2

    assert_source_conforms(Squares(), with_range=False)
    with pytest.raises(AssertionError, match=r"beyond the end.*source\[20\], with len\(source\) = 20, gave 400.*with_range"):
        assert_source_conforms(Squares())


def test_a_repr_matters_to_a_data_loader_only():
    class Bare(Right):
        __repr__ = object.__repr__

    assert_source_conforms(Bare(), with_repr=False)


class Grows(Right):
    def __getitem__(self, key):
        self.records.append(self.records[-1]) if len(self.records) < 25 else None
        return super().__getitem__(key)


class Incomplete(Right):
    def __getitem__(self, key):
        if key == 19:
            raise OSError("no such file")
        return super().__getitem__(key)


class Random(Right):
    def __getitem__(self, key):
        return np.random.default_rng().normal() if key == 7 else super().__getitem__(key)


class ReusesABuffer(Right):
    def __init__(self):
        super().__init__()
        self.buffer = np.zeros(3, int)

    def __getitem__(self, key):
        self.buffer[:] = super().__getitem__(key)
        return self.buffer


class ChangesWhatIsStored(Right):
    def __getitem__(self, key):
        self.records[key] += 1
        return self.records[key].copy()


class SortedBlocks(RightVectored):
    def __getitems__(self, keys):
        return super().__getitems__(sorted(keys))


class UniqueBlocks(RightVectored):
    def __getitems__(self, keys):
        return super().__getitems__(list(dict.fromkeys(keys)))


class NoEmptyBlock(RightVectored):
    def __getitems__(self, keys):
        return list(np.stack(super().__getitems__(keys)))


class SharesAPosition(Right):
    """Seeks, then reads: another thread may seek in between, and here, at the first read of each of eight, all do."""

    main = threading.get_ident()
    meeting = threading.Barrier(8)
    thread = threading.local()

    def __getitem__(self, key):
        self.position = key
        if threading.get_ident() != self.main and not hasattr(self.thread, "has_met"):
            self.thread.has_met = True
            self.meeting.wait(10)
        return super().__getitem__(self.position)


class OfOneThread(Right):
    main = threading.get_ident()

    def __getitem__(self, key):
        if threading.get_ident() != self.main:
            raise RuntimeError("SQLite objects created in a thread can only be used in that same thread")
        return super().__getitem__(key)


class HoldsALock(Right):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class ForgetsWhenCopied(Right):
    def __getstate__(self):
        return {"records": self.records[::-1]}


class CopiedOnlyWhenRead(Unread):
    def __getstate__(self):
        state = dict(self.__dict__)
        del state["opened"]
        return state


class OfOneProcess(Right):
    def __init__(self):
        super().__init__()
        self.main = os.getpid()

    def __getitem__(self, key):
        return super().__getitem__(key) if os.getpid() == self.main else None


class WithAddress(Right):
    __repr__ = object.__repr__


class Counted(Right):
    """Another text in every copy."""

    count = itertools.count()

    def __repr__(self):
        if "number" not in self.__dict__:
            self.number = next(self.count)
        return f"Numbers({self.number})"

    def __getstate__(self):
        return {"records": self.records}


class TextDependsOnReads(Right):
    num_reads = 0

    def __getitem__(self, key):
        self.num_reads += 1
        return super().__getitem__(key)

    def __repr__(self):
        return f"Numbers({self.num_reads})"

    def __getstate__(self):
        return {"records": self.records, "num_reads": 0}


class OtherError(Right):
    def __init__(self):
        super().__init__()
        self.records = OrderedDict(enumerate(self.records))


WRONG = {
    Grows: r"len\(source\) is the number .*len\(source\) after reads must be 20, got 25",
    Incomplete: r"is there. Found: source\[19\] raised OSError: no such file",
    Random: r"depends on what is asked for alone.*source\[7\] must be",
    ReusesABuffer: r"depends on what is asked for alone.*source\[19\] must be .*memory",
    ChangesWhatIsStored: r"depends on what is asked for alone.*source\[19\] must be",
    SortedBlocks: r"vectored read gives the same.*source\[19\], read with 19 others must be",
    UniqueBlocks: r"a read of .* at once raised ValueError: UniqueBlocks.__getitems__ must return one record per key",
    NoEmptyBlock: r"vectored read gives the same.*source.__getitems__\(\[\]\) raised ValueError",
    SharesAPosition: r"several threads.*source\[\d+\] in one of 8 threads must be",
    OfOneThread: r"several threads.*source\[\d+\] in one of 8 threads raised RuntimeError: SQLite",
    HoldsALock: r"copy made by cloudpickle.*copying HoldsALock raised TypeError.*__getstate__",
    ForgetsWhenCopied: r"copy made by cloudpickle.*source\[0\] of a copy made before the first read must be",
    CopiedOnlyWhenRead: r"copy made by cloudpickle.*copying CopiedOnlyWhenRead raised KeyError",
    OfOneProcess: r"in a worker process everything is the same.*source\[0\] in a worker process must be .* got None",
    WithAddress: r"the repr is the same.*WithAddress object at 0x.*has a memory address.*define __repr__",
    Counted: r"the repr is the same.*repr of a copy.*Numbers\(0\)",
    TextDependsOnReads: r"the repr is the same.*must be 'Numbers\(0\)'",
    OtherError: r"beyond the end.*source\[20\], with len\(source\) = 20, raised KeyError: 20",
}


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_mistakes_are_found_and_named(kind):
    with pytest.raises(AssertionError, match=f"(?s)^broken law: .*{WRONG[kind]}"):
        assert_source_conforms(kind(), in_worker=kind is OfOneProcess)


def test_a_source_of_another_process_passes_without_a_worker():
    assert_source_conforms(OfOneProcess())


@pytest.mark.parametrize("value", [5, None, iter([1])])
def test_what_is_no_source(value):
    with pytest.raises(TypeError, match="source must have __len__ and __getitem__"):
        assert_source_conforms(value)


def test_max_records_is_checked():
    with pytest.raises(ValueError, match="max_records must be a positive integer"):
        assert_source_conforms([1], max_records=0)
