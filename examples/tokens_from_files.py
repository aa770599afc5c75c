"""A language model's data from files of tokens: windows, shuffled and batched, saved in the middle
and resumed.

    python examples/tokens_from_files.py [--out FOLDER]   # writes two formats, reads them, shows
    that they are the same

The texts are those of Python's own documentation strings, and a token is a byte: any tokenizer
would do. They are written as nanoGPT has them, all tokens one after the other, and as Megatron has
them, with an index of the documents.
"""

import argparse
import inspect
import json
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np

import gristmill as grain

MODULES = (
    "argparse",
    "asyncio",
    "collections",
    "json",
    "logging",
    "pathlib",
    "random",
    "statistics",
)
# the token that ends a document, the inputs of a row, the rows of a batch
END, LENGTH, BATCH = 256, 64, 8


def documents() -> list[np.ndarray]:
    """Documentation strings as tokens, each with the token that ends it."""
    texts = []
    for name in MODULES:
        members = vars(__import__(name))
        texts += [inspect.getdoc(members[member]) or "" for member in sorted(members)]
    return [np.array([*text.encode(), END], np.uint16) for text in texts if len(text) > 20]


def write_nanogpt(path: Path, docs: list[np.ndarray]) -> None:
    np.concatenate(docs).tofile(path)


def write_megatron(prefix: Path, docs: list[np.ndarray]) -> None:
    np.concatenate(docs).tofile(prefix.with_suffix(".bin"))
    lengths = np.array([len(doc) for doc in docs], "<i4")
    # in bytes, of which a token has two
    places = np.concatenate([[0], np.cumsum(lengths[:-1])]) * 2
    with prefix.with_suffix(".idx").open("wb") as index:
        # 8 is uint16
        index.write(struct.pack("<9sQBQQ", b"MMIDIDX", 1, 8, len(docs), len(docs) + 1))
        index.write(
            lengths.tobytes()
            + places.astype("<i8").tobytes()
            + np.arange(len(docs) + 1).astype("<i8").tobytes()
        )


def batches_of(source: grain.sources.TokenSource) -> grain.IterDataset:
    """Inputs and labels, in an order that changes in every epoch."""
    ds = grain.MapDataset.source(source).shuffle(seed=0).repeat(2).batch(BATCH, drop_remainder=True)
    return ds.map(lambda rows: {"inputs": rows[:, :-1], "labels": rows[:, 1:]}).to_iter_dataset()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--out", type=Path, help="where to write the files; a folder that is deleted by default"
    )
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as temporary:
        folder = out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        docs = documents()
        write_nanogpt(folder / "train.bin", docs)
        write_megatron(folder / "train-megatron", docs)
        sys.exit(0 if show(folder, docs) else 1)


def show(folder: Path, docs: list[np.ndarray]) -> bool:
    nanogpt = grain.sources.TokenSource(
        folder / "train.bin", "raw", dtype=np.uint16, window=LENGTH + 1
    )
    megatron = grain.sources.TokenSource(folder / "train-megatron", window=LENGTH + 1)
    by_document = grain.sources.TokenSource(folder / "train-megatron")
    same_windows = len(nanogpt) == len(megatron) and all(map(np.array_equal, nanogpt, megatron))
    same_documents = len(by_document) == len(docs) and all(map(np.array_equal, by_document, docs))
    print(
        f"{len(docs)} documents, {sum(map(len, docs))} tokens, {len(nanogpt)} windows of"
        f" {LENGTH} + 1"
    )
    print(f"windows of both formats: {'the same' if same_windows else 'DIFFERENT'}")
    print(f"documents by the index: {'the same' if same_documents else 'DIFFERENT'}")

    it = iter(batches_of(nanogpt))
    for _ in range(100):
        batch = next(it)
    shifted = np.array_equal(batch["inputs"][:, 1:], batch["labels"][:, :-1])
    print(
        f"batches of {batch['inputs'].shape} {batch['inputs'].dtype}; labels are inputs moved by"
        f" one: {shifted}"
    )
    (folder / "state.json").write_text(json.dumps(it.get_state()))

    rest = [batch["inputs"] for batch in it]
    again = iter(batches_of(megatron))  # another program, another day, the other format
    again.set_state(json.loads((folder / "state.json").read_text()))
    resumed = [batch["inputs"] for batch in again]
    same = len(rest) == len(resumed) and all(map(np.array_equal, rest, resumed))
    print(
        f"{len(rest)} batches after the state, resumed: {'bit-identical' if same else 'DIFFERENT'}"
    )
    return same_windows and same_documents and shifted and same


if __name__ == "__main__":
    main()
