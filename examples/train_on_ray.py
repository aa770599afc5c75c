"""Train from workers on two machines while they are killed, and end with the same bits as a run
that was left alone.

    python examples/train_on_ray.py     # the whole story, in half a minute

Two nodes of a Ray cluster are simulated on this machine, bound to the loopback address. Three
actors on them compute the batches of a small model. The first run is left alone. In the second,
SIGKILL ends actors one after the other, and others continue with their lanes: batches, losses and
parameters must be the same. On a real cluster write `ray.init(address="auto")` for `two_nodes()`.
"""

import argparse
import contextlib
import hashlib
import os
import signal
import sys
from collections.abc import Iterator

# read when Ray is imported: with 0 it binds to 127.0.0.1 alone
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

import jax
import numpy as np
import ray
from ray.cluster_utils import Cluster

import gristmill

jax.config.update("jax_platforms", "cpu")


@contextlib.contextmanager
def two_nodes() -> Iterator[None]:
    """A cluster of this program's node and another one, with two CPUs each."""
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
    )
    try:
        cluster.add_node(num_cpus=2)
        ray.init(address=cluster.address, log_to_driver=False)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def make_record(label: int, rng: np.random.Generator) -> dict[str, object]:
    x = np.sin(np.arange(1, 65) * (label % 10 + 1)) + rng.normal(0, 0.5, 64)
    return {"x": x.astype(np.float32), "label": label % 10, "process": os.getpid()}


def make_batches() -> gristmill.IterDataset[dict[str, np.ndarray]]:
    """Endless batches. The lanes decide what is in them; the workers do not."""
    ds = (
        gristmill.MapDataset.range(1001)
        .seed(0)
        .shuffle()
        .repeat()
        .random_map(make_record)
        .to_iter_dataset()
    )
    ds = ds.filter(lambda record: record["x"][0] > -0.5).window_shuffle(50, seed=1).batch(32)
    return ds.mp_prefetch(gristmill.RayOptions(3, num_lanes=8))


@jax.jit
@jax.value_and_grad
def loss_and_gradient(weights: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    return (
        -(jax.nn.log_softmax(batch["x"] @ weights) * jax.nn.one_hot(batch["label"], 10))
        .sum(axis=1)
        .mean()
    )


def train(num_steps: int, num_kills: int = 0) -> tuple[np.ndarray, str, set[int]]:
    """Returns the parameters, a digest of all batches and losses, and the processes that were
    killed.
    """
    weights, digest, killed = jax.numpy.zeros((64, 10)), hashlib.sha256(), set[int]()
    with iter(make_batches()) as it:
        for step in range(1, num_steps + 1):
            batch = next(it)
            # of the actor that has made it: all else must be the same
            process = int(batch.pop("process")[0])
            loss, gradient = loss_and_gradient(weights, batch)
            weights -= 0.1 * gradient
            digest.update(
                batch["x"].tobytes() + batch["label"].tobytes() + np.asarray(loss).tobytes()
            )
            is_due = len(killed) < num_kills and step * (num_kills + 1) >= num_steps * (
                len(killed) + 1
            )
            # batches of one that is dead may still be on their way
            if is_due and process not in killed:
                os.kill(process, signal.SIGKILL)
                killed.add(process)
                print(
                    f"step {step}: the actor in process {process} is killed, loss"
                    f" {float(loss):.3f}",
                    flush=True,
                )
    return np.asarray(weights), digest.hexdigest(), killed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000, help="batches to train on")
    parser.add_argument("--kills", type=int, default=3, help="actors to kill in the second run")
    args = parser.parse_args()
    with two_nodes():
        addresses = {node["NodeManagerAddress"] for node in ray.nodes()}
        print(
            f"{len(ray.nodes())} nodes with {ray.cluster_resources()['CPU']:g} CPUs, at"
            f" {', '.join(addresses)}",
            flush=True,
        )
        weights, batches, _ = train(args.steps)
        print(
            f"left alone: parameters {hashlib.sha256(weights.tobytes()).hexdigest()[:16]}",
            flush=True,
        )
        again, same_batches, killed = train(args.steps, args.kills)
        print(
            f"{len(killed)} killed: parameters {hashlib.sha256(again.tobytes()).hexdigest()[:16]}"
        )
    identical = (
        weights.tobytes() == again.tobytes()
        and batches == same_batches
        and len(killed) == args.kills
    )
    print(f"batches, losses and parameters: {'bit-identical' if identical else 'DIFFERENT'}")
    sys.exit(not identical)


if __name__ == "__main__":
    main()
