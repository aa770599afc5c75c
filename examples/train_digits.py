"""Train on handwritten digits, stop dead in the middle, resume, and end with the same bits.

    python examples/train_digits.py                      the whole story, in under a minute
    python examples/train_digits.py --interrupt-at 200   dies at step 200; run it again without the option to resume

The 1,797 scans that ship with scikit-learn (nothing is downloaded) are written once into ArrayRecord files. A small
convolutional network is trained from a `DataLoader` over them: shuffled, augmented, batched, several epochs. Orbax
saves the model and the position in the data together. The story: train without interruption; train a second time in
another process that stops hard (`os._exit`) between two checkpoints; resume; compare every batch, every loss and the
final parameters of the two runs. The exit status is 0 only if all are bit-identical.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from array_record.python.array_record_module import ArrayRecordWriter
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from tqdm import tqdm

import gristmill

# The images are 8x8: no accelerator needed, and on the CPU the arithmetic repeats bit by bit in every process.
jax.config.update("jax_platforms", "cpu")

INTERRUPTED = 3  # exit status of a run that --interrupt-at stopped
OPTIMIZER = optax.adam(2e-3)


# ---- The data: one record is 65 bytes, the label and then the 8x8 pixels (0..16), all uint8 ----


def write_records(folder: Path) -> None:
    """Writes both splits into `folder`, which appears only when they are complete."""
    if folder.exists():
        return
    digits = load_digits()
    records = np.column_stack([digits.target, digits.data]).astype(np.uint8)  # (1797, 65)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    # The scans are ordered by writer: the last ones are held out, so that the test is on other people's hands.
    for split, rows, num_shards in [("train", records[:1437], 4), ("test", records[1437:], 1)]:
        for i, shard in enumerate(np.array_split(rows, num_shards)):
            # group_size:1 stores every record on its own: the layout for reading at random.
            writer = ArrayRecordWriter(str(partial / f"{split}-{i:05}-of-{num_shards:05}.array_record"), "group_size:1")
            for record in shard:
                writer.write(record.tobytes())
            writer.close()
    partial.rename(folder)


class Decode(gristmill.transforms.Map):
    """Record bytes -> label and float image in 0..1."""

    def map(self, element: bytes) -> dict[str, Any]:
        values = np.frombuffer(element, np.uint8)
        return {"label": values[0].astype(np.int32), "image": values[1:].reshape(8, 8).astype(np.float32) / 16}


class Augment(gristmill.transforms.RandomMap):
    """Shifts the image by up to one pixel and adds noise, drawn only from the generator that belongs to the record."""

    def random_map(self, element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        row, column = rng.integers(0, 3, size=2)
        image = np.pad(element["image"], 1)[row : row + 8, column : column + 8]
        noise = rng.normal(0, 0.1, size=image.shape).astype(np.float32)
        return element | {"image": np.clip(image + noise, 0, 1)}


def make_source(data: Path, split: str) -> gristmill.sources.ArrayRecordDataSource:
    return gristmill.sources.ArrayRecordDataSource(sorted(data.glob(f"{split}-*")))


def make_train_loader(
    source: gristmill.sources.ArrayRecordDataSource, *, batch_size: int, seed: int, shuffle: bool = True
) -> gristmill.DataLoader:
    """Endless: the epochs follow one another, each in its own order and with its own shifts and noise."""
    sampler = gristmill.samplers.IndexSampler(
        len(source), shard_options=gristmill.sharding.NoSharding(), shuffle=shuffle, num_epochs=None, seed=seed
    )
    operations = [Decode(), Augment(), gristmill.transforms.Batch(batch_size, drop_remainder=True)]
    return gristmill.DataLoader(data_source=source, sampler=sampler, operations=operations)


# ---- The model: two convolutions and a linear layer ----


def init_params(key: jax.Array) -> dict[str, jax.Array]:
    shapes = {"conv1": (3, 3, 1, 16), "conv2": (3, 3, 16, 32), "linear": (4 * 4 * 32, 10)}
    init = jax.nn.initializers.he_normal()
    keys = jax.random.split(key, len(shapes))
    return {name: init(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}


def logits_of(params: dict[str, jax.Array], image: jax.Array) -> jax.Array:
    dimensions = ("NHWC", "HWIO", "NHWC")
    x = image[..., None]  # (batch, 8, 8, 1)
    x = jax.nn.relu(jax.lax.conv_general_dilated(x, params["conv1"], (1, 1), "SAME", dimension_numbers=dimensions))
    x = jax.nn.relu(jax.lax.conv_general_dilated(x, params["conv2"], (2, 2), "SAME", dimension_numbers=dimensions))
    return x.reshape(len(x), -1) @ params["linear"]


def mean_loss(params: dict[str, jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits_of(params, batch["image"]), batch["label"]).mean()


@jax.jit
def train_step(model: dict[str, Any], batch: dict[str, jax.Array]) -> tuple[dict[str, Any], jax.Array]:
    loss, gradients = jax.value_and_grad(mean_loss)(model["params"], batch)
    updates, optimizer = OPTIMIZER.update(gradients, model["optimizer"])
    return {"params": optax.apply_updates(model["params"], updates), "optimizer": optimizer}, loss


def accuracy_of(params: dict[str, jax.Array], source: gristmill.sources.ArrayRecordDataSource) -> float:
    test = next(iter(gristmill.load(source, num_epochs=1, transformations=[Decode()], batch_size=len(source))))
    return float(np.mean(np.argmax(logits_of(params, test["image"]), axis=1) == test["label"]))


# ---- Training, with checkpoints that hold the model and the position in the data ----


def train(run: Path, data: Path, args: argparse.Namespace) -> None:
    """Trains in the folder `run`, going on from its last checkpoint if it has one, and writes result.json at the end."""
    run.mkdir(parents=True, exist_ok=True)
    source = make_source(data, "train")
    iterator = iter(make_train_loader(source, batch_size=args.batch_size, seed=args.seed))
    params = init_params(jax.random.key(args.seed))
    model = {"params": params, "optimizer": OPTIMIZER.init(params)}

    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    with ocp.CheckpointManager(run / "checkpoints", options=options) as manager:
        first_step = manager.latest_step() or 0
        if first_step:
            restore = ocp.args.Composite(
                model=ocp.args.StandardRestore(model), data=gristmill.checkpoint.CheckpointRestore(iterator)
            )
            model = manager.restore(first_step, args=restore)["model"]
            print(f"{run.name}: resuming from the checkpoint of step {first_step}")
        with (
            (run / "log.txt").open("a", buffering=1) as log,  # by lines: what is only in memory is lost in a hard stop
            tqdm(desc=run.name, total=args.steps, initial=first_step, unit="step") as progress,
        ):
            for step in range(first_step + 1, args.steps + 1):
                batch = next(iterator)
                model, loss = train_step(model, batch)
                log.write(f"{step} {float(loss).hex()} {digest(batch)}\n")
                progress.update()
                if step % args.save_every == 0:
                    save = ocp.args.Composite(
                        model=ocp.args.StandardSave(model), data=gristmill.checkpoint.CheckpointSave(iterator)
                    )
                    manager.save(step, args=save)
                if step == args.interrupt_at:
                    print(f"\n{run.name}: stopping hard at step {step}", flush=True)
                    os._exit(INTERRUPTED)  # no clean-up of any kind, as in a power cut
    result = {"accuracy": accuracy_of(model["params"], make_source(data, "test")), "params": digest(model["params"])}
    (run / "result.json").write_text(json.dumps(result))


def digest(tree: Any) -> str:
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree))).hexdigest()


# ---- Pictures ----


def plot_digits(path: Path, data: Path, seed: int) -> None:
    """The first ten records as scanned and as five epochs of the training loader deliver them."""
    source = gristmill.sources.ArrayRecordDataSource(f"{min(data.glob('train-*'))}[0:10]")
    epochs = iter(make_train_loader(source, batch_size=10, seed=seed, shuffle=False))
    rows = {"scan": [Decode().map(record)["image"] for record in source]}
    rows |= {f"epoch {i}": next(epochs)["image"] for i in range(1, 6)}
    figure = Figure(figsize=(8, 5.2), layout="constrained")
    axes = figure.subplots(len(rows), 10)
    for row, (name, images) in zip(axes, rows.items(), strict=True):
        row[0].set_ylabel(name, rotation=0, ha="right", va="center")
        for axis, image in zip(row, images, strict=True):
            axis.imshow(image, cmap="gray_r", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
    figure.suptitle("Ten records and their augmentations")
    figure.savefig(path, dpi=150)


def plot_loss(path: Path, uninterrupted: list[list[str]], resumed: list[list[str]]) -> None:
    """The losses of both runs: thick and pale without interruption, on top the two processes of the resumed run."""
    steps = [int(step) for step, *_ in resumed]
    restart = next((i for i in range(1, len(steps)) if steps[i] <= steps[i - 1]), len(steps))
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    for rows, label, style in [
        (uninterrupted, "uninterrupted", {"color": "0.8", "linewidth": 5}),
        (resumed[:restart], f"until the hard stop at step {steps[restart - 1]}", {"color": "C0", "linewidth": 1}),
        (resumed[restart:], "resumed from the last checkpoint", {"color": "C1", "linewidth": 1}),
    ]:
        axis.semilogy([int(row[0]) for row in rows], [float.fromhex(row[1]) for row in rows], label=label, **style)
    axis.set(xlabel="step", ylabel="training loss", title="Handwritten digits: interrupted and resumed, the same curve")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=150)


# ---- The story ----


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/digits"), help="folder for data, checkpoints, pictures")
    parser.add_argument("--steps", type=int, default=450, help="batches to train on")
    parser.add_argument("--batch-size", type=int, default=64, help="records in a batch")
    parser.add_argument("--seed", type=int, default=0, help="decides order, augmentation and initial parameters")
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS", help="steps between checkpoints")
    parser.add_argument("--interrupt-at", type=int, metavar="STEP", help="stop hard at this step")
    args = parser.parse_args()
    if args.interrupt_at is not None and not 0 < args.interrupt_at < args.steps:
        parser.error(f"--interrupt-at must lie between 0 and --steps {args.steps}, got {args.interrupt_at}")
    out = args.out.resolve()
    data, uninterrupted, resumed = out / "data", out / "uninterrupted", out / "resumed"
    write_records(data)
    if (resumed / "result.json").exists():  # the last story has ended: begin a new one
        shutil.rmtree(resumed)
    if args.interrupt_at is not None:
        train(resumed, data, args)
        sys.exit(f"step {args.interrupt_at} lay before the checkpoint: the run has ended without an interruption")

    shutil.rmtree(uninterrupted, ignore_errors=True)
    train(uninterrupted, data, args)
    if not resumed.exists():
        command = [sys.executable, __file__, *sys.argv[1:], f"--interrupt-at={args.steps // 2}"]
        if (status := subprocess.run(command).returncode) != INTERRUPTED:
            sys.exit(f"the run to be interrupted ended with exit status {status}")
    train(resumed, data, args)

    logs = [[line.split() for line in (run / "log.txt").read_text().splitlines()] for run in (uninterrupted, resumed)]
    results = [json.loads((run / "result.json").read_text()) for run in (uninterrupted, resumed)]
    plot_loss(out / "loss.png", *logs)
    plot_digits(out / "digits.png", data, args.seed)

    identical = {tuple(row) for row in logs[0]} == {tuple(row) for row in logs[1]} and results[0] == results[1]
    print(f"batches, losses: {args.steps} steps, {len(logs[1]) - args.steps} of them trained twice")
    print("parameters:      " + " and ".join(result["params"][:16] for result in results))
    print(f"verdict:         {'BIT-IDENTICAL' if identical else 'DIFFERENT'} with and without interruption")
    print(f"pictures:        {out / 'loss.png'}, {out / 'digits.png'}")
    print(f"held-out accuracy: {results[1]['accuracy']:.1%}")
    sys.exit(0 if identical else 1)


if __name__ == "__main__":
    main()
