"""``device_put``: elements on an accelerator, ahead of their use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gristmill.core.element_spec import ShapeDtypeStruct, map_spec
from gristmill.core.errors import as_int, missing_package
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.stages.thread_prefetch import ThreadPrefetchIterDataset


def device_put(
    ds: IterDataset[Any] | MapDataset[Any],
    device: object,
    *,
    cpu_buffer_size: int = 4,
    device_buffer_size: int = 2,
) -> IterDataset[Any]:
    """Returns the elements of ``ds`` as JAX arrays on ``device``, sent there by a thread ahead of
    their use.

    One thread computes elements, another one sends them, so that computing, copying and using
    overlap. Elements are pytrees of what ``jax.device_put`` takes; dtypes follow JAX's rules
    (``int64`` becomes ``int32`` unless 64 bit are enabled).

    Order: that of ``ds``. State: that of ``ds``, after the last delivered element, so this stage
    can be added and removed without effect on checkpoints. Cost: up to ``device_buffer_size + 1``
    elements on the device beyond those in use. On the CPU, JAX may use the memory of an array as it
    is, without a copy; buffers that are recycled wait until JAX has let go of them.

    Args:
        ds: the dataset.
        device: what ``jax.device_put`` takes: a device, a sharding, or a pytree of them that fits
            the elements.
        cpu_buffer_size: elements kept ready on the host; 0 for no thread.
        device_buffer_size: elements kept ready on the device; 0 for no thread.

    Raises:
        ImportError: JAX is not installed.
        TypeError: a size is not an integer.
        ValueError: a size is negative.

    Example:
        >>> import jax
        >>> ds = MapDataset.range(4).to_iter_dataset().batch(2)
        >>> [x.tolist() for x in device_put(ds, jax.devices()[0])]
        [[0, 1], [2, 3]]
    """
    cpu_buffer_size = as_int("cpu_buffer_size", cpu_buffer_size, minimum=0)
    device_buffer_size = as_int("device_buffer_size", device_buffer_size, minimum=0)
    try:
        import jax  # noqa: F401  (fails now if missing, not with the first element)
    except ImportError as error:
        raise missing_package("jax", "jax", "device_put") from error
    on_host = ThreadPrefetchIterDataset(ds, prefetch_buffer_size=cpu_buffer_size)
    return ThreadPrefetchIterDataset(
        on_host.map(_ToDevice(device)), prefetch_buffer_size=device_buffer_size
    )


@dataclass(frozen=True)
class _ToDevice:
    device: Any

    def __call__(self, element: object) -> Any:
        import jax

        return jax.device_put(element, self.device)

    def output_spec(self, input_spec: object) -> Any:
        import jax

        return map_spec(
            lambda leaf: ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype)),
            input_spec,
        )
