"""Train on 4 hosts, kill them, continue with 2, then with 1, then with 4 again, and end with the
bits of a run on one host.

    python examples/change_hosts.py     # the whole story, in half a minute

Each process represents a host. Lanes divide the stream, hosts do not, so the global batches are
those of one undisturbed host.
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
from jax.experimental.multihost_utils import process_allgather

import gristmill

NUM_DEVICES = 4  # of all hosts together


def wave(label: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    x = np.sin(np.arange(1, 65) * (label % 10 + 1)) + rng.normal(0, 0.5, 64)
    return {"x": x.astype(np.float32), "label": np.int32(label % 10)}


def make_batches() -> gristmill.IterDataset[dict[str, np.ndarray]]:
    """Returns this host's rows of endless global batches. Nothing in it but the last line knows of
    hosts.
    """
    parts = [
        gristmill.MapDataset.range(num).seed(num).shuffle().repeat().random_map(wave)
        for num in (1001, 333)
    ]
    filtered = [
        part.to_iter_dataset().filter(lambda record: record["x"][0] > -0.5) for part in parts
    ]
    ds = gristmill.IterDataset.mix(filtered, weights=[0.7, 0.3]).window_shuffle(50, seed=1)
    return ds.global_batch(
        32, num_lanes=8, shard_options=gristmill.sharding.ShardByJaxProcess(), end="repeat"
    )


@jax.value_and_grad
def loss_and_gradient(weights: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    return (
        -(jax.nn.log_softmax(batch["x"] @ weights) * jax.nn.one_hot(batch["label"], 10))
        .sum(axis=1)
        .mean()
    )


def device_step(weights: jax.Array, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Computes a step on every device. It adds up the gradients of all devices in one order, so
    that no bit depends on the division among hosts.
    """
    loss, gradient = jax.lax.all_gather(loss_and_gradient(weights, batch), "data")
    return weights - 0.1 * gradient.mean(axis=0), loss.mean()


def train(args: argparse.Namespace) -> None:
    """Trains one host from the last checkpoint on. It logs the loss and a digest of the global
    batch of every step.
    """
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES // args.processes)
    jax.distributed.initialize(
        args.coordinator, args.processes, args.index, initialization_timeout=60
    )
    mesh = jax.sharding.Mesh(np.array(jax.devices()), "data")
    specs = {"in_specs": (jax.P(), jax.P("data")), "out_specs": jax.P(), "check_vma": False}
    train_step, it = jax.jit(jax.shard_map(device_step, mesh=mesh, **specs)), iter(make_batches())
    weights = jax.device_put(np.zeros((64, 10), np.float32), jax.NamedSharding(mesh, jax.P()))
    with ocp.CheckpointManager(args.run.resolve() / "checkpoints") as manager:
        if start := manager.latest_step() or 0:
            restore = {
                "model": ocp.args.StandardRestore([weights]),
                "data": gristmill.checkpoint.CheckpointRestore(it),
            }
            [weights] = manager.restore(start, args=ocp.args.Composite(**restore))["model"]
        print(
            f"host {args.index} of {args.processes}: {'resuming' if start else 'beginning'} after"
            f" step {start}",
            flush=True,
        )
        # line by line: SIGKILL must lose none
        log = (args.run / f"log-{args.index}.txt").open("a", buffering=1)
        for step in range(start + 1, args.steps + 1):
            batch = jax.make_array_from_process_local_data(
                jax.NamedSharding(mesh, jax.P("data")), next(it)
            )
            weights, loss = train_step(weights, batch)
            whole = b"".join(map(bytes, process_allgather(batch, tiled=True).values()))
            log.write(f"{step} {float(loss)} {hashlib.sha256(whole).hexdigest()}\n")
            if step % (args.steps // 8) == 0:
                save = {
                    "model": ocp.args.StandardSave([weights]),
                    "data": gristmill.checkpoint.CheckpointSave(it),
                }
                # returns before everything is on the disk
                manager.save(step, args=ocp.args.Composite(**save))
            if step == args.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        log.write(f"final {hashlib.sha256(np.asarray(weights).tobytes()).hexdigest()}\n")


def launch(args: argparse.Namespace, run: Path, processes: int, kill_at: int = 0) -> set[str]:
    """Runs all hosts until they end, or one fails and the others are killed. Returns the lines that
    they have logged.
    """
    run.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("localhost", 0)) as free:
        options = [
            f"--run={run}",
            f"--kill-at={kill_at}",
            f"--coordinator=localhost:{free.getsockname()[1]}",
        ]
    command = [
        sys.executable,
        __file__,
        f"--steps={args.steps}",
        f"--processes={processes}",
        *options,
    ]
    children = [
        subprocess.Popen([*command, f"--index={i}"], stdin=subprocess.PIPE)
        for i in range(processes)
    ]
    status = next(filter(None, (os.waitstatus_to_exitcode(os.wait()[1]) for _ in children)), 0)
    for child in children:
        child.kill()
        child.wait()
    if status != (-signal.SIGKILL if kill_at else 0):
        sys.exit(f"a process failed with exit status {status}")
    return {line for path in run.glob("log-*.txt") for line in path.read_text().splitlines()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default="out/change_hosts", help="folder for the runs")
    parser.add_argument("--steps", type=int, default=80, help="global batches to train on")
    parser.add_argument(
        "--hosts",
        type=int,
        nargs="+",
        default=[4, 2, 1, 4],
        help="numbers of hosts, one after the other",
    )
    for name, kind in {
        "processes": int,
        "index": int,
        "coordinator": str,
        "run": Path,
        "kill-at": int,
    }.items():
        parser.add_argument(f"--{name}", type=kind, help="for one host of a run")
    args = parser.parse_args()
    # started by `launch`, which holds the other end of standard input: they end together
    if args.index is not None:
        threading.Thread(target=lambda: os._exit(os.read(0, 1) == b""), daemon=True).start()
        return train(args)
    shutil.rmtree(args.out, ignore_errors=True)
    expected = launch(args, args.out.resolve() / "undisturbed", processes=1)
    for i, processes in enumerate(args.hosts, 1):
        kill_at = i * args.steps // len(args.hosts) + 1 if i < len(args.hosts) else 0
        found = launch(args, args.out.resolve() / "changing", processes, kill_at)
    print(
        f"{args.steps} steps on 1 host, and on {' → '.join(map(str, args.hosts))}, killed in"
        " between",
        flush=True,
    )
    print(
        f"batches, losses and parameters: {'bit-identical' if found == expected else 'DIFFERENT'}"
    )
    sys.exit(found != expected)


if __name__ == "__main__":
    main()
