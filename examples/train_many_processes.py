"""Train with several JAX processes that share the data, kill them all, start them again, and end with the same bits.

    python examples/train_many_processes.py                  # the whole story with two processes, in under a minute
    python examples/train_many_processes.py --processes 4
    python examples/train_many_processes.py --dataset        # with a Dataset pipeline instead of a DataLoader

Every process stands for a host. It reads its own share of the records (`ShardByJaxProcess`), and
`jax.make_array_from_process_local_data` makes one global batch of everybody's rows. All of them together save one Orbax
checkpoint, in which each has a file with its own position: `data/process_<i>-of-<n>.json`. The story: train without
interruption; train again until SIGKILL ends every process while a checkpoint is being written; start them again; compare
every batch and loss of every process and the final parameters. The exit status is 0 only if they are bit-identical. On a
cluster, start `--processes <n> --index <i> --coordinator <host>:<port> --run <shared folder>` on every host yourself.
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
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec

import gristmill

jax.config.update("jax_platforms", "cpu")  # one device per process
SEED = 0


# ---- The data: the part of it that this process reads. ----


class Points:
    """A source of 1,001 made-up records: any class with `__len__` and `__getitem__` is one."""

    def __len__(self) -> int:
        return 1001

    def __getitem__(self, index: int) -> dict[str, Any]:
        label = index % 10
        return {"x": np.sin(np.arange(1, 65) * (label + 1) + index % 7).astype(np.float32), "label": np.int32(label)}

    def __repr__(self) -> str:
        return "Points()"


class Noise(gristmill.transforms.RandomMap):
    def random_map(self, element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {**element, "x": element["x"] + rng.normal(0, 0.5, 64).astype(np.float32)}


def make_loader(batch_size: int) -> gristmill.DataLoader:
    """Returns endless batches of this process's share of the records."""
    source, shard = Points(), gristmill.sharding.ShardByJaxProcess(drop_remainder=True)
    sampler = gristmill.samplers.IndexSampler(len(source), shard_options=shard, shuffle=True, seed=SEED)
    operations = [Noise(), gristmill.transforms.Batch(batch_size, drop_remainder=True)]
    return gristmill.DataLoader(data_source=source, sampler=sampler, operations=operations)


def make_dataset(batch_size: int) -> gristmill.IterDataset[Any]:
    """Returns the same as a pipeline of stages: all records shuffled together, of which each process takes every n-th."""
    ds = gristmill.MapDataset.source(Points()).seed(SEED).shuffle()
    ds = ds[: len(ds) // jax.process_count() * jax.process_count()]  # the same number for everybody
    ds = ds[jax.process_index() :: jax.process_count()]
    return ds.random_map(Noise()).repeat().to_iter_dataset().batch(batch_size, drop_remainder=True)


# ---- The model: one hidden layer. ----


def init_model() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(SEED)
    shapes = {"hidden": (64, 32), "output": (32, 10)}
    return {name: rng.normal(0, np.sqrt(2 / shape[0]), shape).astype(np.float32) for name, shape in shapes.items()}


@jax.jit
def train_step(model: dict[str, jax.Array], batch: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], jax.Array]:
    def loss_of(model: dict[str, jax.Array]) -> jax.Array:
        logits = jax.nn.relu(batch["x"] @ model["hidden"]) @ model["output"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["label"][:, None], axis=1).mean()

    loss, gradients = jax.value_and_grad(loss_of)(model)
    return jax.tree.map(lambda weights, gradient: weights - 0.1 * gradient, model, gradients), loss


# ---- What every process does. ----


def train(args: argparse.Namespace) -> None:
    """Trains from the last checkpoint in the folder of the run, if there is one.

    `log-<index>.txt` gets a line for every step: its number, the loss, a digest of this process's rows of the batch. The
    last line holds the word `final` and a digest of the parameters.
    """
    run = args.run.resolve()
    run.mkdir(parents=True, exist_ok=True)
    jax.distributed.initialize(args.coordinator, args.processes, args.index, initialization_timeout=60)
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    rows_apart, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    local_batch_size = args.batch_size // jax.process_count()
    batches = iter((make_dataset if args.dataset else make_loader)(local_batch_size))
    model = jax.device_put(init_model(), everywhere)
    with (
        ocp.CheckpointManager(run / "checkpoints", options=ocp.CheckpointManagerOptions(max_to_keep=2)) as manager,
        (run / f"log-{args.index}.txt").open("a", buffering=1) as log,  # line by line: SIGKILL must lose none
    ):
        start = manager.latest_step() or 0
        if start:
            saved = {"model": ocp.args.StandardRestore(model), "data": gristmill.checkpoint.CheckpointRestore(batches)}
            model = manager.restore(start, args=ocp.args.Composite(**saved))["model"]
        print(f"process {args.index} of {args.processes}: {'resuming' if start else 'beginning'} after step {start}", flush=True)
        for step in range(start + 1, args.steps + 1):
            rows = next(batches)
            batch = {name: jax.make_array_from_process_local_data(rows_apart, array) for name, array in rows.items()}
            model, loss = train_step(model, batch)
            log.write(f"{step} {float(loss)} {digest(rows)}\n")
            if step % args.save_every == 0:
                save = {"model": ocp.args.StandardSave(model), "data": gristmill.checkpoint.CheckpointSave(batches)}
                manager.save(step, args=ocp.args.Composite(**save))  # returns before everything is on the disk
            if step == args.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        log.write(f"final {digest(model)}\n")


