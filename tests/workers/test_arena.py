"""The guarantees of ``workers/arena.py``, one by one."""

import gc
import os
import random
import sys
import tempfile
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from gristmill.workers import arena as arena_module
from gristmill.workers.arena import Arena, ArenaReader, Mapping, Slot, open_memory

PAGE = os.sysconf("SC_PAGE_SIZE")
WARM = arena_module._MAX_WARM


@pytest.fixture
def fd():
    fd = open_memory("gristmill-test")
    yield fd
    os.close(fd)


@pytest.fixture
def arena(fd):
    return Arena(fd)


@pytest.fixture
def reader(fd):
    return ArenaReader(fd)


def used(fd):
    """Bytes of memory that the system has given."""
    return os.fstat(fd).st_blocks * 512


def send(arena, reader, num_bytes, value):
    """What a worker and the consumer do for one array."""
    slot = arena.allocate(num_bytes)
    arena.view(slot)[:] = value
    return reader.take(slot)


def give_back(arena, reader):
    for slot in reader.released():
        arena.free(slot)


class TestMemory:
    def test_without_memfd_create(self, monkeypatch, tmp_path):
        monkeypatch.delattr(os, "memfd_create")
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        fd = open_memory("name")
        try:
            assert list(tmp_path.iterdir()) == []
            arena, reader = Arena(fd), ArenaReader(fd)
            kept = [send(arena, reader, 10000, k) for k in range(20)]
            assert [int(array[-1]) for array in kept] == [*range(20)]
            del kept
            give_back(arena, reader)  # whether or not the file system can have holes
            assert send(arena, reader, 10000, 9)[0] == 9
        finally:
            os.close(fd)

    @pytest.mark.parametrize("has_ctypes", [True, False])
    def test_has_no_name_and_outlives_its_descriptors(self, monkeypatch, has_ctypes):
        if not has_ctypes:
            monkeypatch.setitem(sys.modules, "ctypes", None)
        before = set(Path("/proc/self/fd").iterdir())
        fd = open_memory("name")
        assert str(Path(f"/proc/self/fd/{fd}").readlink()) == "/memfd:name (deleted)"
        reader = ArenaReader(fd)
        array = send(Arena(fd), reader, 5000, 3)
        os.close(fd)
        del reader
        gc.collect()
        array += 1
        assert array.tolist() == [4] * 5000
        if has_ctypes:
            assert set(Path("/proc/self/fd").iterdir()) == before
        del array
        assert set(Path("/proc/self/fd").iterdir()) == before


class TestSlots:
    @pytest.mark.parametrize("num_bytes", [1, 2, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 2**20, 2**20 + 1])
    def test_are_aligned_and_do_not_overlap(self, arena, num_bytes):
        slots = [arena.allocate(num_bytes) for _ in range(10)]
        assert all(slot.offset % PAGE == 0 and slot.num_bytes == num_bytes for slot in slots)
        offsets = sorted(slot.offset for slot in slots)
        assert min(np.diff(offsets)) >= num_bytes

    def test_are_seen_by_both_sides(self, arena, reader):
        slot = arena.allocate(10000)
        ours, theirs = arena.view(slot), reader.take(slot)
        ours[:] = 5
        assert theirs.tolist() == [5] * 10000
        theirs[3] = 6
        assert ours[3] == 6
        assert type(theirs) is np.ndarray and theirs.flags.writeable and theirs.flags.c_contiguous
        del theirs
        assert reader.released() == [slot]
        assert reader.look(slot)[:4].tolist() == [5, 5, 5, 6]
        assert reader.released() == []  # a look is not watched

    def test_are_used_again_those_used_last_first(self, arena):
        first, second = arena.allocate(5000), arena.allocate(6000)  # of one size
        arena.free(first)
        arena.free(second)
        assert arena.allocate(PAGE).offset not in (first.offset, second.offset)
        assert arena.allocate(7000).offset == second.offset
        assert arena.allocate(5000).offset == first.offset
        assert arena.allocate(5000).offset not in (first.offset, second.offset)
        small = arena.allocate(PAGE)
        arena.free(small)
        assert arena.allocate(PAGE + 1).offset != small.offset

    def test_are_not_used_again_while_somebody_looks(self, arena, reader):
        array = send(arena, reader, 40000, 1).view(np.int64).reshape(50, 100)
        views = [array[3:5], array.T, array.view(np.uint8)[::2], memoryview(array), np.broadcast_to(array[0], (5, 100))]
        cycle = [array]
        cycle.append(cycle)
        del array
        gc.disable()
        try:
            while views:
                assert reader.released() == []
                views.pop(0)
            del cycle
            assert reader.released() == []  # until it is collected
        finally:
            gc.enable()
        gc.collect()
        (slot,) = reader.released()
        assert reader.released() == []
        arena.free(slot)
        assert arena.allocate(40000) == slot

    def test_nothing_that_is_seen_is_overwritten(self, arena, reader):
        """Whatever is kept and dropped, in whatever order, and however late the worker learns of it."""
        rng = random.Random(1)
        kept = deque()
        for step in range(2000):
            size = rng.choice([100, PAGE, PAGE + 1, 30000, 200000])
            kept.append((send(arena, reader, size, step % 251), step % 251))
            while len(kept) > rng.randrange(1, 30):
                kept.rotate(rng.randrange(30))
                array, value = kept.popleft()
                assert array.min() == array.max() == value
            if rng.random() < 0.3:
                give_back(arena, reader)
        for array, value in kept:
            assert array.min() == array.max() == value

    def test_that_a_forked_process_may_see_are_never_used_again(self, arena, reader):
        before = send(arena, reader, 5000, 1)
        reader.share()
        after = send(arena, reader, 5000, 2)
        del before, after
        (slot,) = reader.released()
        arena.free(slot)
        slots = {arena.allocate(5000).offset for _ in range(5)}
        assert slot.offset in slots and len(slots) == 5
        assert 0 not in slots  # the first one


