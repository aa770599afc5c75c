"""``assert_source_conforms`` accepts whatever is a source, and names the law that a wrong one breaks."""

import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from mistakes import MAIN_THREAD, assert_found, variant
from refusing import assert_raises

from gristmill.sources import ArrayRecordDataSource, RangeDataSource
from gristmill.testing import assert_source_conforms

MAIN_PROCESS = os.getpid()


class Right:
    """A source without any mistake, to derive mistakes from."""

    def __init__(self, **attributes):
        self.records = [np.arange(i, i + 3) for i in range(20)]
        vars(self).update(attributes)

    def __len__(self):
        return 20

    def __getitem__(self, key):
        return self.records[key]

    def __repr__(self):
        return "Numbers(20)"


def source(**overrides):
    return variant(Right, **overrides)()


def notes_that_it_was_read(self, key):
    vars(self).setdefault("lock", threading.Lock())
    return self.records[key]


without_lock = {"__getitem__": notes_that_it_was_read, "__getstate__": lambda self: {"records": self.records}}
not_comparable = variant(SimpleNamespace, __eq__=object.__eq__)
RIGHT = {
    "list": list("abc"),
    "tuple": ({"x": 1}, {"x": None}),
    "text": "some text",
    "range": range(1000),
    "array": np.arange(12.0).reshape(4, 3),
    "structured": np.array([(1, np.nan), (2, 3.0)], [("a", int), ("b", float)]),
    "empty": [],
    "plain": Right(),
    "vectored": source(__getitems__=lambda self, keys: [self[key] for key in keys]),
    "opened_when_it_is_read": source(**without_lock),
    "not_comparable": source(__getitem__=lambda self, key: not_comparable(value=self.records[key])),
    "huge": source(__len__=lambda self: 10**15, __getitem__=lambda self, key: range(10**15)[key] * 2),
    "range_source": RangeDataSource(3, 100, 7),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_accepted(name):
    assert_source_conforms(RIGHT[name])
    assert_source_conforms(RIGHT[name], max_records=1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_files_are_accepted(tmp_path):
    from array_record.python.array_record_module import ArrayRecordWriter

    path = str(tmp_path / "records.array_record")
    writer = ArrayRecordWriter(path, "group_size:2")
    for i in range(9):
        writer.write(b"record %d" % i)
    writer.close()
    with ArrayRecordDataSource(path) as records:
        assert_source_conforms(records)


def test_options():
    squares = source(__getitem__=lambda self, key: key**2)
    assert_source_conforms(squares, with_range=False)
    assert_found("beyond the end...source[20], with len(source) = 20, gave 400...with_range", assert_source_conforms, squares)
    assert_source_conforms(source(__repr__=object.__repr__), with_repr=False)  # it matters to a DataLoader alone
    assert_source_conforms(RIGHT["vectored"], in_worker=True)
    of_one_process = source(__getitem__=lambda self, key: self.records[key] if os.getpid() == MAIN_PROCESS else None)
    assert_source_conforms(of_one_process)
    message = "in a worker process everything is the same...source[0] in a worker process must be ... got None"
    assert_found(message, assert_source_conforms, of_one_process, in_worker=True)


class SharesAPosition(Right):
    """Seeks, then reads: another thread may seek in between, and here, at the first read of each of eight, all do."""

    meeting = threading.Barrier(8)
    thread = threading.local()

    def __getitem__(self, key):
        self.position = key
        if threading.get_ident() != MAIN_THREAD and not hasattr(self.thread, "has_met"):
            self.thread.has_met = True
            self.meeting.wait(10)
        return super().__getitem__(self.position)


def wrong(message, **overrides):
    return message, source(**overrides)


WRONG = [
    wrong(
        "len(source) is the number ...len(source) after reads must be 20, got 25",
        **without_lock,
        __len__=lambda self: 25 if "lock" in vars(self) else 20,
    ),
    wrong("is there. Found: source[19] raised IndexError", __getitem__=lambda self, key: self.records[:19][key]),
    wrong(
        "depends on what is asked...source[7] must be",
        __getitem__=lambda self, key: np.random.default_rng().normal() if key == 7 else self.records[key],
    ),
    wrong(
        "depends on what is asked...source[19] must be ...memory",
        buffer=np.zeros(3, int),
        __getitem__=lambda self, key: np.add(self.records[key], 0, out=self.buffer),
    ),
    wrong(
        "depends on what is asked...source[19] must be",
        __getitem__=lambda self, key: np.add(self.records[key], 1, out=self.records[key]).copy(),
    ),
    wrong(
        "vectored read...source[19], read with 19 others must be",
        __getitems__=lambda self, keys: [self[key] for key in sorted(keys)],
    ),
    wrong(
        "at once raised ValueError: Variant.__getitems__ must return one record per key",
        __getitems__=lambda self, keys: [self[key] for key in dict.fromkeys(keys)],
    ),
    wrong(
        "vectored read...source.__getitems__([]) raised ValueError",
        __getitems__=lambda self, keys: list(np.stack([self[key] for key in keys])),
    ),
    ("several threads...source[...] in one of 8 threads must be", SharesAPosition()),
    wrong(
        "several threads...source[...] in one of 8 threads raised IndexError",
        __getitem__=lambda self, key: (self.records if threading.get_ident() == MAIN_THREAD else [])[key],
    ),
    ("by cloudpickle...copying Right raised TypeError...__getstate__", Right(lock=threading.Lock())),
    wrong(
        "by cloudpickle...source[0] of a copy made before the first read must be",
        __getstate__=lambda self: {"records": self.records[::-1]},
    ),
    wrong(
        "by cloudpickle...copying Variant raised KeyError",
        __getitem__=notes_that_it_was_read,
        __getstate__=lambda self: {"records": self.records, "was": str(vars(self)["lock"])},
    ),
    wrong("the repr is the same...Variant object at 0x...has a memory address...define __repr__", __repr__=object.__repr__),
    wrong("the repr is the same...repr of a copy...Numbers(", __repr__=lambda self: f"Numbers({id(self)})"),
    wrong(
        "the repr is the same...repr after reads must be 'False'", **without_lock, __repr__=lambda self: str("lock" in vars(self))
    ),
    wrong(
        "beyond the end...source[20], with len(source) = 20, raised KeyError: 20",
        __getitem__=lambda self, key: dict(enumerate(self.records))[key],
    ),
]


@pytest.mark.parametrize(("message", "wrong_source"), WRONG)
def test_mistakes_are_found_and_named(message, wrong_source):
    assert_found(message, assert_source_conforms, wrong_source)


def test_wrong_arguments():
    for value in (5, None, iter([1])):
        assert_raises(TypeError, "source must have __len__ and __getitem__", assert_source_conforms, value)
    assert_raises(ValueError, "max_records must be a positive integer", assert_source_conforms, [1], max_records=0)
