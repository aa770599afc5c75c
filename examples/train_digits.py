"""Train on handwritten digits, stop dead in the middle, resume, and end with the same bits.

    python examples/train_digits.py                      # the whole story, in under a minute
    python examples/train_digits.py --interrupt-at 350   # stops hard at step 350; the next run without it resumes
    python examples/train_digits.py --workers 2          # the same with two worker processes

The 1,797 scans that ship with scikit-learn (nothing is downloaded) are written once into ArrayRecord files. A small
convolutional network learns from a `DataLoader` over them: shuffled, augmented, batched, epoch after epoch. Orbax saves
the model and the position in the data together. The story: train without interruption; train again in a process that
stops hard (`os._exit`) between two checkpoints; resume; compare every batch, every loss and the final parameters. The
exit status is 0 only if they are bit-identical.
"""

import argparse
import hashlib
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

jax.config.update("jax_platforms", "cpu")  # enough for 8x8 images, and its arithmetic repeats bit by bit
OPTIMIZER = optax.adam(optax.exponential_decay(4e-3, transition_steps=200, decay_rate=0.5))
INTERRUPTED = 3  # the exit status after --interrupt-at


# ---- The data. A record is 65 bytes: the label, then the 8x8 pixels (0..16), all uint8. ----


def write_records(folder: Path) -> None:
    """Writes both splits into `folder`, which appears only once they are complete."""
    if folder.exists():
        return
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    digits = load_digits()
    records = np.column_stack([digits.target, digits.data]).astype(np.uint8)  # (1797, 65)
    for split, rows, num_shards in [("train", records[:1437], 4), ("test", records[1437:], 1)]:
        for i, shard in enumerate(np.array_split(rows, num_shards)):
            # group_size:1 lets every record be read on its own, as a shuffled order needs.
            writer = ArrayRecordWriter(str(partial / f"{split}-{i:05}-of-{num_shards:05}.array_record"), "group_size:1")
            for record in shard:
                writer.write(record.tobytes())
            writer.close()
    partial.rename(folder)


class Decode(gristmill.transforms.Map):
    """Makes a label and a float image in 0..1 from the bytes of a record."""

    def map(self, element: bytes) -> dict[str, Any]:
        values = np.frombuffer(element, np.uint8)
        return {"label": np.int32(values[0]), "image": values[1:].reshape(8, 8).astype(np.float32) / 16}


