"""Train on handwritten digits in JAX, with checkpoints that hold the model and the position in the
data.

    python examples/train_digits.py --interrupt-at 200   # stops hard after step 200, as in a power
    cut python examples/train_digits.py                      # continues from the last checkpoint;
    --workers 2: a run with processes

A small convolutional network learns from the loader of `digits_loader.py`; Orbax saves it together
with the loader's iterator. `log.txt` gets a line for every step (number, loss, digest of the
batch), at last the accuracy on held-out scans, a digest of the parameters and the number of
unreadable records. `train_digits_story.py` shows that a run that was stopped ends with the same.
"""

import argparse
import hashlib
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from digits_loader import Decode, make_loader, write_records
from tqdm import tqdm

import gristmill as grain

# enough for 8x8 images, and its arithmetic repeats bit by bit
jax.config.update("jax_platforms", "cpu")
OPTIMIZER = optax.adam(optax.exponential_decay(4e-3, transition_steps=150, decay_rate=0.5))
INTERRUPTED = 3  # the exit status after --interrupt-at


def init_model(seed: int) -> dict[str, Any]:
    shapes = {"conv1": (3, 3, 1, 32), "conv2": (3, 3, 32, 64), "linear": (4 * 4 * 64, 10)}
    rng = np.random.default_rng(seed)
    params = {
        name: jax.numpy.float32(rng.normal(0, np.sqrt(2 / np.prod(shape[:-1])), shape))
        for name, shape in shapes.items()
    }
    return {"params": params, "optimizer": OPTIMIZER.init(params)}


@jax.jit
def predict(params: dict[str, jax.Array], images: jax.Array) -> jax.Array:
    x = images[..., None]  # (batch, 8, 8, 1), then (batch, 8, 8, 32), then (batch, 4, 4, 64)
    for name, stride in [("conv1", 1), ("conv2", 2)]:
        x = jax.lax.conv_general_dilated(
            x, params[name], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x)
    return x.reshape(len(x), -1) @ params["linear"]  # (batch, 10)


@jax.jit
def train_step(
    model: dict[str, Any], batch: dict[str, jax.Array]
) -> tuple[dict[str, Any], jax.Array]:
    def loss_of(params: dict[str, jax.Array]) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(
            predict(params, batch["image"]), batch["label"]
        ).mean()

    loss, gradients = jax.value_and_grad(loss_of)(model["params"])
    updates, optimizer = OPTIMIZER.update(gradients, model["optimizer"])
    return {"params": optax.apply_updates(model["params"], updates), "optimizer": optimizer}, loss


def digest(tree: Any) -> str:
    return hashlib.sha256(
        b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree))
    ).hexdigest()


def train(run: Path, args: argparse.Namespace, interrupt_at: int | None = None) -> None:
    """Trains in the folder `run`, from its last checkpoint if it has one."""
    run.mkdir(parents=True, exist_ok=True)
    records = write_records(args.out.resolve() / "records")
    source = grain.sources.ArrayRecordDataSource(sorted(records.glob("train-*")))
    batches = iter(
        make_loader(source, batch_size=args.batch_size, seed=args.seed, num_workers=args.workers)
    )
    model = init_model(args.seed)
    with (
        ocp.CheckpointManager(
            run / "checkpoints", options=ocp.CheckpointManagerOptions(max_to_keep=2)
        ) as manager,
        (run / "log.txt").open("a", buffering=1) as log,  # line by line: a hard stop must lose none
    ):
        start = manager.latest_step() or 0
        if start:
            print(f"{run.name}: resuming after step {start}")
            saved = {
                "model": ocp.args.StandardRestore(model),
                "data": grain.checkpoint.CheckpointRestore(batches),
            }
            model = manager.restore(start, args=ocp.args.Composite(**saved))["model"]
        for step in tqdm(
            range(start + 1, args.steps + 1),
            run.name,
            total=args.steps,
            initial=start,
            unit=" steps",
            disable=None,
        ):
            batch = next(batches)
            model, loss = train_step(model, batch)
            log.write(f"{step} {float(loss)} {digest(batch)}\n")
            if step % args.save_every == 0:
                save = {
                    "model": ocp.args.StandardSave(model),
                    "data": grain.checkpoint.CheckpointSave(batches),
                }
                manager.save(step, args=ocp.args.Composite(**save))
            if step == interrupt_at:
                print(f"\n{run.name}: stopping hard after step {step}", flush=True)
                os._exit(INTERRUPTED)  # no clean-up of any kind
        held_out = grain.sources.ArrayRecordDataSource(sorted(records.glob("test-*")))
        test = next(
            iter(
                grain.load(
                    held_out, num_epochs=1, transformations=[Decode()], batch_size=len(held_out)
                )
            )
        )
        accuracy = np.mean(
            np.argmax(predict(model["params"], test["image"]), axis=1) == test["label"]
        )
        faults = batches.faults()
        log.write(f"final {accuracy} {digest(model['params'])} {faults.total}\n")
        print(
            f"{run.name}: held-out accuracy {accuracy:.1%}, {faults.total} of {faults.tried}"
            " records skipped"
        )


def make_parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/digits"), help="folder for records, runs and pictures"
    )
    parser.add_argument("--steps", type=int, default=400, help="number of batches to train on")
    parser.add_argument("--batch-size", type=int, default=64, help="records in a batch")
    parser.add_argument(
        "--seed", type=int, default=0, help="decides order, augmentation and initial parameters"
    )
    parser.add_argument(
        "--save-every", type=int, default=80, metavar="STEPS", help="steps between two checkpoints"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=0,
        help="worker processes; each makes batches of its own share",
    )
    return parser


def folder_of(args: argparse.Namespace, name: str) -> Path:
    return (
        args.out.resolve() / f"seed{args.seed}-batch{args.batch_size}-workers{args.workers}" / name
    )


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--name", default="run", help="name of the run")
    parser.add_argument(
        "--interrupt-at", type=int, metavar="STEP", help="stop hard after this step"
    )
    args = parser.parse_args()
    train(folder_of(args, args.name), args, args.interrupt_at)


if __name__ == "__main__":
    main()
