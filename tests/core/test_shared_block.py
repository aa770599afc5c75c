import pickle
import shutil
import uuid
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from gristmill.core.shared_block import SharedBlock


@pytest.fixture
def name():
    return f"gristmill-{uuid.uuid4().hex[:12]}"


def test_all_handles_see_the_same_bytes(name):
    block = SharedBlock(name, 100)
    assert isinstance(block, SharedMemory)
    assert block.name == name
    assert block.size >= 100
    attached, unpickled = SharedBlock(name), pickle.loads(pickle.dumps(block))
    block.buf[7] = 42
    assert attached.buf[7] == unpickled.buf[7] == 42
    assert attached.size == unpickled.size == block.size
    block.unlink()


@pytest.mark.parametrize("unlinker", [0, 1])
def test_a_name_is_unlinked_once_by_whoever_comes_first(name, unlinker):
    handles = [SharedBlock(name, 8), SharedBlock(name)]
    handles[unlinker].unlink()
    for handle in handles:
        with pytest.raises(FileNotFoundError):
            handle.unlink()
        handle.buf[0] = 1  # still mapped
    with pytest.raises(FileNotFoundError):
        SharedBlock(name)


def test_a_free_name_can_be_taken_again(name):
    for _ in range(2):
        block = SharedBlock(name, 8)
        with pytest.raises(FileExistsError):
            SharedBlock(name, 8)
        block.unlink()


def test_closing_twice_is_allowed(name):
    block = SharedBlock(name, 8)
    block.close()
    block.close()
    assert block.buf is None
    block.unlink()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="the size of the memory is only known on Linux")
def test_too_little_memory_is_an_error_and_takes_no_name(name):
    with pytest.raises(OSError, match=r"cannot allocate \d+ bytes of shared memory"):
        SharedBlock(name, shutil.disk_usage("/dev/shm").total + (1 << 20))
    with pytest.raises(FileNotFoundError):
        SharedBlock(name)
