"""Train a small language model, change the mixture of its corpora in the middle, and show that no
token came twice or was lost.

    python examples/change_mixture.py                # half a minute

The corpora are the functions, the docstrings and the comments of Python's own standard library; a
token is a character. Shares are shares of tokens, and follow a schedule. Packing holds many texts
at a time. In the middle the program saves, and continues as one that was started again would, with
other weights and a corpus more: what the bins held comes as it was, new weights act on what is
drawn after that. The exit status is 0 only if every text that was drawn came once, with all its
tokens, and none was lost.
"""

import argparse
import ast
import shutil
import sys
import sysconfig
import tokenize
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
from language_model import LENGTH, init_model, train_step

import gristmill as grain

ROWS, OFFSET, RARE = 8, 2, 1  # rows of a batch; tokens that are no characters; what is not ASCII
NAMES = ("code", "comments", "docs")


def read_corpora(num_files: int) -> dict[str, list[str]]:
    """The functions, docstrings and comments of the standard library."""
    found: dict[str, list[str]] = {name: [] for name in NAMES}
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:num_files]:
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines(keepends=True)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                found["code"].append("".join(lines[node.lineno - 1 : node.end_lineno]).strip())
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (
                docstring := ast.get_docstring(node)
            ):
                found["docs"].append(docstring)
        with path.open("rb") as file:
            comments = [
                token.string
                for token in tokenize.tokenize(file.readline)
                if token.type == tokenize.COMMENT
            ]
        found["comments"] += [comment for comment in comments if len(comment) > 2]
    return found


def encode(number: int, text: str) -> dict[str, Any]:
    """A text as tokens, and beside each of them the number of the text, by which it is found
    again.
    """
    tokens = np.array(
        [ord(char) + OFFSET if ord(char) < 128 else RARE for char in text[:LENGTH]], np.int32
    )
    return {"tokens": tokens, "text": np.full(len(tokens), number, np.int32)}


def corpus(texts: list[str], first: int) -> grain.IterDataset[Any]:
    ds = grain.MapDataset.source(texts).map_with_index(lambda i, text: encode(first + i, text))
    return ds.shuffle(seed=first).to_iter_dataset()


def make_batches(
    corpora: dict[str, list[str]], schedule: grain.Schedule
) -> grain.DatasetIterator[Any]:
    parts = {
        name: corpus(corpora[name], 1_000_000 * (1 + NAMES.index(name))) for name in schedule.names
    }
    mixture = grain.IterDataset.mix(parts, schedule, by=lambda text: len(text["tokens"]))
    lengths = {"tokens": LENGTH, "text": LENGTH}
    pack = grain.experimental.FirstFitPackIterDataset(
        mixture, length_struct=lengths, num_packing_bins=4 * ROWS
    )
    return iter(pack.batch(ROWS, drop_remainder=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/change_mixture"), help="folder for the checkpoint"
    )
    parser.add_argument("--steps", type=int, default=40, help="number of batches to train on")
    args = parser.parse_args()
    shutil.rmtree(args.out, ignore_errors=True)
    corpora = read_corpora(60)
    seen: Counter[int] = Counter()  # tokens of each text

    def train(
        model: dict[str, Any], batches: grain.DatasetIterator[Any], steps: range
    ) -> dict[str, Any]:
        for step in steps:
            batch = next(batches)
            seen.update(batch["text"][batch["text"] > 0].tolist())
            model, loss = train_step(model, batch)
            if step % max(args.steps // 8, 1) == 0:
                print(f"step {step:3}  loss {float(loss):.3f}")
        return model

    half = args.steps // 2 + 1  # in the middle of the bins that are being given out
    batches = make_batches(
        corpora, grain.Schedule.linear({0: {"code": 3, "docs": 1}, 300: {"code": 1, "docs": 1}})
    )
    model = train(init_model(0), batches, range(half))
    with ocp.CheckpointManager(args.out.resolve()) as manager:
        save = {
            "model": ocp.args.StandardSave(model),
            "data": grain.checkpoint.CheckpointSave(batches),
        }
        manager.save(half, args=ocp.args.Composite(**save))

        print("started again with comments, and other weights")
        batches = make_batches(corpora, grain.Schedule({0: {"code": 1, "docs": 1, "comments": 2}}))
        saved = {
            "model": ocp.args.StandardRestore(init_model(0)),
            "data": grain.checkpoint.CheckpointRestore(batches),
        }
        model = manager.restore(half, args=ocp.args.Composite(**saved))["model"]
    train(model, batches, range(half, args.steps))

    for name, counts in batches.counts().items():
        print(f"{name:9} {counts['elements']:5} texts, {counts['lengths']:7} tokens")
    texts = {
        1_000_000 * (1 + k) + i: text
        for k, name in enumerate(NAMES)
        for i, text in enumerate(corpora[name])
    }
    twice = [number for number, num in seen.items() if num != len(texts[number][:LENGTH])]
    print(f"{len(seen)} texts came, {len(twice)} of them not exactly once")
    # All texts drawn before the bins that are being given out have come.
    drawn = sum([counts["elements"] for counts in batches.counts().values()])
    if twice or len(seen) < drawn:
        sys.exit("tokens came twice, or were lost")


if __name__ == "__main__":
    main()
