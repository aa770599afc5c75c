"""Train a small language model on two corpora, go back to a checkpoint, and get the same losses
again, bit for bit.

    python examples/train_language_model.py                # a quarter of a minute
    python examples/train_language_model.py --steps 2000   # writes better Python

The corpora are the functions and the docstrings of Python's own standard library; a token is a
word. Both are shuffled and repeated without end, each at its own pace, and mixed 70 to 30. Packing
puts them into rows of one length; `language_model.py` keeps the texts of a row apart. In the
middle, model and position in the data are saved together. The training continues to its end; then
once more from the checkpoint. The exit status is 0 only if all losses are the same.
"""

import argparse
import ast
import itertools
import re
import shutil
import sys
import sysconfig
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
from language_model import LENGTH, VOCABULARY, generate, init_model, train_step
from matplotlib.figure import Figure

import gristmill as grain

WORD = re.compile(r" ?[A-Z]?[a-z]+| ?[A-Z]+|\s+|[^\w\s]+|.")
# the first tokens of texts, the last one, and rare words; 0 is padding
CODE, PROSE, END, RARE = 1, 2, 3, 4
ROWS = 8  # of a batch


def read_corpora(num_files: int) -> tuple[list[list[str]], list[list[str]]]:
    """The words of the functions and of the docstrings in the standard library."""
    code, prose = [], []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:num_files]:
        lines = path.read_text(encoding="utf-8").split("\n")
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.FunctionDef):
                code.append(textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])))
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (
                docstring := ast.get_docstring(node)
            ):
                prose.append(docstring)
    return [WORD.findall(text) for text in code], [WORD.findall(text) for text in prose]


def make_batches(
    code: list[list[str]], prose: list[list[str]], numbers: dict[str, int], seed: int
) -> grain.IterDataset[Any]:
    def corpus(texts: list[list[str]], start: int) -> grain.MapDataset[Any]:
        def encode(words: list[str]) -> dict[str, Any]:
            return {
                "tokens": np.array(
                    [start, *(numbers.get(word, RARE) for word in words[: LENGTH - 2]), END],
                    np.int32,
                )
            }

        return grain.MapDataset.source(texts).shuffle(seed=seed + start).repeat().map(encode)

    mixture = grain.MapDataset.mix(
        [corpus(code, CODE), corpus(prose, PROSE)], weights=[0.7, 0.3]
    ).to_iter_dataset()
    pack = grain.experimental.FirstFitPackIterDataset
    return pack(
        mixture, length_struct={"tokens": LENGTH}, num_packing_bins=4 * ROWS, seed=seed
    ).batch(ROWS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/language_model"),
        help="folder for checkpoint and picture",
    )
    parser.add_argument("--steps", type=int, default=120, help="number of batches to train on")
    parser.add_argument(
        "--seed", type=int, default=0, help="decides order, mixture and initial parameters"
    )
    args = parser.parse_args()
    shutil.rmtree(args.out / "checkpoints", ignore_errors=True)
    code, prose = read_corpora(40)
    words = [
        "",
        "",
        "",
        "",
        "?",
        *(word for word, _ in Counter(itertools.chain(*code, *prose)).most_common(VOCABULARY - 5)),
    ]
    ds = make_batches(code, prose, {word: i for i, word in enumerate(words)}, args.seed)
    print(f"{len(code)} functions, {len(prose)} docstrings")
    losses, fills = [], []

    def train(model: dict[str, Any], batches: Iterator[Any], steps: range) -> dict[str, Any]:
        for step in steps:
            batch = next(batches)
            model, loss = train_step(model, batch)
            losses.append(float(loss))
            fills.append(np.mean(batch["tokens_segment_ids"] > 0))
            if step % max(args.steps // 10, 1) == 0:
                print(f"step {step:4}  loss {loss:.3f}")
        return model

    half = args.steps // 2
    batches = iter(ds)
    model = train(init_model(args.seed), batches, range(half))
    with ocp.CheckpointManager(args.out.resolve() / "checkpoints") as manager:
        save = {
            "model": ocp.args.StandardSave(model),
            "data": grain.checkpoint.CheckpointSave(batches),
        }
        manager.save(half, args=ocp.args.Composite(**save))
        model = train(model, batches, range(half, args.steps))

        print(f"back to step {half}")
        batches = iter(ds)
        saved = {
            "model": ocp.args.StandardRestore(init_model(args.seed)),
            "data": grain.checkpoint.CheckpointRestore(batches),
        }
        train(
            manager.restore(half, args=ocp.args.Composite(**saved))["model"],
            batches,
            range(half, args.steps),
        )

    first, again = losses[half : args.steps], losses[args.steps :]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    axis.plot(
        range(args.steps), losses[: args.steps], label="straight on", color="0.8", linewidth=5
    )
    axis.plot(
        range(half, args.steps),
        again,
        label=f"from the checkpoint of step {half}",
        color="C1",
        linewidth=1,
    )
    axis.set(
        xlabel="step",
        ylabel="training loss",
        title="Functions and docstrings of the standard library",
    )
    axis.legend(frameon=False)
    figure.savefig(args.out / "loss.png", dpi=150)

    for start, kind in [(CODE, "a function"), (PROSE, "a docstring")]:
        tokens = generate(model["params"], start, END, [0, CODE, PROSE, RARE], args.seed)
        print(f"---- {kind}, generated\n{''.join(words[token] for token in tokens)}")
    print(f"---- {np.mean(fills):.1%} of all cells are filled; picture: {args.out / 'loss.png'}")
    print(f"losses after going back: {'bit-identical' if first == again else 'DIFFERENT'}")
    sys.exit(0 if first == again else 1)


if __name__ == "__main__":
    main()
