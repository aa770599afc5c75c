import pickle
import shutil
import uuid
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import pytest
from refusing import assert_raises

from gristmill.core.shared_block import SharedBlock, answer_for, free


@pytest.fixture
def name():
    return f"gristmill-{uuid.uuid4().hex[:12]}"


def test_closing_a_handle_leaves_what_others_use(name):
    block = SharedBlock(name, 100)
    assert isinstance(block, SharedMemory)
    assert block.name == name and block.size >= 100
    attached, unpickled = SharedBlock(name), pickle.loads(pickle.dumps(block))
    block.buf[7] = 42
    assert attached.buf[7] == unpickled.buf[7] == 42
    assert attached.size == unpickled.size == block.size
    view, array = block.buf[2:], np.ndarray((8,), "uint8", buffer=block.buf)
    block.close()
    array[2] = 43
    assert view[0] == SharedBlock(name).buf[2] == 43
    attached.close()
    attached.close()
    assert attached.buf is None
    block.unlink()
    blocks = [SharedBlock(size=1) for _ in range(10)]  # chosen names differ and fit every system
    names = {block.name for block in blocks}
    assert len(names) == 10 and max(map(len, names)) < 31
    for block in blocks:
        block.unlink()


@pytest.mark.parametrize("unlinker", [0, 1])
def test_a_name_is_unlinked_once_by_the_first_caller(name, unlinker):
    for _ in range(2):
        handles = [SharedBlock(name, 8), SharedBlock(name)]
        assert_raises(FileExistsError, None, SharedBlock, name, 8)
        handles[unlinker].unlink()
        for handle in handles:
            assert_raises(FileNotFoundError, None, handle.unlink)
            handle.buf[0] = 1  # still mapped
        assert_raises(FileNotFoundError, None, SharedBlock, name)


def test_free_is_silent_and_only_for_names_answered_for(name):
    block, attached = SharedBlock(name, 8), SharedBlock(name)
    free(name)
    free(name)
    assert_raises(FileNotFoundError, None, attached.unlink)
    block = SharedBlock(name, 8)
    block.unlink()
    again = SharedMemory(name, create=True, size=8)
    free(name)  # it is not ours
    SharedBlock(name)
    answer_for(name)
    free(name)
    assert_raises(FileNotFoundError, None, SharedBlock, name)
    again.close()


@pytest.mark.skipif(
    not Path("/dev/shm").is_dir(), reason="the size of the memory is only known on Linux"
)
def test_too_little_memory_is_an_error_and_takes_no_name(name):
    size = shutil.disk_usage("/dev/shm").total + (1 << 20)
    assert_raises(OSError, r"cannot allocate \d+ bytes of shared memory", SharedBlock, name, size)
    assert_raises(FileNotFoundError, None, SharedBlock, name)
