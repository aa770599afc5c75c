"""Train with several JAX processes that share the data, kill them all, start them again, and end
with the same bits.

    python examples/train_many_processes.py [--processes 4] [--dataset]   # the whole story, in
    under a minute

Every process represents a host: it reads its own shard of the records, and saves its own position
into the checkpoint of all. SIGKILL ends them while one is being written. Batches, losses and
parameters must be those of a run without interruption. On a cluster, start `--processes <n> --index
<i> --coordinator <host>:<port> --run <shared folder>` on every host yourself.
"""

import argparse
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

import gristmill

jax.config.update("jax_platforms", "cpu")  # one device per process


class MakeRecord(gristmill.transforms.RandomMap):
    def random_map(self, element: int, rng: np.random.Generator) -> dict[str, object]:
        wave = np.sin(np.arange(1, 65) * (element % 10 + 1)) + rng.normal(0, 0.5, 64)
        return {"x": wave.astype(np.float32), "label": np.int32(element % 10)}


def make_batches(
    as_dataset: bool, num_rows: int = 32
) -> gristmill.IterDataset[object] | gristmill.DataLoader:
    """Returns endless batches of this process's share of the records, which is as large as
    everybody's.
    """
    source, index, count = (
        gristmill.sources.RangeDataSource(0, 1001, 1),
        jax.process_index(),
        jax.process_count(),
    )
    # random_map before slicing: it is computed for this process's elements only, and differs from
    # everybody's
    if as_dataset:
        ds = gristmill.MapDataset.source(source).seed(0).shuffle().random_map(MakeRecord())
        return (
            ds[index : len(source) // count * count : count]
            .repeat()
            .to_iter_dataset()
            .batch(num_rows)
        )
    shard = gristmill.sharding.ShardByJaxProcess(drop_remainder=True)
    return gristmill.load(
        source,
        shuffle=True,
        seed=0,
        shard_options=shard,
        transformations=[MakeRecord()],
        batch_size=num_rows,
    )


@jax.jit
@jax.value_and_grad
def loss_and_gradient(weights: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    return (
        -(jax.nn.log_softmax(batch["x"] @ weights) * jax.nn.one_hot(batch["label"], 10))
        .sum(axis=1)
        .mean()
    )


def train(args: argparse.Namespace) -> None:
    """Trains in every process from the last checkpoint. It logs the loss and a digest of its own
    rows of every step.
    """
    jax.distributed.initialize(
        args.coordinator, args.processes, args.index, initialization_timeout=60
    )
    mesh = jax.sharding.Mesh(np.array(jax.devices()), "data")
    it = iter(make_batches(args.dataset))
    weights = jax.device_put(np.zeros((64, 10), np.float32), jax.NamedSharding(mesh, jax.P()))
    with ocp.CheckpointManager(args.run.resolve() / "checkpoints") as manager:
        if start := manager.latest_step() or 0:
            restore = {
                "model": ocp.args.StandardRestore([weights]),
                "data": gristmill.checkpoint.CheckpointRestore(it),
            }
            [weights] = manager.restore(start, args=ocp.args.Composite(**restore))["model"]
        print(
            f"process {args.index} of {args.processes}: {'resuming' if start else 'beginning'}"
            f" after step {start}",
            flush=True,
        )
        # line by line: SIGKILL must lose none
        log = (args.run / f"log-{args.index}.txt").open("a", buffering=1)
        for step in range(start + 1, args.steps + 1):
            rows = next(it)
            batch = jax.make_array_from_process_local_data(
                jax.NamedSharding(mesh, jax.P("data")), rows
            )
            loss, gradient = loss_and_gradient(weights, batch)
            weights -= 0.1 * gradient
            log.write(
                f"{step} {float(loss)}"
                f" {hashlib.sha256(b''.join(map(bytes, rows.values()))).hexdigest()}\n"
            )
            if step % (args.steps // 4) == 0:
                save = {
                    "model": ocp.args.StandardSave([weights]),
                    "data": gristmill.checkpoint.CheckpointSave(it),
                }
                # returns before everything is on the disk
                manager.save(step, args=ocp.args.Composite(**save))
            if step == args.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        log.write(f"final {hashlib.sha256(bytes(weights)).hexdigest()}\n")


def launch(args: argparse.Namespace, run: Path, kill_at: int = 0) -> list[list[str]]:
    """Runs all processes until they end, or one fails and the others are killed. Returns the lines
    that they have logged.
    """
    with socket.create_server(("localhost", 0)) as free:
        options = [
            f"--run={run}",
            f"--kill-at={kill_at}",
            f"--coordinator=localhost:{free.getsockname()[1]}",
        ]
    command, indices = [sys.executable, __file__, *sys.argv[1:], *options], range(args.processes)
    children = [
        subprocess.Popen([*command, f"--index={i}"], stdin=subprocess.PIPE) for i in indices
    ]
    status = next(filter(None, (os.waitstatus_to_exitcode(os.wait()[1]) for _ in children)), 0)
    for child in children:
        child.kill()
        child.wait()
    if status != (-signal.SIGKILL if kill_at else 0):
        sys.exit(f"a process failed with exit status {status}")
    return [(run / f"log-{i}.txt").read_text().splitlines() for i in indices]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/many_processes"), help="folder for the runs"
    )
    parser.add_argument("--processes", type=int, default=2, help="number of processes")
    parser.add_argument(
        "--dataset", action="store_true", help="a Dataset pipeline instead of a DataLoader"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=200,
        help="global batches to train on; every quarter a checkpoint",
    )
    for name, kind in {"index": int, "coordinator": str, "run": Path, "kill-at": int}.items():
        parser.add_argument(f"--{name}", type=kind, help="for one process of a run")
    args = parser.parse_args()
    # started by `launch`, which holds the other end of standard input: they end together
    if args.kill_at is not None:
        threading.Thread(target=lambda: os._exit(os.read(0, 1) == b""), daemon=True).start()
    if args.index is not None:
        return train(args)
    runs = args.out.resolve() / f"{'dataset' if args.dataset else 'loader'}-{args.processes}"
    shutil.rmtree(runs, ignore_errors=True)
    undisturbed = launch(args, runs / "undisturbed")
    launch(args, runs / "resumed", kill_at=args.steps // 2)
    print(
        f"{args.processes} processes trained {args.steps} steps, and again, killed after step"
        f" {args.steps // 2}",
        flush=True,
    )
    resumed = launch(args, runs / "resumed")
    # some steps were trained twice
    identical = all(set(a) == set(b) for a, b in zip(undisturbed, resumed, strict=True))
    print("final parameters", *(log[-1].split()[1][:16] for log in undisturbed + resumed))
    print(f"batches, losses and parameters: {'bit-identical' if identical else 'DIFFERENT'}")
    sys.exit(not identical)


if __name__ == "__main__":
    main()
