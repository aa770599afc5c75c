"""Blocks of shared memory of programs that print their names."""

import os

from gristmill.core.shared_block import SharedBlock
from gristmill.multiprocessing import SharedMemoryArray


def make(value=0, shape=(1000,)):
    array = SharedMemoryArray(shape)
    array[:] = value
    os.write(1, f"{array.shm.name}\n".encode())  # whole lines, whichever processes write
    return array


def exists(name):
    try:
        SharedBlock(name)
    except FileNotFoundError:
        return False
    return True