class Augment(gristmill.transforms.RandomMap):
    """Shifts the image by up to one pixel and adds noise, all drawn from the record's own generator."""

    def random_map(self, element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        row, column = rng.binomial(2, 0.5, size=2)
        image = np.pad(element["image"], 1)[row : row + 8, column : column + 8]
        noise = rng.normal(0, 0.1, size=image.shape).astype(np.float32)
        return {**element, "image": np.clip(image + noise, 0, 1)}


def make_loader(source: Any, *, batch_size: int, seed: int, shuffle: bool = True, num_workers: int = 0) -> gristmill.DataLoader:
    """Returns an endless loader: each epoch has its own order and its own shifts and noise."""
    sampler = gristmill.samplers.IndexSampler(
        len(source), shard_options=gristmill.sharding.NoSharding(), shuffle=shuffle, num_epochs=None, seed=seed
    )
    operations = [Decode(), Augment(), gristmill.transforms.Batch(batch_size, drop_remainder=True)]
    return gristmill.DataLoader(data_source=source, sampler=sampler, operations=operations, worker_count=num_workers)


# ---- The model: two convolutions and a linear layer. ----


def init_model(seed: int) -> dict[str, Any]:
    shapes = {"conv1": (3, 3, 1, 32), "conv2": (3, 3, 32, 64), "linear": (4 * 4 * 64, 10)}
    rng = np.random.default_rng(seed)
    params = {name: rng.normal(0, np.sqrt(2 / np.prod(shape[:-1])), shape) for name, shape in shapes.items()}
    params = {name: jnp.asarray(weights, jnp.float32) for name, weights in params.items()}
    return {"params": params, "optimizer": OPTIMIZER.init(params)}


@jax.jit
def predict(params: dict[str, jax.Array], images: jax.Array) -> jax.Array:
    def conv(x: jax.Array, weights: jax.Array, stride: int) -> jax.Array:
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.nn.relu(jax.lax.conv_general_dilated(x, weights, (stride, stride), "SAME", dimension_numbers=layout))

    x = conv(images[..., None], params["conv1"], 1)  # (batch, 8, 8, 32)
    x = conv(x, params["conv2"], 2)  # (batch, 4, 4, 64)
    return x.reshape(len(x), -1) @ params["linear"]  # (batch, 10)


@jax.jit
def train_step(model: dict[str, Any], batch: dict[str, jax.Array]) -> tuple[dict[str, Any], jax.Array]:
    def loss_of(params: dict[str, jax.Array]) -> jax.Array:
        logits = predict(params, batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    loss, gradients = jax.value_and_grad(loss_of)(model["params"])
    updates, optimizer = OPTIMIZER.update(gradients, model["optimizer"])
    return {"params": optax.apply_updates(model["params"], updates), "optimizer": optimizer}, loss


# ---- Training, with checkpoints that hold the model and the position in the data. ----


def train(run: Path, records: Path, args: argparse.Namespace) -> None:
    """Trains in the folder `run`, from its last checkpoint if it has one.

    `log.txt` gets a line for every step: its number, the loss, a digest of the batch. The last line holds the word
    `final`, the accuracy on the held-out scans and a digest of the parameters.
    """
    run.mkdir(parents=True, exist_ok=True)
    source = gristmill.sources.ArrayRecordDataSource(sorted(records.glob("train-*")))
    batches = iter(make_loader(source, batch_size=args.batch_size, seed=args.seed, num_workers=args.workers))
    model = init_model(args.seed)
    with (
        ocp.CheckpointManager(run / "checkpoints", options=ocp.CheckpointManagerOptions(max_to_keep=2)) as manager,
        (run / "log.txt").open("a", buffering=1) as log,  # line by line: a hard stop must lose none
    ):
        start = manager.latest_step() or 0
        if start:
            print(f"{run.name}: resuming after step {start}")
            saved = {"model": ocp.args.StandardRestore(model), "data": gristmill.checkpoint.CheckpointRestore(batches)}
            model = manager.restore(start, args=ocp.args.Composite(**saved))["model"]
        for step in tqdm(range(start + 1, args.steps + 1), run.name, total=args.steps, initial=start, unit=" steps"):
            batch = next(batches)
            model, loss = train_step(model, batch)
            log.write(f"{step} {float(loss)} {digest(batch)}\n")
            if step % args.save_every == 0:
                save = {"model": ocp.args.StandardSave(model), "data": gristmill.checkpoint.CheckpointSave(batches)}
                manager.save(step, args=ocp.args.Composite(**save))
            if step == args.interrupt_at:
                print(f"\n{run.name}: stopping hard after step {step}", flush=True)
                os._exit(INTERRUPTED)  # no clean-up of any kind, as in a power cut
        held_out = gristmill.sources.ArrayRecordDataSource(sorted(records.glob("test-*")))
        test = next(iter(gristmill.load(held_out, num_epochs=1, transformations=[Decode()], batch_size=len(held_out))))
        accuracy = np.mean(np.argmax(predict(model["params"], test["image"]), axis=1) == test["label"])
        log.write(f"final {accuracy} {digest(model['params'])}\n")


def digest(tree: Any) -> str:
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree))).hexdigest()


# ---- Pictures. ----


