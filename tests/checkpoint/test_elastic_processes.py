"""Real JAX processes, whose number changes from one run to the next, share one Orbax checkpoint of
elastic iterators.
"""

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from programs import outcome

from gristmill import MapDataset

PROGRAM = """
    import json, sys
    root, port, index, count, num_steps, restored = sys.argv[1], *map(int, sys.argv[2:7])
    import jax
    jax.config.update("jax_platforms", "cpu")
    jax.distributed.initialize(f"127.0.0.1:{port}", count, index, initialization_timeout=60)
    import numpy as np
    import orbax.checkpoint as ocp
    from gristmill import MapDataset, ReadOptions
    from gristmill.checkpoint import CheckpointRestore, CheckpointSave
    from gristmill.experimental import ElasticIterator, InterleaveIterDataset
    from gristmill.sharding import ShardByJaxProcess

    files = [
        MapDataset.range(100 * k, 100 * k + n).to_iter_dataset()
        for k, n in enumerate([5, 1, 7, 0, 4])
    ]
    iterators = {
        "files": InterleaveIterDataset(files, cycle_length=2).filter(lambda x: x % 2 == 0),
        "records": MapDataset.range(40).shuffle(seed=1).filter(lambda x: x % 3),
    }
    iterators = {
        kind: ElasticIterator(ds, 6, ShardByJaxProcess()) for kind, ds in iterators.items()
    }
    with ocp.CheckpointManager(root) as manager:
        if restored >= 0:
            args = {kind: CheckpointRestore(it) for kind, it in iterators.items()}
            manager.restore(restored, args=ocp.args.Composite(**args))
        batches = {
            kind: [x.tolist() for _, x in zip(range(num_steps), it)]
            for kind, it in iterators.items()
        }
        args = {kind: CheckpointSave(it) for kind, it in iterators.items()}
        manager.save(restored + 1, args=ocp.args.Composite(**args))
        manager.wait_until_finished()
    print(json.dumps(batches))
"""


def run(folder, count, num_steps, restored):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run_one(index):
        own = folder / f"{index} of {count}"
        own.mkdir()
        process = outcome(own, PROGRAM, folder / "saved", port, index, count, num_steps, restored)
        assert process.returncode == 0, process.stderr[-3000:]
        return json.loads(process.stdout.splitlines()[-1])  # after what JAX prints

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run_one, range(count)))


@pytest.mark.slow
def test_a_checkpoint_of_two_processes_continues_in_three(tmp_path, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    first, second = run(tmp_path, 2, 1, -1), run(tmp_path, 3, 100, 0)
    seen = {}
    for kind in ("files", "records"):
        assert [len(batches[kind]) for batches in first] == [1, 1]
        states = sorted(file.name for file in tmp_path.glob(f"saved/0/{kind}/process_*"))
        assert states == ["process_0-of-2.json", "process_1-of-2.json"]
        seen[kind] = sorted(
            x for process in first + second for batch in process[kind] for x in batch
        )
    assert seen["files"] == [
        x for k, n in enumerate([5, 1, 7, 0, 4]) for x in range(100 * k, 100 * k + n) if x % 2 == 0
    ]
    kept = [x for x in MapDataset.range(40).shuffle(seed=1) if x % 3]
    assert seen["records"] == sorted(kept[: len(kept) // 6 * 6])