def digest(tree: Any) -> str:
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree))).hexdigest()


# ---- The story. ----


def launch(run: Path, args: argparse.Namespace, *options: str) -> list[int]:
    """Runs all processes and returns their exit statuses. When one fails, or after `args.timeout`, the others are killed."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    command = [sys.executable, __file__, *sys.argv[1:], f"--run={run}", f"--coordinator={address}", "--end-with-stdin", *options]
    children = [subprocess.Popen([*command, f"--index={i}"], stdin=subprocess.PIPE) for i in range(args.processes)]
    try:
        deadline = time.monotonic() + args.timeout
        while None in (statuses := [child.poll() for child in children]) and not any(statuses):
            if time.monotonic() > deadline:
                sys.exit(f"{run.name}: not at the end after {args.timeout:g} s")
            time.sleep(0.02)
    finally:
        for child in children:
            child.kill()
    return [child.wait() for child in children]


def end_with_stdin() -> None:
    """Makes this process end when the launcher, which holds the other end of its standard input, is gone."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/many_processes"), help="folder for the runs")
    parser.add_argument("--processes", type=int, default=2, help="number of processes")
    parser.add_argument("--dataset", action="store_true", help="a Dataset pipeline instead of a DataLoader")
    parser.add_argument("--steps", type=int, default=200, help="number of global batches to train on")
    parser.add_argument("--batch-size", type=int, default=64, help="records in a global batch")
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS", help="steps between two checkpoints")
    parser.add_argument("--timeout", type=float, default=300, metavar="SECONDS", help="for one run of all processes")
    parser.add_argument("--index", type=int, metavar="I", help="be process I of a run, and start no others")
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="where process 0 is to be found")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="the folder of the run, the same for all processes")
    parser.add_argument("--end-with-stdin", action="store_true", help="end when the standard input does")
    parser.add_argument("--kill-at", type=int, metavar="STEP", help="SIGKILL after this step")
    args = parser.parse_args()
    if args.batch_size % args.processes:
        sys.exit(f"--batch-size {args.batch_size} must be a multiple of --processes {args.processes}")
    if args.index is not None:
        if args.end_with_stdin:
            end_with_stdin()
        train(args)
        return

    runs = args.out.resolve() / f"{'dataset' if args.dataset else 'loader'}-{args.processes}"
    shutil.rmtree(runs, ignore_errors=True)
    undisturbed, resumed = runs / "undisturbed", runs / "resumed"
    kill_at = (args.steps // 2 // args.save_every) * args.save_every  # a checkpoint is being written then
    if any(statuses := launch(undisturbed, args)):
        sys.exit(f"a process failed: exit statuses {statuses}")
    print(f"{args.processes} processes trained {args.steps} steps; now again", flush=True)
    if -signal.SIGKILL not in (statuses := launch(resumed, args, f"--kill-at={kill_at}")):
        sys.exit(f"the processes to be killed ended with the exit statuses {statuses}")
    print(f"all processes killed after step {kill_at}", flush=True)
    if any(statuses := launch(resumed, args)):
        sys.exit(f"a process failed: exit statuses {statuses}")

    identical = True
    for i in range(args.processes):
        logs = [(run / f"log-{i}.txt").read_text().splitlines() for run in (undisturbed, resumed)]
        identical &= set(logs[0]) == set(logs[1])  # the resumed run has trained some steps twice
        print(f"process {i}: final parameters {' and '.join(log[-1].split()[-1][:16] for log in logs)}")
    print(f"batches, losses and parameters: {'bit-identical' if identical else 'DIFFERENT'}")
    sys.exit(0 if identical else 1)


if __name__ == "__main__":
    main()
