"""The payload of workers: a task by value, and the environment that it needs."""

from __future__ import annotations

import marshal
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from gristmill.core.config import config
from gristmill.core.node_types import expect
from gristmill.workers.arena import open_memory
from gristmill.workers.flags import flag_values, own_flags
from gristmill.workers.logs import log_settings
from gristmill.workers.pickling import dumps, pickled_registrations
from gristmill.workers.setup import Call, Preamble, setup_calls

# Arrays of a task of at least this size are shared by its workers instead of copied.
_MIN_BUFFER_BYTES = 1 << 16
_CHUNK = 1 << 20

# Workers never take accelerator memory unless asked to.
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
}

# Settings of JAX that change results. As environment variables they reach a worker whether or not
# it will import JAX.
_JAX_SETTINGS = (
    "jax_enable_x64",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_random_seed_offset",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_default_matmul_precision",
)


class Payload:
    """The payload of the workers of a pool: a task by value, and the environment that it needs.

    Args:
        task: called in each worker with its index, the number of workers and a function that
            allocates arrays.
        options: what the worker's own loop needs to know.
        environment: variables to set, or with ``None`` to remove, in the environment of the
            workers.

    Raises:
        Exception: what pickling ``task`` raised.
    """

    def __init__(
        self,
        task: Callable[..., object],
        options: Preamble,
        environment: Mapping[str, str | None],
    ) -> None:
        buffers: list[memoryview] = []

        def keep_inline(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < _MIN_BUFFER_BYTES:
                return True
            buffers.append(raw)
            return False

        setup: list[Call] = [
            *setup_calls(),
            *[(config.update, item) for item in config.explicit_values().items()],
        ]
        setup.append((expect, (pickled_registrations(),)))
        self.parts: list[bytes | memoryview] = [
            dumps((setup, flag_values(), own_flags())),
            dumps(task, keep_inline),
            *buffers,
        ]
        ends = [0x1000]
        for part in self.parts:
            ends.append(-(-(ends[-1] + len(part)) // 64) * 64)
        self._starts = ends[:-1]
        self.preamble: Preamble = {
            "path": [str(entry) for entry in sys.path if isinstance(entry, str)],
            "argv": [str(arg) for arg in getattr(sys, "argv", [])],
            "directory": _working_directory(),
            "logs": log_settings(),
            "parts": [
                (start, start + len(part))
                for start, part in zip(self._starts, self.parts, strict=True)
            ],
            **options,
        }
        variables = {**os.environ, **accelerator_free(), **environment}
        self.environment = {name: value for name, value in variables.items() if value is not None}

    def pack(self) -> int:
        """Returns a file descriptor of memory that holds all of it."""
        fd = open_memory("gristmill-task")
        try:
            for start, part in zip(self._starts, self.parts, strict=True):
                view = memoryview(part)
                while view:
                    num = os.pwrite(fd, view[: 1 << 30], start)
                    view, start = view[num:], start + num
            preamble = marshal.dumps({**self.preamble})
            end = os.fstat(fd).st_size
            os.pwrite(fd, preamble, end)
            os.pwrite(fd, end.to_bytes(8, "little") + len(preamble).to_bytes(8, "little"), 0)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def is_in(self, fd: int) -> bool:
        """True if earlier packed memory contains exactly this payload."""
        for start, part in zip(self._starts, self.parts, strict=True):
            view = memoryview(part)
            for i in range(0, len(view), _CHUNK):
                piece = view[i : i + _CHUNK]
                if os.pread(fd, len(piece), start + i) != bytes(piece):
                    return False
        return True


def accelerator_free() -> dict[str, str]:
    """Environment variables of workers: no accelerators, and the settings that JAX has in this
    process, if it is in use here.
    """
    config = getattr(sys.modules.get("jax"), "config", None)
    values = {name.upper(): getattr(config, name, None) for name in _JAX_SETTINGS}
    return {
        **_ENVIRONMENT,
        **{name: str(value) for name, value in values.items() if value is not None},
    }


def _working_directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it has been removed
        return ""
