"""Train from JSON lines as they are: a global shuffle of compressed shards, a damaged line, a stop
and an exact resumption.

Writes three shards of made-up reviews, compressed in parts, and reads them by workers, in an order
that mixes all of them. To run it: python examples/json_lines.py --folder /tmp/reviews
"""

import argparse
import gzip
import json
import random
import tempfile
from pathlib import Path

import gristmill as grain

SHARDS, RECORDS, LINES_IN_A_PART = 3, 400, 50
WORDS = ["good", "bad", "slow", "quick", "red", "green", "large", "small", "warm", "cold"]


def write_shards(folder: Path) -> None:
    """Each part of a shard is a gzip member of its own, which is what makes any record readable at
    once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    for shard in range(SHARDS):
        lines = []
        for i in range(RECORDS):
            review = {
                "id": shard * RECORDS + i,
                "text": " ".join(rng.choices(WORDS, k=rng.randint(1, 12))),
            }
            lines.append(json.dumps(review) + "\n")
        if shard == 1:
            lines[7] = lines[7][:20] + "\n"  # a disk was full
        with (folder / f"reviews-{shard}.jsonl.gz").open("wb") as file:
            for start in range(0, RECORDS, LINES_IN_A_PART):
                file.write(
                    gzip.compress("".join(lines[start : start + LINES_IN_A_PART]).encode(), mtime=0)
                )


def count_words(review: dict) -> dict:
    return {"id": review["id"], "num_words": len(review["text"].split())}


def make_pipeline(folder: Path) -> grain.IterDataset:
    source = grain.sources.JsonlSource(folder / "reviews-*.jsonl.gz")
    ds = (
        grain.MapDataset.source(source)
        .tolerate(ValueError, max_rate=0.01)
        .seed(1)
        .shuffle()
        .map(count_words)
    )
    return ds.to_iter_dataset().batch(64).mp_prefetch(grain.MultiprocessingOptions(num_workers=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder",
        type=Path,
        help="where to write the shards; by default a folder that is deleted afterwards",
    )
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as temporary:
        folder = folder or Path(temporary)
        write_shards(folder)
        source = grain.sources.JsonlSource(folder / "reviews-*.jsonl.gz")
        print(
            f"{source} has {len(source)} records; the longest line has {source.lengths.max()} bytes"
        )
        print("record 1000:", source[1000])
        try:
            source[RECORDS + 7]
        except grain.sources.DamagedFileError as error:
            print(str(error).removeprefix(f"{folder}/").partition(" (")[0])

        batches = list(make_pipeline(folder))
        ids = [int(x) for batch in batches for x in batch["id"]]
        print(f"{len(batches)} batches have {len(set(ids))} different records, first {ids[:5]}")
        it = iter(make_pipeline(folder))
        half = [next(it) for _ in range(len(batches) // 2)]
        state = json.dumps(it.get_state())
        it.close()
        # as a new process would
        (again := iter(make_pipeline(folder))).set_state(json.loads(state))
        rest = [int(x) for batch in [*half, *again] for x in batch["id"]]
        print("resumed in the middle:", "the same records" if rest == ids else "OTHER RECORDS")


if __name__ == "__main__":
    main()
