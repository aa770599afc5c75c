"""Train from a stream of Hugging Face's `datasets`: shuffled, by two workers, stopped in the middle
and resumed exactly.

    python examples/hugging_face_stream.py   # writes 4 small files, streams them twice, and
    compares

Nothing is downloaded: the files are written here. `load_dataset` of a data set on the Hub gives the
same kind of stream.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import numpy as np

import gristmill as grain
from gristmill.experimental import HuggingFaceIterDataset

BATCH, STOPPED_AFTER = 8, 4


def write_files(folder: Path) -> str:
    """Writes 4 shards of 25 lines; returns the pattern that names them."""
    for shard in range(4):
        rows = [{"id": 25 * shard + line, "text": "word " * (line % 7 + 1)} for line in range(25)]
        (folder / f"train-{shard}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    return f"{folder}/train-*.jsonl"


def tokenize(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": np.int64(row["id"]), "num_words": np.int64(len(row["text"].split()))}


def pipeline(pattern: str) -> grain.IterDataset[Any]:
    stream = datasets.load_dataset("json", data_files=pattern, split="train", streaming=True)
    # The library's part: which rows there are, and the order of the files.
    stream = stream.filter(lambda row: row["id"] % 10 != 3).shuffle(seed=1, buffer_size=1)
    # Ours: the order of the rows, what is computed of them by the workers, batches. Restored at any
    # step.
    ds = HuggingFaceIterDataset(stream).map(tokenize).window_shuffle(32, seed=2).batch(BATCH)
    return ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=2))


def main() -> None:
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        pattern = write_files(Path(folder))
        whole = [batch["id"].tolist() for batch in pipeline(pattern)]
        print(f"{len(whole)} batches of {sum(map(len, whole))} rows, the first: {whole[0]}")

        with iter(pipeline(pattern)) as it:
            seen = [next(it)["id"].tolist() for _ in range(STOPPED_AFTER)]
            saved = json.dumps(it.get_state())
        print(f"stopped after {STOPPED_AFTER} batches")

        with iter(pipeline(pattern)) as it:  # as in another run
            it.set_state(json.loads(saved))
            resumed = [batch["id"].tolist() for batch in it]
        print(f"resumed: {len(resumed)} batches, the first: {resumed[0]}")
        rows = sorted(row for batch in whole for row in batch)
        assert seen + resumed == whole, "resumed elsewhere"
        assert rows == [row for row in range(100) if row % 10 != 3], "rows are missing"
        print("the same batches as without the stop; every row once")


if __name__ == "__main__":
    main()
