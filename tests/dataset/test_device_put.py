"""Elements on devices: the same values, states and ends as without, on one device and spread over
four.
"""

import sys
import threading

import jax
import numpy as np
import pytest
from operations import plain
from programs import output
from refusing import assert_raises, assert_stays
from waiting import wait_until

from gristmill import MapDataset
from gristmill.experimental import (
    ShapeDtypeStruct,
    device_put,
    get_element_spec,
    get_next_index,
    set_next_index,
)
from gristmill.testing import assert_equal_output_after_checkpoint

EXPECTED = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
CPU = jax.devices("cpu")[0]


def batches(n=10):
    return MapDataset.range(n).to_iter_dataset().batch(3)


def put(ds, cpu_buffer_size=4, device_buffer_size=2):
    return device_put(
        ds, CPU, cpu_buffer_size=cpu_buffer_size, device_buffer_size=device_buffer_size
    )


@pytest.mark.parametrize("buffers", [(4, 2), (0, 0), (0, 1), (3, 0), (1, 1)])
def test_elements_and_states(buffers):
    it, bare = iter(put(batches(), *buffers)), iter(batches())
    for expected in EXPECTED:
        assert it.get_state() == bare.get_state()
        element = next(it)
        assert isinstance(element, jax.Array) and element.devices() == {CPU}
        assert element.tolist() == expected == next(bare).tolist()
    assert list(it) == []
    assert_equal_output_after_checkpoint(
        put(batches(), *buffers), at_end=True, in_place=True, through_json=True
    )


def test_threads_run_ahead_until_it_is_closed():
    before = {*threading.enumerate()}
    for used, buffers in ((0, (4, 2)), (2, (4, 2)), (2, (0, 1)), (0, (3, 0))):
        it = iter(put(batches(1000), *buffers))
        for _ in range(used):
            next(it)
        it.close()
        it.close()
        assert_raises(ValueError, "closed", next, it)
    wait_until(lambda: {*threading.enumerate()} <= before)
    computed = threading.Semaphore(0)
    with iter(
        put(MapDataset.range(100).to_iter_dataset().map(lambda x: computed.release() or x), 3, 2)
    ) as it:
        it.start_prefetch()
        for _ in range(5):
            assert computed.acquire(timeout=30)
        assert it.get_state() == {"next_index": 0}
        assert next(it).tolist() == 0


def test_as_a_stage():
    element = {"a": np.arange(3, dtype=np.int64), "b": (np.float32(2), [3, None])}
    got, _ = put(MapDataset.source([element, element]).to_iter_dataset())
    assert got["a"].dtype == jax.dtypes.canonicalize_dtype(np.int64) and got["a"].tolist() == [
        0,
        1,
        2,
    ]
    assert isinstance(got["b"][1][0], jax.Array)
    assert float(got["b"][0]) == 2 and int(got["b"][1][0]) == 3 and got["b"][1][1] is None
    ds = put(batches())
    assert get_element_spec(ds) == ShapeDtypeStruct(
        (None,), jax.dtypes.canonicalize_dtype(np.int64)
    )
    it = iter(ds)
    next(it)
    assert get_next_index(it) == 1
    set_next_index(it, 3)
    assert plain(it) == EXPECTED[3:]
    assert plain(ds.map(lambda x: x + 1).filter(lambda x: bool(x[0] != 4))) == [
        [1, 2, 3],
        [7, 8, 9],
        [10],
    ]
    found = plain(batches().prefetch_to_device(CPU, cpu_buffer_size=1, device_buffer_size=1))
    assert found == EXPECTED
    assert plain(device_put(MapDataset.range(3), CPU)) == [0, 1, 2]  # a map dataset will do
    ds = MapDataset.range(4).seed(5).to_iter_dataset()
    same = ds.map(lambda x: x).map(lambda x: x).map(lambda x: x)  # seeds count its stages
    assert list(put(ds).random_map(lambda x, rng: rng.random())) == list(
        same.random_map(lambda x, rng: rng.random())
    )


