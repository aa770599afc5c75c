"""The guarantees of ``workers/arena.py``, one by one."""

import ctypes
import fcntl
import gc
import itertools
import mmap
import os
import random
import struct
import sys
import tempfile
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from both_ends import Ends

from gristmill.workers import arena
from gristmill.workers.arena import (
    _FIRST_CHUNK,
    _MAX_WARM,
    Mapping,
    Slot,
    _chunk_of,
    _chunk_size,
    _chunk_start,
)

PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def ends():
    with Ends() as ends:
        yield ends


class TestMemory:
    def test_without_memfd_create(self, monkeypatch, tmp_path):
        monkeypatch.delattr(os, "memfd_create")
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        ends = Ends()
        assert list(tmp_path.iterdir()) == []
        kept = [ends.share(10000, k) for k in range(20)]
        assert [int(array[-1]) for array in kept] == [*range(20)]
        del kept
        ends.give_back()  # whether or not the file system can have holes
        assert ends.share(10000, 9)[0] == 9
        os.close(ends.fd)

    @pytest.mark.parametrize("has_ctypes", [True, False])
    def test_has_no_name_and_outlives_its_descriptors(self, monkeypatch, has_ctypes):
        if not has_ctypes:
            monkeypatch.setitem(sys.modules, "ctypes", None)
        ends = Ends()
        assert str(Path(f"/proc/self/fd/{ends.fd}").readlink()) == "/memfd:gristmill-test (deleted)"
        array = ends.share(5000, 3)
        os.close(ends.fd)
        del ends
        gc.collect()
        array += 1
        assert array.tolist() == [4] * 5000
        assert descriptors_of_tests() == [] or not has_ctypes
        del array
        assert descriptors_of_tests() == []


def descriptors_of_tests():
    """Other descriptors come and go: pools of other tests may end meanwhile."""
    return [fd for fd in Path("/proc/self/fd").iterdir() if "gristmill-test" in str(fd.resolve())]


class TestSlots:
    def test_are_aligned_and_seen_by_both_sides(self, ends):
        slots = []
        for num_bytes in (1, 2, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 2**20, 2**20 + 1):
            slots += [ends.arena.allocate(num_bytes) for _ in range(10)]
            assert all(
                slot.offset % PAGE == 0 and slot.num_bytes == num_bytes for slot in slots[-10:]
            )
        slots.sort()
        assert all(
            slot.offset + slot.num_bytes <= after.offset
            for slot, after in itertools.pairwise(slots)
        )
        slot = ends.arena.allocate(10000)
        ours, theirs = ends.arena.view(slot), ends.reader.take(slot)
        ours[:] = 5
        assert theirs.tolist() == [5] * 10000
        theirs[3] = 6
        assert ours[3] == 6
        assert type(theirs) is np.ndarray
        assert theirs.flags.writeable
        assert theirs.flags.c_contiguous
        del theirs
        assert ends.reader.released() == [slot] and ends.reader.look(slot)[:4].tolist() == [
            5,
            5,
            5,
            6,
        ]
        assert ends.reader.released() == []  # a look is not watched

    def test_are_not_used_again_while_a_view_exists(self, ends):
        array = ends.share(40000, 1).view(np.int64).reshape(50, 100)
        views = [
            array[3:5],
            array.T,
            array.view(np.uint8)[::2],
            memoryview(array),
            np.broadcast_to(array[0], (5, 100)),
        ]
        cycle = [array]
        cycle.append(cycle)
        del array
        gc.disable()
        try:
            while views:
                assert ends.reader.released() == []
                views.pop(0)
            del cycle
            assert ends.reader.released() == []  # until it is collected
        finally:
            gc.enable()
        gc.collect()
        (slot,) = ends.reader.released()
        assert ends.reader.released() == []
        ends.arena.free(slot)
        assert ends.arena.allocate(40000) == slot

    def test_nothing_that_is_seen_is_overwritten(self, ends):
        """Arrays are kept and dropped in any order, and the worker learns of it at any time."""
        rng = random.Random(1)
        kept = deque()
        for step in range(2000):
            size = rng.choice([100, PAGE, PAGE + 1, 30000, 200000])
            kept.append((ends.share(size, step % 251), step % 251))
            while len(kept) > rng.randrange(1, 30):
                kept.rotate(rng.randrange(30))
                array, value = kept.popleft()
                assert array.min() == array.max() == value
            if rng.random() < 0.3:
                ends.give_back()
        assert all(array.min() == array.max() == value for array, value in kept)

    def test_that_a_forked_process_may_see_are_never_used_again(self, ends):
        before = ends.share(5000, 1)
        ends.reader.share()
        after = ends.share(5000, 2)
        del before, after
        (slot,) = ends.reader.released()
        ends.arena.free(slot)
        slots = {ends.arena.allocate(5000).offset for _ in range(5)}
        assert slot.offset in slots and len(slots) == 5
        assert 0 not in slots  # the first one


