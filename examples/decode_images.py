"""Find out why a pipeline of photos is slow, do what `gristmill.diagnose` advises, and compare.

    python examples/decode_images.py  # --workers 8 in place of the advice

Before, the process that trains decodes each JPEG file. The diagnosis names the slow stage and says
how many workers to use; after that, the same batches come from those. `verdicts.png` shows one, and
both verdicts. `tolerate` replaces a broken photo.
"""

import argparse
import io
import os
import re
import sys
import time
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import gristmill as grain


class Photos:
    """A source: the bytes of the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, key: int) -> bytes:
        return self.paths[key].read_bytes()


class Decode(grain.transforms.RandomMap):
    """Decodes a JPEG file, and takes a square of a random size and place, scaled to 96 pixels."""

    def random_map(self, file: bytes, rng: np.random.Generator) -> np.ndarray:
        photo = Image.open(io.BytesIO(file)).convert("RGB")
        size = int(rng.integers(photo.height // 2, photo.height + 1))
        left, top = (int(rng.integers(0, side - size + 1)) for side in photo.size)
        return np.asarray(
            photo.resize((96, 96), Image.Resampling.LANCZOS, (left, top, left + size, top + size))
        )


def write_photos(folder: Path, num: int, size: int) -> Photos:
    """Draws `num` pictures of waves, each with colours and directions of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    y, x = np.mgrid[0 : 1 : size * 1j, 0 : 1.5 : 3 * size // 2 * 1j][..., None]
    for number in range(num):
        rng = np.random.default_rng(number)
        waves = np.sin(
            rng.uniform(4, 40, 3) * x
            + rng.uniform(-40, 40, 3) * y
            + 3 * np.sin(rng.uniform(2, 9, 3) * y * x)
        )
        pixels = (127 + 90 * waves + rng.normal(0, 12, waves.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:05}.jpg", quality=90)
    os.truncate(folder / "00000.jpg", 1000)  # as a full disk leaves it
    return Photos(folder)


def make_batches(photos: Photos, num_workers: int) -> grain.IterDataset:
    """Whole batches by index: their order does not depend on the number of workers."""
    ds = grain.MapDataset.source(photos).seed(1).shuffle().repeat().random_map(Decode())
    ds = ds.tolerate(OSError, max_rate=0.1, then="replace").batch(16)
    reads = (
        grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
        if num_workers
        else grain.ReadOptions(num_threads=0)
    )
    return ds.to_iter_dataset(reads).mp_prefetch(grain.MultiprocessingOptions(num_workers))


def take(ds: grain.IterDataset, num: int) -> tuple[np.ndarray, str]:
    with iter(ds) as it:
        batches, faults = np.stack([next(it) for _ in range(num)]), it.faults()
        return (
            batches,
            (
                f"{faults.total} of {faults.tried} photos skipped:"
                f" {' '.join({x.error for x in faults.last})}"
            ),
        )


def draw(batch: np.ndarray, diagnoses: dict[str, grain.diagnostics.Diagnosis], path: Path) -> None:
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.3])
    left.set(title="a batch", xticks=[], yticks=[])
    left.imshow(np.hstack(np.hstack(batch.reshape(4, 4, 96, 96, 3))))
    waiting = np.array([found.starved_ratio for found in diagnoses.values()])
    right.barh([*diagnoses], waiting, height=0.5, color="tab:orange", label="waits for data")
    right.barh(
        [*diagnoses], 1 - waiting, height=0.5, left=waiting, color="tab:green", label="trains"
    )
    for name, found in diagnoses.items():
        right.text(
            0.02,
            name,
            f"{found.elements_per_second:.1f} batches/s, bound by {found.bound_by}",
            va="center",
        )
    right.set(xlim=(0, 1), xlabel="share of the time", title="what the training loop does")
    right.legend(loc="center")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument(
        "--size", type=int, default=384, help="height of a photo; its width is half as much again"
    )
    parser.add_argument("--seconds", type=float, default=2, help="of each diagnosis")
    parser.add_argument("--step-ms", type=float, default=20, help="what a training step takes")
    parser.add_argument("--workers", type=int, help="by default as many as the diagnosis advises")
    parser.add_argument("--out", type=Path, default=Path("out/decode_images"))
    args = parser.parse_args()
    photos = write_photos(args.out / f"{args.images}x{args.size}", args.images, args.size)

    def train_step(batch: np.ndarray) -> None:
        time.sleep(args.step_ms / 1000)

    before = grain.diagnose(make_batches(photos, 0), args.seconds, consumer=train_step)
    print(f"before: {before}\n")
    advice = re.search(r"num_workers=(\d+)", str(before))  # none if all CPUs are busy already
    num_workers = args.workers or (int(advice[1]) if advice else 2)
    after = grain.diagnose(make_batches(photos, num_workers), args.seconds, consumer=train_step)
    print(f"after, with {num_workers} workers: {after}\n")

    (batches, faults), (same, _) = (take(make_batches(photos, num), 8) for num in (0, num_workers))
    draw(batches[0], {"after": after, "before": before}, args.out / "verdicts.png")
    identical = "identical" if np.array_equal(batches, same) else "DIFFERENT"
    ratio = after.elements_per_second / before.elements_per_second
    print(
        f"{faults}\nafter is {ratio:.2f} times as fast as before; the batches of both: {identical}"
    )
    sys.exit(identical != "identical")


if __name__ == "__main__":
    main()
