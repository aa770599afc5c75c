"""Pack token sequences of a Hugging Face data set into Bagz files, and train from batches of
similar lengths, exactly resumed.

    python examples/bag_records.py   # writes into out/bag_records, prints the shapes of an epoch

`HuggingFaceSource` gives the rows of the data set in blocks, `BagDataSource` the records of the
files in any order; the index of the files has the lengths of records, so batches are planned from
it alone.
"""

import argparse
import shutil
from collections import Counter
from pathlib import Path

import bagz
import datasets
import numpy as np

import gristmill as grain

SHARDS, ROWS = 2, 600


def make_rows() -> datasets.Dataset:
    """Sequences of 4 to 64 tokens, most of them short."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(2.5, 0.7, ROWS), 4, 64).astype(int)
    return datasets.Dataset.from_dict(
        {"tokens": [rng.integers(1, 1000, n).tolist() for n in lengths]}
    )


def write_bags(folder: Path) -> None:
    """Writes the rows, in a shuffled order, as 16-bit tokens; `.bag` files are not compressed, so
    their index has the lengths.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = grain.MapDataset.source(grain.sources.HuggingFaceSource(make_rows())).shuffle(seed=7)
    for shard in range(SHARDS):
        with bagz.Writer(str(folder / f"tokens-{shard:05}-of-{SHARDS:05}.bag")) as writer:
            for row in rows[shard::SHARDS]:
                writer.write(np.array(row["tokens"], np.uint16).tobytes())


def make_batches(folder: Path) -> grain.MapDataset:
    source = grain.sources.BagDataSource(str(folder / f"tokens@{SHARDS}.bag"))
    lengths = source.lengths // 2  # bytes of the records, and what they are in tokens
    ds = grain.MapDataset.source(source).map(lambda record: np.frombuffer(record, np.uint16))
    return ds.bucket_batch(lengths, 4, max_tokens=512, seed=0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/bag_records"), help="folder for the files"
    )
    folder = parser.parse_args().out.resolve()
    write_bags(folder)
    batches = make_batches(folder)
    num_tokens = sum(int((batch > 0).sum()) for batch in batches)
    shapes = Counter(batch.shape[1] for batch in batches)
    size = sum(batch.size for batch in batches)
    print(
        f"{len(batches)} batches hold {num_tokens} tokens, {1 - num_tokens / size:.0%} of them is"
        " padding"
    )
    print("batches of each length:", dict(sorted(shapes.items())))

    it = iter(batches.to_iter_dataset())
    for _ in range(len(batches) // 2):
        next(it)
    again = iter(make_batches(folder).to_iter_dataset())
    again.set_state(it.get_state())
    rest, same = list(it), list(again)
    identical = len(rest) == len(same) and all(
        np.array_equal(a, b) for a, b in zip(rest, same, strict=True)
    )
    print(
        f"resumed in the middle: {len(same)} batches,"
        f" {'bit-identical' if identical else 'DIFFERENT'}"
    )


if __name__ == "__main__":
    main()