def hole_of_macos(fd, command, argument, fcntl=fcntl.fcntl):
    """Does what ``fcntl(fd, F_PUNCHHOLE, ...)`` does on macOS."""
    if command != 99:
        return fcntl(fd, command, argument)
    flags, _, start, num_bytes = struct.unpack("=IIqq", argument)
    assert flags == 0 and start % PAGE == num_bytes % PAGE == 0
    fallocate = ctypes.CDLL(None).fallocate
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    if fallocate(fd, 3, start, num_bytes):  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
        raise OSError
    return argument


class TestGivingBack:
    @pytest.fixture(params=["by mappings", "as on macOS"])
    def ends(self, monkeypatch, request):
        if request.param == "as on macOS":
            monkeypatch.setattr(sys, "platform", "darwin")
            monkeypatch.delattr(mmap, "MADV_REMOVE")
            monkeypatch.setattr(fcntl, "fcntl", hole_of_macos)
        with Ends() as ends:
            yield ends

    def test_what_was_returned_is_what_was_longest_unused(self, ends):
        arena = ends.arena
        slots = [arena.allocate(2**16) for _ in range(10)]
        for k, slot in enumerate(slots):
            arena.view(slot)[:] = k + 1
            arena.free(slot)
        again = [arena.allocate(2**16) for _ in range(10)]
        content = [int(arena.view(slot)[0]) for slot in again]
        assert content == [4, 3, 2, 1] + [0] * 6 and _MAX_WARM == 4  # holes read as zeros
        assert sorted(again) == sorted(slots)

    def test_after_a_burst_slots_keep_their_memory_again(self, ends):
        """Of many that were kept and let go most have lost their memory, but not those that are
        used again and again.
        """
        for slot in [ends.arena.allocate(PAGE) for _ in range(20)]:
            ends.arena.free(slot)
        for _ in range(20):
            slot = ends.arena.allocate(PAGE)
            ends.arena.view(slot)[:] = 1
            ends.arena.free(slot)
        assert ends.used() == PAGE and ends.arena.allocate(PAGE) == slot

    def test_close_returns_all_without_a_view(self, ends):
        kept = [ends.share(2**18, k) for k in range(30)]
        large = ends.share(2**26 + 1, 7)  # in another chunk
        ends.share(2**18, 8)
        assert ends.used() > 2**26 + 30 * 2**18
        kept = [kept[3], kept[4], kept[17]]
        ends.reader.close()
        assert ends.used() == 3 * 2**18 + 2**26 + PAGE
        assert [int(a[0]) for a in kept] == [int(a[-1]) for a in kept] == [3, 4, 17]
        assert large[0] == large[-1] == 7

    def test_the_memory_is_what_is_used_and_what_was_used_lately(self, ends, monkeypatch):
        """For all sizes, and slots freed in any order, next to nothing remains in the end."""
        monkeypatch.setattr(arena, "MAX_FREE_BYTES", least := 2**18)
        rng, slots, used, most = random.Random(2), [], 0, 0
        for step in range(3000):
            if rng.random() < (0.6 if step % 500 < 250 else 0.4):
                slots.append(ends.arena.allocate(int(2 ** rng.uniform(6, 22))))
                ends.arena.view(slots[-1])[::PAGE] = 1
                used += room(slots[-1])
            elif slots:
                slot = slots.pop(rng.choice([0, -1, rng.randrange(len(slots))]))
                ends.arena.free(slot)
                used -= room(slot)
            most = max(used, most)
            assert ends.used() <= used + max(least, most)
        for slot in slots[1:]:
            ends.arena.free(slot)
        for _ in range(300):
            ends.arena.settle()
        assert most > 50 * least and ends.used() <= room(slots[0]) + least

    @pytest.mark.parametrize("ends", ["by mappings"], indirect=True)
    # of JAX, where other tests have imported it
    @pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
    def test_each_array_returns_its_own_after_close(self, ends):
        kept = [ends.share(2**20, k) for k in range(10)]
        ends.reader.close()
        ends.reader.close()
        for _ in range(5):
            before = ends.used()
            del kept[3]
            assert before - ends.used() == 2**20
        assert [int(array.max()) for array in kept] == [0, 1, 2, 8, 9]
        if not (child := os.fork()):
            os._exit(0)
        os.waitpid(child, 0)
        kept, after = [kept[1]], ends.used()
        assert kept[0].min() == 1 and ends.used() == after == 5 * 2**20