def plot_digits(path: Path, records: Path, seed: int) -> None:
    """Ten records as they were scanned, and as five epochs of a training loader deliver them."""
    source = gristmill.sources.ArrayRecordDataSource(f"{min(records.glob('train-*'))}[0:10]")
    epochs = iter(make_loader(source, batch_size=10, seed=seed, shuffle=False))
    rows = {"as scanned": np.stack([Decode().map(record)["image"] for record in source])}
    rows |= {f"epoch {i}": next(epochs)["image"] for i in range(1, 6)}
    framed = np.pad(np.stack(list(rows.values())), [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=0.4)
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axis = figure.subplots()
    axis.imshow(framed.swapaxes(1, 2).reshape(10 * len(rows), 100), cmap="gray_r")  # from (rows, 10, 10, 10)
    axis.set(xticks=[], yticks=np.arange(len(rows)) * 10 + 4.5, yticklabels=rows.keys())
    axis.tick_params(length=0)
    axis.set_title("Ten records: shifts and noise are drawn anew in every epoch")
    figure.savefig(path, dpi=150)


def plot_loss(path: Path, uninterrupted: list[list[str]], resumed: list[list[str]]) -> None:
    """The losses of both runs; the resumed one in two colours, before and after its interruption."""
    steps = [int(step) for step, *_ in resumed]
    restart = next((i for i in range(1, len(steps)) if steps[i] <= steps[i - 1]), len(steps))
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    for label, log, style in [
        ("uninterrupted", uninterrupted, {"color": "0.85", "linewidth": 6}),
        (f"stopped hard after step {steps[restart - 1]}", resumed[:restart], {"color": "C0", "linewidth": 2}),
        ("resumed from the last checkpoint", resumed[restart:], {"color": "C1", "linewidth": 0.8}),
    ]:
        axis.semilogy([int(step) for step, *_ in log], [float(loss) for _, loss, _ in log], label=label, **style)
    axis.set(xlabel="step", ylabel="training loss", title="Handwritten digits")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=150)


# ---- The story. ----


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/digits"), help="folder for records, runs and pictures")
    parser.add_argument("--steps", type=int, default=700, help="number of batches to train on")
    parser.add_argument("--batch-size", type=int, default=64, help="records in a batch")
    parser.add_argument("--seed", type=int, default=0, help="decides order, augmentation and initial parameters")
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS", help="steps between two checkpoints")
    parser.add_argument("--workers", type=int, default=0, help="worker processes; each makes batches of its own share")
    parser.add_argument("--interrupt-at", type=int, metavar="STEP", help="stop hard after this step")
    args = parser.parse_args()
    out = args.out.resolve()
    records, runs = out / "records", out / f"seed{args.seed}-batch{args.batch_size}-workers{args.workers}"
    uninterrupted, resumed = runs / "uninterrupted", runs / "resumed"
    write_records(records)
    if (resumed / "log.txt").exists() and "final" in (resumed / "log.txt").read_text():
        shutil.rmtree(resumed)  # its story has been told: begin a new one
    if args.interrupt_at is not None:
        train(resumed, records, args)
        sys.exit(f"the run came to its end without passing step {args.interrupt_at}")

    shutil.rmtree(uninterrupted, ignore_errors=True)
    train(uninterrupted, records, args)
    if not (resumed / "log.txt").exists():
        command = [sys.executable, __file__, *sys.argv[1:], f"--interrupt-at={args.steps // 2}"]
        if (status := subprocess.run(command).returncode) != INTERRUPTED:
            sys.exit(f"the run to be interrupted ended with exit status {status}")
    train(resumed, records, args)

    logs = [[line.split() for line in (run / "log.txt").read_text().splitlines()] for run in (uninterrupted, resumed)]
    plot_loss(out / "loss.png", logs[0][:-1], logs[1][:-1])
    plot_digits(out / "digits.png", records, args.seed)
    identical = {tuple(line) for line in logs[0]} == {tuple(line) for line in logs[1]}
    for run, log in [(uninterrupted, logs[0]), (resumed, logs[1])]:
        print(f"{run.name + ':':14} final parameters {log[-1][2][:16]}, held-out accuracy {float(log[-1][1]):.1%}")
    print(f"batches, losses and parameters: {'bit-identical' if identical else 'DIFFERENT'}")
    print(f"pictures: {out / 'loss.png'}, {out / 'digits.png'}")
    sys.exit(0 if identical else 1)


if __name__ == "__main__":
    main()