def test_errors(monkeypatch):
    it = iter(put(MapDataset.range(5).to_iter_dataset().map(lambda x: x if x != 2 else 1 / 0)))
    assert [int(next(it)), int(next(it))] == [0, 1]
    assert_stays(it, ZeroDivisionError, None, {"next_index": 2})
    it.skip_failed()
    assert plain(it) == [3, 4]
    assert_raises(TypeError, "str", next, iter(put(MapDataset.source(["text"]).to_iter_dataset())))
    with pytest.raises(
        ValueError, match=r"^cpu_buffer_size must be a non-negative integer, got -1"
    ):
        put(batches(), -1, 2)
    assert_raises(TypeError, r"^device_buffer_size must be an integer", put, batches(), 1, 2.5)
    monkeypatch.setitem(sys.modules, "jax", None)
    match = (
        r"^device_put needs the package jax, which is not installed; run: pip install"
        r" 'gristmill\[jax\]'$"
    )
    assert_raises(ImportError, match, put, batches())


FOUR_DEVICES = """
    import json, os
    os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=4")
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from gristmill import MapDataset, MultiprocessingOptions, ReadOptions
    from gristmill.experimental import device_put

    assert jax.device_count() == 4

    # Spread over four devices.
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
    split, whole = NamedSharding(mesh, P("x", "y")), NamedSharding(mesh, P())

    def element(i):
        return {"image": np.arange(i, i + 6, dtype=np.float32), "label": i}

    source = MapDataset.range(20).map(element).to_iter_dataset().batch(4)
    for device in (
        jax.devices()[3],
        {"image": split, "label": whole},
        {"image": split, "label": jax.devices()[1]},
    ):
        it = iter(device_put(source, device))
        states = [it.get_state()]
        for batch, want in zip(it, source, strict=True):
            states.append(json.loads(json.dumps(it.get_state())))
            for key, array in batch.items():
                np.testing.assert_array_equal(array, want[key])
            if isinstance(device, dict):
                assert batch["image"].sharding == split
                assert {shard.data.shape for shard in batch["image"].addressable_shards} == {(2, 3)}
                assert len(batch["image"].addressable_shards) == 4
                assert len(batch["label"].devices()) == (4 if device["label"] is whole else 1)
            else:
                assert batch["image"].devices() == {device}
        with iter(device_put(source, device)) as again:
            again.set_state(states[3])
            assert [x["label"].tolist() for x in again] == [[12, 13, 14, 15], [16, 17, 18, 19]]

    # On the CPU, a JAX array may be the very memory that a worker or a batch has been written to:
    # it is used again, but not while a device array uses it.
    def large(i):
        return np.full((256, 1024), i, np.float32)  # 1 MiB

    processes = MultiprocessingOptions(2, 2, executor="processes")
    pipelines = {
        "workers": MapDataset.range(120)
        .map(large)
        .batch(4)
        .to_iter_dataset()
        .mp_prefetch(processes),
        "in process": MapDataset.range(120).map(large).to_iter_dataset(ReadOptions(2, 8)).batch(4),
    }
    devices = (jax.devices()[0], NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x")))
    for name, pipeline in pipelines.items():
        for device in devices:
            places, shared, kept = [], 0, []
            it = iter(
                device_put(pipeline.map(lambda x: (places.append(x.ctypes.data), x)[1]), device)
            )
            for number, array in enumerate(it):
                shared += array.addressable_shards[0].data.unsafe_buffer_pointer() in places
                kept.append((number, array))
                if len(kept) > 6:
                    del kept[number % 6]
                for k, other in kept:
                    assert np.array_equal(
                        np.asarray(other)[:, 0, 0], np.arange(4 * k, 4 * k + 4)
                    ), (name, k)
                    assert (np.asarray(other) == np.asarray(other)[:, :1, :1]).all(), (name, k)
            assert number == 29
            assert len({*places}) < 30, name  # memory was used again
            if name == "workers":
                assert shared == 30
"""


def test_four_devices(tmp_path):
    output(tmp_path, FOUR_DEVICES)
