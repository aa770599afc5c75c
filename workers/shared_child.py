"""The main loop of a process that works for several pools: one worker for each, in a separate
thread.

Guarantees:

1. Workers compute in turns (see ``turns``). Everything else, connection, memory, how far it may be
   ahead, a new start, is its own: none waits for another one but for its turn.
2. A worker ends when its connection does, at the latest when what it computes is done, and leaves
   the others alone.
3. The process ends with its own connection, or where a worker would end a process of its own.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import socket
import struct
import sys
import threading

from gristmill.workers.arena import Arena
from gristmill.workers.child import end_with, made_worker
from gristmill.workers.connections import Disconnected, SocketConnection
from gristmill.workers.logs import log_like
from gristmill.workers.producers import is_closing
from gristmill.workers.setup import Preamble
from gristmill.workers.turns import Turns

# the consumer sends this, which worker of how many, and three file descriptors
JOIN = struct.Struct("<II")
NUM_FDS = 3  # connection, arena, payload


def serve_workers(connection: int, preamble: Preamble) -> None:
    """Lets workers come until ``connection`` ends."""
    log_like(preamble["logs"], 0, 1)
    turns = Turns()
    with socket.socket(fileno=connection) as control:
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(control, JOIN.size, NUM_FDS)
            except ConnectionError:
                return
            if not data:
                return
            index, count = JOIN.unpack(data)
            for fd in fds:
                os.set_inheritable(fd, False)
            threading.Thread(
                target=_work,
                args=(fds, index, count, turns),
                name=f"gristmill-worker-{index}",
                daemon=True,
            ).start()


def _work(fds: list[int], index: int, count: int, turns: Turns) -> None:
    connection, arena_fd, payload = fds
    turns.threads.add(threading.get_ident())
    try:
        preamble = _read_preamble(payload)
        arena = Arena(arena_fd)
        channel = SocketConnection(connection, arena, preamble["buffer_size"])
        with turns.turn():
            worker = made_worker(channel, arena, payload, index, count, preamble, turns)
        with contextlib.suppress(Disconnected):
            worker.run()
        channel.shut()
        worker.end()
        channel.close()
        producer = worker.producer
        if is_closing(producer):
            # of users' iterators; no consumer is left to report it to
            with turns.turn(), contextlib.suppress(Exception):
                producer.close()
    except SystemExit as error:
        end_with(error)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        end_with(SystemExit(1))
    turns.threads.discard(threading.get_ident())
    os.close(arena_fd)
    os.close(payload)


def _read_preamble(payload: int) -> Preamble:
    offset, length = (int.from_bytes(os.pread(payload, 8, at), "little") for at in (0, 8))
    preamble: Preamble = marshal.loads(os.pread(payload, length, offset))
    return preamble
