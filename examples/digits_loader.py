"""Write real images to ArrayRecord files, and read them with a `DataLoader`: shuffled, augmented,
batched.

    python examples/digits_loader.py   # draws ten scans as five epochs deliver them

The 1,797 scans of handwritten digits that ship with scikit-learn are written once, and one of the
files is damaged then, as a bad disk does it: the loader skips the record that cannot be read,
within a budget. Noise and shifts come from a random generator that each record has of its own,
another one in every epoch: a loader that begins in the middle makes the same batches.
`train_digits.py` trains on this one.
"""

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import gristmill as grain


def write_records(folder: Path) -> Path:
    """Writes both splits into `folder`, which appears only once they are complete. A record: the
    label, then 8x8 pixels.
    """
    if folder.exists():
        return folder
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    digits = load_digits()
    records = np.column_stack([digits.target, digits.data]).astype(np.uint8)  # (1797, 65)
    for split, rows, num_shards in [("train", records[:1437], 4), ("test", records[1437:], 1)]:
        for i, shard in enumerate(np.array_split(rows, num_shards)):
            # group_size:1 lets every record be read on its own, as a shuffled order needs.
            writer = ArrayRecordWriter(
                str(partial / f"{split}-{i:05}-of-{num_shards:05}.array_record"), "group_size:1"
            )
            for record in shard:
                writer.write(record.tobytes())
            writer.close()
    with (partial / "train-00002-of-00004.array_record").open("r+b") as damaged:
        damaged.seek(5000)  # of one record, whose checksum no longer fits
        damaged.write(b"rust")
    return partial.rename(folder)


class Decode(grain.transforms.Map):
    def map(self, element: bytes) -> dict[str, Any]:
        values = np.frombuffer(element, np.uint8)
        return {
            "label": np.int32(values[0]),
            "image": values[1:].reshape(8, 8).astype(np.float32) / 16,
        }


class Augment(grain.transforms.RandomMap):
    # rng: the record's own
    def random_map(self, element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        row, column = rng.binomial(2, 0.5, size=2)
        image = np.pad(element["image"], 1)[row : row + 8, column : column + 8]
        return {
            **element,
            "image": np.clip(image + rng.normal(0, 0.1, image.shape).astype(np.float32), 0, 1),
        }


def make_loader(
    source: Any, *, batch_size: int, seed: int, shuffle: bool = True, num_workers: int = 0
) -> grain.DataLoader:
    """Returns an endless loader: each epoch has its own order and its own shifts and noise."""
    sampler = grain.samplers.IndexSampler(len(source), shuffle=shuffle, num_epochs=None, seed=seed)
    tolerate = grain.transforms.Tolerate(RuntimeError, max_rate=0.01)
    operations = [
        Decode(),
        tolerate,
        Augment(),
        grain.transforms.Batch(batch_size, drop_remainder=True),
    ]
    return grain.DataLoader(
        data_source=source, sampler=sampler, operations=operations, worker_count=num_workers
    )


def plot_digits(path: Path, records: Path, seed: int) -> None:
    """Draws ten records as they were scanned, and as five epochs of a loader deliver them."""
    source = grain.sources.ArrayRecordDataSource(f"{min(records.glob('train-*'))}[0:10]")
    epochs = iter(make_loader(source, batch_size=10, seed=seed, shuffle=False))
    rows = {"as scanned": np.stack([Decode().map(record)["image"] for record in source])}
    rows |= {f"epoch {i}": next(epochs)["image"] for i in range(1, 6)}
    framed = np.pad(
        np.stack(list(rows.values())), [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=0.4
    )
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axis = figure.subplots()
    # from (rows, 10, 10, 10)
    axis.imshow(framed.swapaxes(1, 2).reshape(10 * len(rows), 100), cmap="gray_r")
    axis.set(xticks=[], yticks=np.arange(len(rows)) * 10 + 4.5, yticklabels=rows.keys())
    axis.tick_params(length=0)
    axis.set_title("Ten records: shifts and noise are drawn again in every epoch")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/digits"),
        help="folder for the records and the picture",
    )
    parser.add_argument("--batch-size", type=int, default=64, help="records in a batch")
    parser.add_argument("--seed", type=int, default=0, help="decides order, shifts and noise")
    args = parser.parse_args()
    records = write_records(args.out.resolve() / "records")
    source = grain.sources.ArrayRecordDataSource(sorted(records.glob("train-*")))
    print(
        f"{len(source)} records of {len(source[0])} bytes in {len(list(records.glob('train-*')))}"
        " files"
    )
    plot_digits(args.out / "digits.png", records, args.seed)
    print(f"picture: {args.out / 'digits.png'}")

    batches = iter(make_loader(source, batch_size=args.batch_size, seed=args.seed))
    for _ in range(len(source) // args.batch_size):
        next(batches)
    print(
        f"in an epoch {batches.faults().total} record is skipped: {batches.faults().last[0].error}"
    )
    state = batches.get_state()
    again = iter(make_loader(source, batch_size=args.batch_size, seed=args.seed))
    again.set_state(state)
    identical = next(batches)["image"].tobytes() == next(again)["image"].tobytes()
    print(
        "the next batch, and that of a new loader at its position:"
        f" {'bit-identical' if identical else 'DIFFERENT'}"
    )
    sys.exit(0 if identical else 1)


if __name__ == "__main__":
    main()
