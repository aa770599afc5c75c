"""Operations that the hosts of a run do together: they agree on the number of steps, and merge
their states.
"""

from __future__ import annotations

import importlib
from typing import Any

from gristmill.core.errors import as_int, missing_package
from gristmill.dataset.states.lanes import merge_states

__all__ = ["agree_jax", "agree_torch", "merge_states"]


def agree_jax(num_steps: int, *, largest: bool = False) -> int:
    """Returns the smallest of the numbers that all JAX processes call this with: an ``agree`` for
    ``global_batch``.

    Waits until all processes have called it, by ``multihost_utils.process_allgather``; alone, it
    returns ``num_steps``.

    Args:
        num_steps: this process's number, at least 0.
        largest: return the largest number instead.

    Raises:
        ImportError: JAX is not installed.
        TypeError: ``num_steps`` is not an integer.
        ValueError: it is negative.
    """
    try:
        from jax.experimental import multihost_utils
    except ImportError as error:
        raise missing_package("jax", "jax", "agree_jax") from error
    import numpy as np

    number = np.int32(as_int("num_steps", num_steps, minimum=0, maximum=2**31 - 1))
    numbers: Any = multihost_utils.process_allgather(number)
    return int(np.max(numbers) if largest else np.min(numbers))


def agree_torch(num_steps: int, *, largest: bool = False) -> int:
    """Returns the smallest of the numbers that all ranks call this with: an ``agree`` for
    ``global_batch``.

    Waits until all ranks of the default process group of ``torch.distributed`` have called it, by
    ``all_reduce`` on the device that its backend works on; without a process group it returns
    ``num_steps``.

    Args:
        num_steps: this rank's number, at least 0.
        largest: return the largest number instead.

    Raises:
        ImportError: PyTorch is not installed.
        TypeError: ``num_steps`` is not an integer.
        ValueError: it is negative.
    """
    try:
        torch: Any = importlib.import_module("torch")
        distributed: Any = importlib.import_module("torch.distributed")
    except ImportError as error:
        raise ImportError("agree_torch needs PyTorch: pip install torch") from error
    number = as_int("num_steps", num_steps, minimum=0)
    if not distributed.is_available() or not distributed.is_initialized():
        return number
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    tensor = torch.tensor(number, dtype=torch.int64, device=device)
    distributed.all_reduce(
        tensor, op=distributed.ReduceOp.MAX if largest else distributed.ReduceOp.MIN
    )
    return int(tensor.item())
