"""Stages that pack sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
from entry import THREADED, IterEntry, numbers, sparse

from gristmill.dataset.stages.bin_packing import BestFitPackIterDataset, FirstFitPackIterDataset
from gristmill.dataset.stages.concat_then_split import BOSHandling, ConcatThenSplitIterDataset


def sequence(x: int) -> dict[str, Any]:
    """``x % 4`` tokens, all of them ``x``."""
    return {"x": np.full(x % 4, x), "m": x}


def sequence_alone(x: int | None) -> dict[str, Any] | None:
    return None if x is None else {"x": np.full(x % 4, x)}


def nested_sequence(x: int) -> dict[str, Any]:
    return {"in": sequence_alone(x), "n": {"m": x}}


def at_most_two(x: dict[str, Any] | None) -> bool:
    return x is None or len(x["x"]) <= 2


def row(text: str, length: int, **more: Any) -> dict[str, Any]:
    """The row in which sequences of these tokens stand: ``"1 2,2"`` has 1 and then 2, 2. A dash is a sequence without tokens."""
    sequences = [[int(token) for token in part.split(",") if token != "-"] for part in text.split()]
    unused = [0] * (length - sum(map(len, sequences)))
    return {
        "x": np.array([token for tokens in sequences for token in tokens] + unused),
        "x_segment_ids": np.array([i for i, tokens in enumerate(sequences, 1) for _ in tokens] + unused, np.int32),
        "x_positions": np.array([i for tokens in sequences for i in range(len(tokens))] + unused, np.int32),
        **more,
    }


def bins(cls: type, ds: Any, **arguments: Any) -> Any:
    defaults = {"length_struct": {"x": 5}, "num_packing_bins": 2, "shuffle_bins": False}
    return cls(ds, **defaults | arguments)


_BATCHES = [[row("- 1 2,2 - 5", 5), row("3,3,3 6,6", 5)], [row("7,7,7 - 9", 5), row("10,10", 5)]]

MAP_ENTRIES: list[Any] = []

ITER_ENTRIES = [
    IterEntry(
        "first_fit",
        lambda: bins(FirstFitPackIterDataset, numbers(THREADED).map(sequence), meta_features=["m"]),
        [
            row("- 1 2,2 - 5", 5, m=[0, 1, 2, 4, 5]),
            row("3,3,3 6,6", 5, m=[3, 6]),
            row("7,7,7 - 9", 5, m=[7, 8, 9]),
            row("10,10", 5, m=[10]),
        ],
    ),
    IterEntry(
        "first_fit_shuffled",
        lambda: bins(FirstFitPackIterDataset, numbers().map(sequence_alone), shuffle_bins=True, seed=3),
        [batch[i] for batch, seed in zip(_BATCHES, (3, 5), strict=True) for i in np.random.default_rng(seed).permuted(range(2))],
    ),
    IterEntry(
        "best_fit",
        lambda: bins(BestFitPackIterDataset, numbers().map(sequence_alone), max_sequences_per_bin=2),
        [row("- 1", 5), row("2,2 3,3,3", 5), row("- 5", 5), row("6,6 7,7,7", 5), row("- 9", 5), row("10,10", 5)],
    ),
    IterEntry(
        "first_fit_sparse",
        lambda: bins(FirstFitPackIterDataset, sparse(THREADED).map(sequence_alone), num_packing_bins=1),
        [row("1 2,2 - 5", 5), row("7,7,7 - 10,10", 5)],
    ),
    IterEntry(
        "first_fit_nested",
        lambda: bins(
            FirstFitPackIterDataset,
            numbers().map(nested_sequence),
            length_struct={"in": {"x": 5}, "n": {"m": 4}},
            meta_features="n",
        ),
        [
            {"in": row("- 1 2,2 -", 5), "n": {"m": np.array([0, 1, 2, 4])}},
            {"in": row("3,3,3 5", 5), "n": {"m": np.array([3, 5, 0, 0])}},
            {"in": row("6,6 7,7,7 -", 5), "n": {"m": np.array([6, 7, 8, 0])}},
            {"in": row("9 10,10", 5), "n": {"m": np.array([9, 10, 0, 0])}},
        ],
    ),
    IterEntry("first_fit_empty", lambda: bins(FirstFitPackIterDataset, numbers(n=0).map(sequence)), []),
    IterEntry(
        "concat_then_split",
        lambda: ConcatThenSplitIterDataset(numbers(THREADED).map(sequence_alone), length_struct={"x": 4}),
        [row("- 1 2,2 3", 4), row("3,3 - 5 6", 4), row("6 7,7,7 -", 4), row("9 10,10", 4)],
    ),
    IterEntry(
        "concat_then_split_whole",
        lambda: ConcatThenSplitIterDataset(
            sparse().map(sequence_alone).filter(at_most_two), length_struct={"x": 2}, split_full_length_features=False
        ),
        [row("1 - 5 -", 2), row("2,2", 2), row("10,10", 2)],
    ),
    IterEntry(
        "concat_then_split_bos",
        lambda: ConcatThenSplitIterDataset(
            numbers(n=8).map(sequence_alone),
            length_struct={"x": 5},
            bos_handling=BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS,
            bos_features=["x"],
            bos_token_id=99,
        ),
        [row("- 99 99,2 99,3", 5), row("99 - 99 99,6 99", 5), row("99,7", 5)],
    ),
    IterEntry(
        "packed_batches", lambda: bins(FirstFitPackIterDataset, numbers().map(sequence_alone)).batch(2, batch_fn=list), _BATCHES
    ),
]