class TestGivingBack:
    def test_few_free_slots_keep_their_memory(self, arena, reader, fd):
        """What is used again and again is not asked of the system again and again, the rest is returned."""
        size = 2**20
        kept = [send(arena, reader, size, k) for k in range(20)]
        assert used(fd) == 20 * size
        kept.clear()
        give_back(arena, reader)
        assert used(fd) == WARM * size
        kept = [send(arena, reader, size, k) for k in range(20)]
        assert [(int(a[0]), int(a[-1])) for a in kept] == [(k, k) for k in range(20)]
        assert used(fd) == 20 * size

    def test_what_was_returned_is_what_was_longest_unused(self, arena, fd):
        slots = [arena.allocate(2**16) for _ in range(10)]
        for k, slot in enumerate(slots):
            arena.view(slot)[:] = k + 1
        for slot in slots:
            arena.free(slot)
        again = [arena.allocate(2**16) for _ in range(10)]
        content = [int(arena.view(slot)[0]) for slot in again]
        assert content[:WARM] == [4, 3, 2, 1]
        assert content[WARM:] == [0] * 6  # holes read as zeros
        assert sorted(again) == sorted(slots)

    def test_after_a_burst_slots_keep_their_memory_again(self, arena, fd):
        """Of many that were kept and let go most have lost their memory, but not those that are used from now on."""
        for slot in [arena.allocate(PAGE) for _ in range(20)]:
            arena.free(slot)
        for _ in range(20):
            slot = arena.allocate(PAGE)
            arena.view(slot)[:] = 1
            arena.free(slot)
        assert used(fd) == PAGE
        assert arena.allocate(PAGE) == slot

    def test_close_returns_all_that_nobody_sees(self, arena, reader, fd):
        kept = [send(arena, reader, 2**18, k) for k in range(30)]
        large = send(arena, reader, 2**26 + 1, 7)  # in another chunk
        assert used(fd) > 2**26 + 30 * 2**18
        kept = [kept[3], kept[4], kept[17], kept[29]]
        reader.close()
        assert used(fd) == 4 * 2**18 + 2**26 + PAGE
        assert [int(a[0]) for a in kept] == [int(a[-1]) for a in kept] == [3, 4, 17, 29]
        assert large[0] == large[-1] == 7

    def test_close_with_nothing_seen(self, arena, reader, fd):
        send(arena, reader, 2**20, 1)
        reader.close()
        assert used(fd) == 0


class TestChunks:
    def test_arithmetic(self, arena):
        first = arena_module._FIRST_CHUNK
        starts = [arena_module._chunk_start(k) for k in range(40)]
        assert starts[:4] == [0, first, 3 * first, 7 * first]
        for k, start in enumerate(starts[:-1]):
            assert starts[k + 1] - start == arena_module._chunk_size(k)
            assert arena_module._chunk_of(start) == arena_module._chunk_of(starts[k + 1] - 1) == k
        size = 2**24  # slots fill a chunk to its end, 4 in the first one, 8 in the second
        assert [arena.allocate(size).offset for _ in range(12)] == [k * size for k in range(12)]

    @pytest.mark.parametrize("num_bytes", [2**26, 2**26 + 1, 2**30, 2**32 + 5])
    def test_a_slot_may_be_larger_than_a_chunk(self, arena, reader, fd, num_bytes):
        """It takes the room of a later one; the file is sparse, so nothing is used but what is written."""
        small, slot, after = arena.allocate(10), arena.allocate(num_bytes), arena.allocate(10)
        chunk = arena_module._chunk_of(slot.offset)
        assert chunk == arena_module._chunk_of(slot.offset + num_bytes - 1)
        view = arena.view(slot)
        assert view.nbytes == num_bytes
        view[0], view[-1] = 1, 2
        arena.view(small)[:], arena.view(after)[:] = 8, 9
        array = reader.take(slot)
        assert (array[0], array[-1]) == (1, 2)
        assert reader.take(small).tolist() == [8] * 10 and reader.take(after).tolist() == [9] * 10
        assert used(fd) <= 8 * PAGE
        assert os.fstat(fd).st_size >= slot.offset + num_bytes
        arena.free(slot)
        assert arena.allocate(num_bytes) == slot

    def test_few_mappings_for_any_amount(self, fd, arena):
        mapping = Mapping(fd)
        for slot in [arena.allocate(2**24) for _ in range(500)]:  # 8 GB that nobody touches
            assert mapping.view(Slot(slot.offset, 10)).nbytes == 10 and mapping.view(slot).nbytes == 2**24
        assert len(mapping._chunks) <= 8
        assert used(fd) == 0
        assert Path("/proc/self/maps").read_text().count("gristmill-test") <= 8
