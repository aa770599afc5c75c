"""Train from WebDataset shards with a global shuffle, and resume exactly.

    python examples/tar_shards.py  # --workers 2

Draws discs and squares, and writes them to shards as a crawler would: all discs first. `TarSource`
finds each record by an index that it makes once, so the shuffle is global, and the state of an
iterator is a few numbers. A nearest mean classifies the shapes apart, trained without interruption
and resumed in the middle: the same bits.
"""

import argparse
import io
import json
import sys
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import gristmill as grain

SIZE = 24


def draw(number: int, is_disc: bool) -> bytes:
    """A PNG file of a disc or a square, somewhere, in some colour, with noise."""
    rng = np.random.default_rng(number)
    image = Image.fromarray(rng.integers(0, 60, (SIZE, SIZE, 3), np.uint8))
    left, top, side = (int(rng.integers(low, high)) for low, high in ((2, 6), (2, 6), (12, 16)))
    shape = ImageDraw.Draw(image).ellipse if is_disc else ImageDraw.Draw(image).rectangle
    shape((left, top, left + side, top + side), fill=tuple(rng.integers(120, 256, 3).tolist()))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def write_shards(folder: Path, num_shards: int, num_records: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(num_shards):
        with tarfile.open(folder / f"shapes-{shard:03}.tar", "w") as tar:
            for number in range(shard * num_records, (shard + 1) * num_records):
                is_disc = 2 * shard < num_shards
                about = json.dumps({"number": number}).encode()
                for name, data in (
                    ("png", draw(number, is_disc)),
                    ("cls", b"%d" % is_disc),
                    ("json", about),
                ):
                    member = tarfile.TarInfo(f"{number:06}.{name}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


class Decode(grain.transforms.Map):
    """Contours of the image, as numbers: features of the shape that are independent of its
    colours.
    """

    def map(self, record: dict) -> dict:
        image = np.asarray(Image.open(io.BytesIO(record["png"])).convert("L"), np.float32) / 255
        contours = np.abs(np.fft.rfft2(image - image.mean()))  # wherever the shape is
        return {"features": contours / np.linalg.norm(contours), "label": int(record["cls"])}


def make_batches(folder: Path, num_workers: int) -> grain.IterDataset:
    # the JSON stays on disk
    source = grain.sources.TarSource(str(folder / "shapes-*.tar"), extensions=["png", "cls"])
    ds = grain.MapDataset.source(source).seed(0).shuffle().repeat().map(Decode()).batch(32)
    return ds.to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(num_workers))


def train(it: grain.DatasetIterator, means: np.ndarray, counts: np.ndarray, num_steps: int) -> None:
    """Moves the mean of each class; in place."""
    for _ in range(num_steps):
        batch = next(it)
        for label in (0, 1):
            those = batch["features"][batch["label"] == label]
            counts[label] += len(those)
            means[label] += (those - means[label]).sum(0) / counts[label]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--records", type=int, default=100, help="in each shard")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/tar_shards"))
    args = parser.parse_args()
    write_shards(args.out, args.shards, args.records)

    with iter(make_batches(args.out, args.workers)) as it:
        first = next(it)
    runs = []
    for stops in ([args.steps], [args.steps // 2, args.steps]):
        means, counts = np.zeros((2, *first["features"].shape[1:])), np.zeros(2)
        state, done = "", 0
        for stop in stops:
            # again, as another process would
            with iter(make_batches(args.out, args.workers)) as it:
                if state:
                    it.set_state(json.loads(state))
                    print(f"resumed after step {done} with {len(state)} bytes of state")
                train(it, means, counts, stop - done)
                state, done = json.dumps(it.get_state()), stop
        runs.append(means)

    source = grain.sources.TarSource(str(args.out / "shapes-*.tar"))
    elements = [Decode().map(source[key]) for key in range(0, len(source), 7)]
    guesses = [
        np.argmin([np.linalg.norm(x["features"] - mean) for mean in runs[0]]) for x in elements
    ]
    accuracy = np.mean([guess == x["label"] for guess, x in zip(guesses, elements, strict=True)])
    print(f"{len(source)} records in {len(source.paths)} shards, discs in the first half of these")
    print(f"discs in the first batch: {first['label'].sum()} of {len(first['label'])}")
    print(f"{accuracy:.0%} of {len(elements)} shapes classified correctly")
    same = np.array_equal(*runs)
    print(f"means of both runs: {'bit-identical' if same else 'DIFFERENT'}")
    sys.exit(not same)


if __name__ == "__main__":
    main()