def room(slot):
    return max(PAGE, 1 << (slot.num_bytes - 1).bit_length())


class TestChunks:
    def test_arithmetic(self, ends):
        starts = [_chunk_start(k) for k in range(40)]
        assert starts[:4] == [0, _FIRST_CHUNK, 3 * _FIRST_CHUNK, 7 * _FIRST_CHUNK]
        for k, start in enumerate(starts[:-1]):
            assert (starts[k + 1] - start, _chunk_of(start), _chunk_of(starts[k + 1] - 1)) == (
                _chunk_size(k),
                k,
                k,
            )
        size = 2**24  # slots fill a chunk to its end, 4 in the first one, 8 in the second
        assert [ends.arena.allocate(size).offset for _ in range(12)] == [
            k * size for k in range(12)
        ]

    @pytest.mark.parametrize("num_bytes", [2**26, 2**26 + 1, 2**32 + 5])
    def test_a_slot_may_be_larger_than_a_chunk(self, ends, num_bytes):
        """It takes the room of a later one; the file is sparse, so nothing is used but what is
        written.
        """
        arena = ends.arena
        small, slot, after = map(arena.allocate, (10, num_bytes, 10))
        view = arena.view(slot)
        assert _chunk_of(slot.offset) == _chunk_of(slot.offset + num_bytes - 1)
        assert view.nbytes == num_bytes
        view[0], view[-1] = 1, 2
        arena.view(small)[:], arena.view(after)[:] = 8, 9
        array = ends.reader.take(slot)
        assert (array[0], array[-1]) == (1, 2)
        assert ends.reader.take(small).tolist() == [8] * 10
        assert ends.reader.take(after).tolist() == [9] * 10
        assert ends.used() <= 8 * PAGE and os.fstat(ends.fd).st_size >= slot.offset + num_bytes
        arena.free(slot)
        assert arena.allocate(num_bytes) == slot

    def test_few_mappings_for_any_amount(self, ends):
        mapping = Mapping(ends.fd)
        for slot in [ends.arena.allocate(2**24) for _ in range(500)]:  # 8 GB that are never touched
            assert mapping.view(Slot(slot.offset, 10)).nbytes == 10
            assert mapping.view(slot).nbytes == 2**24
        assert len(mapping._chunks) <= 8 and ends.used() == 0
        assert Path("/proc/self/maps").read_text().count("gristmill-test") <= 8
