"""Iterator stages: small instances, and all that they deliver."""

import functools
from itertools import chain
from typing import Any

import numpy as np
from entry import (
    DIRECT,
    THREADED,
    Fan,
    IterEntry,
    add_ten,
    break_threes,
    draw,
    drop_threes,
    fan,
    is_big,
    not_multiple_of_three,
    pair,
    remainder,
    repeated,
    unless_none,
)
from files_of_laws import (
    Stream,
    cache_folder,
    examples_of,
    is_no_multiple_of_three,
    number,
    records_file,
    rows_file,
    rows_of,
    size,
    twice_of_each,
)
from formulas import stream, window_order
from local_workers import LocalWorkersIterDataset

from gristmill.core.options import DatasetOptions, MultiprocessingOptions, ReadOptions
from gristmill.core.record import Record, RecordMetadata
from gristmill.core.sharding import ShardOptions
from gristmill.dataset import IterDataset, MapDataset
from gristmill.dataset.mixtures.schedule import Schedule
from gristmill.dataset.stages.bin_packing import BestFitPackIterDataset, FirstFitPackIterDataset
from gristmill.dataset.stages.concat_then_split import BOSHandling, ConcatThenSplitIterDataset
from gristmill.dataset.stages.elastic import ElasticIterator
from gristmill.dataset.stages.flat_map import FlatMapIterDataset
from gristmill.dataset.stages.hugging_face import HuggingFaceIterDataset
from gristmill.dataset.stages.interleave import InterleaveIterDataset
from gristmill.dataset.stages.map import MapIterDataset
from gristmill.dataset.stages.options import WithOptionsIterDataset
from gristmill.dataset.stages.parquet import ParquetIterDataset
from gristmill.dataset.stages.stream_interleave import MemberIterDataset
from gristmill.dataset.stages.stream_order import DividedPart, Dropped, in_stream_order
from gristmill.dataset.stages.tfrecord import TFRecordIterDataset
from gristmill.loader.records import DataIterDataset, LegacyOperationIterDataset

TWO_WORKERS = MultiprocessingOptions(num_workers=2)


def by_local_workers(ds: IterDataset[Any]) -> IterDataset[Any]:
    return in_stream_order(ds, functools.partial(in_lanes, 2))


def in_lanes(
    num_workers: int, ds: IterDataset[Any], num_lanes: int | None = None
) -> IterDataset[Any]:
    return LocalWorkersIterDataset(ds, num_workers, num_lanes=num_lanes)


def twins() -> IterDataset[int]:
    return InterleaveIterDataset([filtered(n=5), numbers(n=3)], cycle_length=2)


def divided(ds: IterDataset[Any]) -> IterDataset[Any]:
    return in_stream_order(
        ds, functools.partial(IterDataset.multithread_prefetch, num_threads=2, buffer_size=2)
    )


def numbers(options: ReadOptions = DIRECT, n: int = 11) -> IterDataset[int]:
    return MapDataset.range(n).to_iter_dataset(options)


def sparse(options: ReadOptions = DIRECT) -> IterDataset[int | None]:
    return MapDataset.range(11).map(drop_threes).to_iter_dataset(options, allow_nones=True)


def dropping(options: ReadOptions = DIRECT) -> IterDataset[int]:
    return MapDataset.range(11).map(drop_threes).to_iter_dataset(options)


def filtered(options: ReadOptions = THREADED, n: int = 11) -> IterDataset[int]:
    return numbers(options, n).filter(not_multiple_of_three)


def tolerant(ds: IterDataset[Any]) -> IterDataset[Any]:
    return ds.map(break_threes).tolerate(ValueError, max_rate=None)


def tolerant_map() -> MapDataset[int]:
    return MapDataset.range(1, 12).map(break_threes).tolerate(max_rate=None)


def lists(ds: IterDataset[Any], size: int) -> IterDataset[Any]:
    return ds.batch(size, batch_fn=list)


def doubled_pairs(records: Any) -> Any:
    """A legacy operation: a plain function of iterators, here one that drops and changes."""
    for record in records:
        if record % 2:
            yield record * 2


def letters(x: int | None) -> str:
    return "none" if x is None else "abc"[: x % 3]


def bucketed(
    ds: IterDataset[Any], boundaries: list[int], batch_sizes: Any, **options: Any
) -> IterDataset[Any]:
    return ds.map(repeated).bucket_batch(len, boundaries, batch_sizes=batch_sizes, **options)


def padded(num_cells: int, *rows: int) -> Any:
    """A batch of ``repeated`` elements, cut to ``num_cells`` or padded with zeros."""
    return np.array([[n] * min(n, num_cells) + [0] * (num_cells - n) for n in rows])


def drop_all(x: Any) -> tuple[()]:
    return ()


def without_last(row: Any) -> Any:
    return row[:-1]


def starting_at(start: int) -> IterDataset[int]:
    return MapDataset.range(start, start + 3).map(add_ten).to_iter_dataset(DIRECT)


class Elastic(IterDataset[Any]):
    """An ``ElasticIterator`` is its own only iterator; this gives a new one every time."""

    def __init__(self, read_options: ReadOptions) -> None:
        super().__init__()
        self._read_options = read_options

    def __str__(self) -> str:
        return "Elastic"

    def _gm_traced(self, tracing: Any) -> Any:
        return self.__iter__()._gm_traced(tracing)

    def __iter__(self) -> Any:
        ds = MapDataset.range(23).map(add_ten)
        return ElasticIterator(ds, 4, ShardOptions(1, 2), read_options=self._read_options)


def sequence(x: int) -> dict[str, Any]:
    """``x % 4`` tokens, all of them ``x``."""
    return {"x": np.full(x % 4, x), "m": x}


def sequence_alone(x: int | None) -> dict[str, Any] | None:
    return None if x is None else {"x": np.full(x % 4, x)}


def nested_sequence(x: int) -> dict[str, Any]:
    return {"in": sequence_alone(x), "n": {"m": x}}


def has_at_most_two(x: int | None) -> bool:
    return x is None or x % 4 <= 2


def row(text: str, length: int = 5, **more: Any) -> dict[str, Any]:
    """Returns a row of sequences of these tokens: ``"1 2,2"`` has 1 and then 2, 2. A dash is
    a sequence without tokens.
    """
    sequences = [[int(token) for token in part.split(",") if token != "-"] for part in text.split()]
    unused = [0] * (length - sum(map(len, sequences)))
    return {
        "x": np.array([token for tokens in sequences for token in tokens] + unused),
        "x_segment_ids": np.array(
            [i for i, tokens in enumerate(sequences, 1) for _ in tokens] + unused, np.int32
        ),
        "x_positions": np.array(
            [i for tokens in sequences for i in range(len(tokens))] + unused, np.int32
        ),
        **more,
    }


def nested_row(text: str, *metas: int) -> dict[str, Any]:
    return {"in": row(text), "n": {"m": np.array(metas)}}


def bins(ds: Any, cls: type = FirstFitPackIterDataset, **arguments: Any) -> Any:
    defaults = {"length_struct": {"x": 5}, "num_packing_bins": 2, "shuffle_bins": False}
    return cls(ds, **defaults | arguments)


def split(ds: Any, length: int, **arguments: Any) -> Any:
    return ConcatThenSplitIterDataset(
        ds.map(sequence_alone), length_struct={"x": length}, **arguments
    )


def window_stream(elements: list[Any], size: int, seed: int) -> list[Any]:
    return [
        window[i]
        for k, window in enumerate(cut(elements, size))
        for i in window_order(len(window), seed + k)
    ]


def cut(elements: list[Any], size: int) -> list[list[Any]]:
    return [elements[k : k + size] for k in range(0, len(elements), size)]


def _mask(text: str) -> Any:
    return np.array([letter == "1" for letter in text])


def arrays(n: int, size: int) -> list[Any]:
    return [np.array(part) for part in cut(list(range(n)), size)]


_ALL = list(range(11))
_PRESENT = [x for x in _ALL if x % 3]
_SPARSE = [drop_threes(x) for x in _ALL]
_BIG = [x for x in _SPARSE if is_big(x)]
_FANNED = [item for x in _ALL for item in fan(x)]
_DRAWN = [draw(x, stream(2, i)) for i, x in enumerate(range(4))]
_DRAWN_PAIRS = [draw(x, stream(1, i)) for i, x in enumerate(enumerate(_PRESENT))]
_RECORDS = [Record(RecordMetadata(i, i), data) for i, data in enumerate(["a", None, [3]])]
_ELASTIC = [np.array([p + 11, p + 13]) for p in range(0, 20, 4)]
_GLOBAL = [np.array([x, x + 2, x + 1, x + 3]) for x in (0, 4, 8)]
_PACKED = [[row("- 1 2,2 - 5"), row("3,3,3 6,6")], [row("7,7,7 - 9"), row("10,10")]]
_SHUFFLED_PACKED = [
    batch[i]
    for batch, seed in zip(_PACKED, (3, 5), strict=True)
    for i in np.random.default_rng(seed).permuted(range(2))
]
_ZIPPED_WINDOWS = chain.from_iterable(zip(window_stream(_ALL, 4, 3), _ALL, strict=True))
_BOS = {
    "bos_handling": BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS,
    "bos_features": ["x"],
    "bos_token_id": 99,
}
_ROWS: list[tuple[Any, ...]] = [
    ("direct", numbers, _ALL),
    ("threaded", lambda: numbers(THREADED), _ALL),
    ("one_thread_one_ahead", lambda: numbers(ReadOptions(1, 1)), _ALL),
    (
        "default_options",
        lambda: MapDataset.range(11).map(add_ten).to_iter_dataset(),
        list(range(10, 21)),
    ),
    ("empty", lambda: numbers(n=0), []),
    ("dropping", dropping, _PRESENT),
    ("dropping_threaded", lambda: dropping(THREADED), _PRESENT),
    ("nones", lambda: sparse(THREADED), _SPARSE),
    ("map", lambda: numbers(THREADED).map(add_ten), list(range(10, 21))),
    ("map_nones", lambda: sparse().map(add_ten), [None if x is None else x + 10 for x in _SPARSE]),
    (
        "map_with_nones",
        lambda: MapIterDataset(sparse(), unless_none, with_nones=True),
        [*map(unless_none, _SPARSE)],
    ),
    (
        "map_with_index",
        lambda: sparse().map_with_index(pair),
        [x and (i, x) for i, x in enumerate(_SPARSE)],
    ),
    (
        "random_map",
        lambda: sparse(THREADED).random_map(draw, seed=2),
        [x and draw(x, stream(2, i)) for i, x in enumerate(_SPARSE)],
    ),
    ("filter", lambda: filtered(DIRECT), _PRESENT),
    ("tolerate", lambda: tolerant(numbers(THREADED)), _PRESENT),
    ("tolerate_map", lambda: tolerant_map().to_iter_dataset(THREADED), [*_PRESENT, 11]),
    (
        "tolerate_windows",
        lambda: tolerant(numbers()).window_shuffle(3, seed=1),
        window_stream(_PRESENT, 3, 1),
        True,
    ),
    (
        "tolerate_lanes",
        lambda: tolerant(numbers()).mp_prefetch(MultiprocessingOptions(num_lanes=2)),
        [2, 1, 4, 5, 8, 7, 10],
    ),
    ("filter_nones", lambda: sparse(THREADED).filter(is_big), _BIG),
    ("batch", lambda: numbers(THREADED).batch(4), arrays(11, 4)),
    (
        "batch_drop",
        lambda: filtered(DIRECT).batch(3, drop_remainder=True),
        [np.array([1, 2, 4]), np.array([5, 7, 8])],
    ),
    ("batch_of_batches", lambda: lists(lists(numbers(THREADED), 2), 2), cut(cut(_ALL, 2), 2)),
    ("seed", lambda: numbers().seed(3), _ALL),
    ("options", lambda: WithOptionsIterDataset(numbers(), DatasetOptions(min_shm_size=1)), _ALL),
    (
        "legacy_operation",
        lambda: LegacyOperationIterDataset(numbers(), doubled_pairs),
        [2, 6, 10, 14, 18],
    ),
    (
        "record_data",
        lambda: DataIterDataset(MapDataset.source(_RECORDS).to_iter_dataset(DIRECT)),
        ["a", None, [3]],
    ),
    ("mp_prefetch", lambda: filtered().mp_prefetch(TWO_WORKERS), [2, 1, 4, 5, 8, 7, 10]),
    (
        "stream_order",
        lambda: divided(filtered().map(add_ten)).map_with_index(pair),
        [*enumerate([x + 10 for x in _PRESENT])],
    ),
    (
        "stream_order_dropping",
        lambda: divided(dropping(THREADED).map(add_ten)),
        [x + 10 for x in _PRESENT],
    ),
    (
        "stream_order_batches",
        lambda: divided(numbers(THREADED).map_with_index(pair).batch(4)),
        [(x, x) for x in arrays(11, 4)],
    ),
    (
        "stream_order_outputs",
        lambda: DividedPart(filtered(n=5)).by_workers(0),
        [Dropped(1), 1, 2, Dropped(1), 4],
    ),
    (
        "stream_interleave",
        lambda: by_local_workers(twins().map(add_ten)).map_with_index(pair),
        [*enumerate([11, 10, 12, 11, 14, 12])],
    ),
    (
        "stream_interleave_member",
        lambda: MemberIterDataset([numbers(n=2), filtered()], [], 1),
        _PRESENT,
    ),
    ("thread_prefetch", lambda: filtered().thread_prefetch(3), _PRESENT),
    ("thread_prefetch_0", lambda: sparse().thread_prefetch(0), _SPARSE),
    ("multithread_prefetch", lambda: filtered().multithread_prefetch(2, 2), [2, 1, 4, 5, 8, 7, 10]),
    ("lanes", lambda: sparse().mp_prefetch(MultiprocessingOptions(num_lanes=3)), _SPARSE),
    ("multithread_prefetch_0", lambda: sparse().multithread_prefetch(3, 0), _SPARSE),
    (
        "chain",
        lambda: lists(filtered().map_with_index(pair).random_map(draw, seed=1), 2),
        cut(_DRAWN_PAIRS, 2),
    ),
    # Files
    (
        "tfrecord",
        lambda: TFRecordIterDataset(records_file(0, 9)),
        [bytes([i]) * i for i in range(9)],
    ),
    (
        "tfrecord_open",
        lambda: TFRecordIterDataset(records_file(0, 9), open=Stream),
        [bytes([i]) * i for i in range(9)],
    ),
    ("tfrecord_empty", lambda: TFRecordIterDataset(records_file(3, 3), check_crc=False), []),
    ("tfrecord_no_files", lambda: TFRecordIterDataset([]), []),
    (
        "tfrecord_files",
        lambda: TFRecordIterDataset([records_file(0, 4), records_file(10, 12)]).map(size),
        [0, 10, 1, 11, 2, 3],
    ),
    ("parquet", lambda: ParquetIterDataset(rows_file(0, 8)).map(number), list(range(8))),
    (
        "parquet_filter",
        lambda: ParquetIterDataset(rows_file(0, 8)).map(number).filter(not_multiple_of_three),
        [1, 2, 4, 5, 7],
    ),
    ("parquet_empty", lambda: ParquetIterDataset(rows_file(3, 3)), []),
    (
        "parquet_files",
        lambda: ParquetIterDataset([rows_file(0, 4), rows_file(10, 12)]).map(number),
        [0, 10, 1, 11, 2, 3],
    ),
    (
        "parquet_workers",
        lambda: LocalWorkersIterDataset(ParquetIterDataset(rows_file(0, 8)).map(number), 2),
        [0, 3, 1, 4, 2, 5, 6, 7],
    ),
    (
        "hugging_face",
        lambda: HuggingFaceIterDataset(examples_of((0, 5), (7, 9))).map(number),
        [0, 1, 2, 3, 4, 7, 8],
    ),
    (
        "hugging_face_rows",
        lambda: HuggingFaceIterDataset(
            rows_of(rows_file(0, 4), rows_file(10, 12)).filter(is_no_multiple_of_three)
        ).map(number),
        [1, 2, 10, 11],
        "always",
    ),
    (
        "hugging_face_batches",
        lambda: HuggingFaceIterDataset(
            examples_of((0, 5)).map(twice_of_each, batched=True, batch_size=2)
        ).map(number),
        [0, 0, 1, 1, 2, 2, 3, 3, 4, 4],
        "always",
    ),
    ("hugging_face_empty", lambda: HuggingFaceIterDataset(examples_of((3, 3))), []),
    (
        "hugging_face_workers",
        lambda: LocalWorkersIterDataset(
            HuggingFaceIterDataset(examples_of((0, 3), (5, 6))).map(number), 2
        ),
        [0, 5, 1, 2],
    ),
    # Packing
    (
        "first_fit",
        lambda: bins(numbers(THREADED).map(sequence), meta_features=["m"]),
        [
            row("- 1 2,2 - 5", m=[0, 1, 2, 4, 5]),
            row("3,3,3 6,6", m=[3, 6]),
            row("7,7,7 - 9", m=[7, 8, 9]),
            row("10,10", m=[10]),
        ],
    ),
    (
        "first_fit_shuffled",
        lambda: bins(numbers().map(sequence_alone), shuffle_bins=True, seed=3),
        _SHUFFLED_PACKED,
    ),
    (
        "best_fit",
        lambda: bins(
            numbers().map(sequence_alone), BestFitPackIterDataset, max_sequences_per_bin=2
        ),
        [row("- 1"), row("2,2 3,3,3"), row("- 5"), row("6,6 7,7,7"), row("- 9"), row("10,10")],
    ),
    (
        "first_fit_sparse",
        lambda: bins(sparse(THREADED).map(sequence_alone), num_packing_bins=1),
        [row("1 2,2 - 5"), row("7,7,7 - 10,10")],
    ),
    (
        "first_fit_nested",
        lambda: bins(
            numbers().map(nested_sequence),
            length_struct={"in": {"x": 5}, "n": {"m": 4}},
            meta_features="n",
        ),
        [
            nested_row("- 1 2,2 -", 0, 1, 2, 4),
            nested_row("3,3,3 5", 3, 5, 0, 0),
            nested_row("6,6 7,7,7 -", 6, 7, 8, 0),
            nested_row("9 10,10", 9, 10, 0, 0),
        ],
    ),
    ("first_fit_empty", lambda: bins(numbers(n=0).map(sequence)), []),
    (
        "concat_then_split",
        lambda: split(numbers(THREADED), 4),
        [row("- 1 2,2 3", 4), row("3,3 - 5 6", 4), row("6 7,7,7 -", 4), row("9 10,10", 4)],
    ),
    (
        "concat_then_split_whole",
        lambda: split(sparse().filter(has_at_most_two), 2, split_full_length_features=False),
        [row("1 - 5 -", 2), row("2,2", 2), row("10,10", 2)],
    ),
    (
        "concat_then_split_bos",
        lambda: split(numbers(n=8), 5, **_BOS),
        [row("- 99 99,2 99,3"), row("99 - 99 99,6 99"), row("99,7")],
    ),
    ("packed_batches", lambda: lists(bins(numbers().map(sequence_alone)), 2), _PACKED),
    # Other elements of those of several parents, several of one, or shuffled within windows
    ("zip", lambda: numbers(THREADED).zip(numbers().map(add_ten)), [(x, x + 10) for x in _ALL]),
    (
        "zip_sparse",
        lambda: numbers().zip(sparse(THREADED), sparse()),
        [*zip(_ALL, _SPARSE, _SPARSE, strict=True)],
    ),
    (
        "zip_of_dropping",
        lambda: dropping(THREADED).zip(numbers(n=7)),
        [*zip(_PRESENT, range(7), strict=True)],
    ),
    (
        "zip_to_the_shortest",
        lambda: (
            numbers(THREADED)
            .zip(dropping(THREADED), numbers(n=9), numbers().batch(4), strict=False)
            .map(without_last)
        ),
        [(0, 1, 0), (1, 2, 1), (2, 4, 2)],
    ),
    (
        "zip_first_is_shortest",
        lambda: dropping().zip(numbers(THREADED), strict=False),
        [*zip(_PRESENT, _ALL, strict=False)],
    ),
    (
        "zip_all_end_behind_the_shortest",
        lambda: dropping().zip(dropping(THREADED), numbers(n=5), strict=False),
        [*zip(_PRESENT, _PRESENT, range(5), strict=False)],
    ),
    ("zip_empty", lambda: numbers(n=0).zip(numbers(n=0)), []),
    ("flat_map", lambda: numbers(THREADED).flat_map(Fan()), _FANNED),
    ("flat_map_function", lambda: dropping().flat_map(fan), [y for x in _PRESENT for y in fan(x)]),
    (
        "flat_map_nones",
        lambda: sparse().flat_map(letters),
        [y for x in _PRESENT for y in letters(x)],
    ),
    (
        "flat_map_with_nones",
        lambda: FlatMapIterDataset(sparse(), letters, with_nones=True),
        [y for x in _SPARSE for y in letters(x)],
    ),
    ("flat_map_to_nothing", lambda: numbers().flat_map(drop_all), []),
    (
        "flat_map_twice",
        lambda: numbers().flat_map(fan).flat_map(list),
        [y for item in _FANNED for y in item],
    ),
    (
        "window_shuffle",
        lambda: numbers(THREADED).window_shuffle(4, seed=2**32 - 2),
        window_stream(_ALL, 4, 2**32 - 2),
    ),
    (
        "window_shuffle_even",
        lambda: numbers(n=10).window_shuffle(5, seed=0),
        window_stream(_ALL[:10], 5, 0),
    ),
    (
        "window_shuffle_sparse",
        lambda: filtered().window_shuffle(3, seed=1),
        window_stream(_PRESENT, 3, 1),
    ),
    (
        "window_shuffle_one_window",
        lambda: sparse().window_shuffle(100, seed=1),
        window_stream(_SPARSE, 100, 1),
    ),
    ("window_shuffle_empty", lambda: numbers(n=0).window_shuffle(3, seed=1), []),
    ("window_shuffle_ones", lambda: numbers().window_shuffle(1, seed=5), _ALL),
    (
        "reshape_chain",
        lambda: lists(
            numbers(THREADED)
            .window_shuffle(4, seed=3)
            .zip(numbers())
            .flat_map(list)
            .window_shuffle(5, seed=4),
            3,
        ),
        cut(window_stream([*_ZIPPED_WINDOWS], 5, 4), 3),
    ),
    # From several datasets
    (
        "iter_mix",
        lambda: IterDataset.mix([filtered(n=9), numbers()]),
        [1, 0, 2, 1, 4, 2, 5, 3, 7, 4, 8, 5],
    ),
    (
        "iter_mix_weighted",
        lambda: IterDataset.mix(
            {"b": numbers(), "a": filtered(n=30).map(add_ten)}, {"b": 2.5, "a": 1}
        ),
        [11, 0, 1, 12, 2, 3, 4, 14, 5, 6, 15, 7, 8, 9, 17, 10],
    ),
    (
        "iter_mix_schedule",
        lambda: IterDataset.mix([filtered(n=9), numbers()], Schedule({0: [1, 0], 3: [1, 2]})),
        [1, 2, 4, 0, 5, 1, 2, 7, 3, 4, 8, 5, 6],
    ),
    (
        "iter_mix_by_length",
        lambda: IterDataset.mix([filtered(n=12), numbers()], [1, 2], by=remainder),
        [1, 0, 1, 2, 2, 3, 4, 5, 4, 6, 7, 8, 5, 9, 10],
    ),
    (
        "iter_mix_until_all",
        lambda: IterDataset.mix(
            [filtered(n=12), numbers()], Schedule.linear({0: [1, 0], 8: [0, 1]}), stop="all"
        ),
        [1, 2, 4, 0, 1, 2, 5, 3, 4, 5, 6, 7, 8, 9, 10],
    ),
    (
        "iter_mix_never",
        lambda: IterDataset.mix(
            [MapDataset.range(3).shuffle(seed=1), numbers()], stop="never"
        ).limit(14),
        [1, 0, 2, 1, 0, 2, 0, 3, 2, 4, 1, 5, 2, 6],
    ),
    ("iter_mix_of_map", lambda: IterDataset.mix([MapDataset.range(3)]), [0, 1, 2]),
    (
        "interleave",
        lambda: InterleaveIterDataset(
            [filtered(n=4), numbers(), MapDataset.range(50, 53), numbers(n=0)], cycle_length=2
        ),
        [1, 0, 2, 1, 2, 50, 3, 51, 4, 52, 5, 6, 7, 8, 9, 10],
    ),
    (
        "interleave_all",
        lambda: InterleaveIterDataset(
            [numbers(n=3), numbers(n=5)],
            cycle_length=9,
            iter_buffer_size=0,
            make_iter_buffer_size=0,
        ),
        [0, 0, 1, 1, 2, 2, 3, 4],
    ),
    (
        "interleave_lazy",
        lambda: (
            MapDataset.range(0, 50, 10).map(drop_threes).interleave(starting_at, cycle_length=3)
        ),
        [20, 30, 21, 31, 50, 22, 32, 51, 52],
    ),
    ("interleave_one", lambda: InterleaveIterDataset([filtered()], cycle_length=1), _PRESENT),
    ("interleave_none", lambda: InterleaveIterDataset([], cycle_length=4), []),
    (
        "interleave_of_batches",
        lambda: lists(
            InterleaveIterDataset([lists(numbers(THREADED), 4), filtered(n=8)], cycle_length=2), 2
        ),
        [[[0, 1, 2, 3], 1], [[4, 5, 6, 7], 2], [[8, 9, 10], 4], [5, 7]],
    ),
    # What counts, repeats, keeps or cuts again, and what trains on many devices
    ("limit", lambda: numbers(THREADED).limit(4), list(range(4))),
    ("limit_beyond", lambda: numbers().limit(20), _ALL),
    ("limit_nones", lambda: sparse().limit(6), _SPARSE[:6]),
    (
        "limit_chain",
        lambda: filtered().limit(5).map_with_index(pair),
        [(0, 1), (1, 2), (2, 4), (3, 5), (4, 7)],
    ),
    ("repeat", lambda: numbers(THREADED, n=4).repeat(3), [*range(4)] * 3),
    ("repeat_endless", lambda: numbers(n=3).repeat().limit(8), [0, 1, 2, 0, 1, 2, 0, 1]),
    ("repeat_random", lambda: numbers(n=4).random_map(draw, seed=2).repeat(2), _DRAWN * 2),
    ("repeat_nothing", lambda: numbers(n=3).filter(is_big).repeat(5), []),
    ("repeat_nones", lambda: sparse().filter(is_big).repeat(2), _BIG * 2),
    ("repeat_batches", lambda: lists(numbers(n=5), 3).repeat(2), [[0, 1, 2], [3, 4]] * 2),
    ("repeat_shares", lambda: numbers(n=5).multithread_prefetch(2, 2).repeat(2), [*range(5)] * 2),
    ("repeat_repeat", lambda: numbers(n=2).repeat(2).limit(3).repeat(2), [0, 1, 0] * 2),
    ("rebatch", lambda: numbers(THREADED).batch(4).rebatch(3), arrays(11, 3)),
    ("rebatch_drop", lambda: numbers().batch(2).rebatch(5, drop_remainder=True), arrays(10, 5)),
    ("rebatch_even", lambda: numbers(n=8).batch(4).rebatch(2), arrays(8, 2)),
    ("rebatch_same", lambda: numbers(n=8).batch(4).rebatch(4), arrays(8, 4)),
    (
        "rebatch_pairs",
        lambda: numbers(n=5).map_with_index(pair).batch(3).rebatch(2),
        [(part, part) for part in arrays(5, 2)],
    ),
    (
        "rebatch_dropping",
        lambda: filtered(DIRECT).batch(2).rebatch(4),
        [*map(np.array, cut(_PRESENT, 4))],
    ),
    (
        "bucket_batch",
        lambda: bucketed(numbers(THREADED), [3, 6, 10], [3, 2, 3]),
        [
            padded(*row)
            for row in ((3, 0, 1, 2), (6, 4, 5), (10, 7, 8, 9), (3, 3), (6, 6), (10, 10))
        ],
    ),
    (
        "bucket_batch_lengths",
        lambda: bucketed(sparse(), [2, 5], 2, on_long="truncate", with_lengths=True),
        [
            (padded(n, *rows), np.minimum(rows, n).astype(np.int32))
            for n, *rows in ((2, 1, 2), (5, 4, 5), (5, 7, 8), (5, 10, 0))
        ],
    ),
    (
        "bucket_batch_drop",
        lambda: bucketed(
            filtered(), [1, 5], [5, 3], on_long="drop", drop_remainder=True, pad_to="longest"
        ),
        [padded(5, 2, 4, 5)],
    ),
    ("cache", lambda: numbers(THREADED).cache(), _ALL, True),
    ("disk_cache", lambda: numbers(THREADED).cache(cache_folder()), _ALL, True),
    (
        "disk_cache_batches",
        lambda: lists(filtered().cache(cache_folder()), 2),
        cut(_PRESENT, 2),
        True,
    ),
    ("cache_nones", lambda: sparse().cache(), _SPARSE, True),
    ("cache_nothing", lambda: numbers(n=0).cache(), []),
    (
        "cache_repeat",
        lambda: numbers(n=4).random_map(draw, seed=2).cache(copy_elements=True).repeat(3),
        _DRAWN * 3,
        True,
    ),
    (
        "cache_chain",
        lambda: lists(filtered(n=7).cache().repeat(2).map_with_index(pair), 3),
        cut([*enumerate([1, 2, 4, 5] * 2)], 3),
        True,
    ),
    ("global_batch", lambda: numbers(THREADED, n=14).global_batch(4, num_lanes=2), _GLOBAL),
    (
        "global_batch_filtered",
        lambda: filtered(n=14).global_batch(4, num_lanes=2),
        [np.array([2, 4, 1, 5]), np.array([8, 10, 7, 11])],
    ),
    (
        "global_batch_pad",
        lambda: numbers(n=9).global_batch(4, num_lanes=2, end="pad", batch_fn=list),
        [
            ([0, 2, 1, 3], _mask("1111")),
            ([4, 6, 5, 7], _mask("1111")),
            ([8, 8, 7, 7], _mask("1000")),
        ],
    ),
    (
        "global_batch_pad_unknown",
        lambda: numbers(n=6).filter(is_big).global_batch(2, end="pad"),
        [(np.array([0, 5]), _mask("01"))],
    ),
    (
        "global_batch_repeat",
        lambda: numbers(n=5).global_batch(2, end="repeat").limit(4),
        [*map(np.array, ([0, 1], [2, 3], [4, 1], [0, 3]))],
    ),
    ("elastic", functools.partial(Elastic, DIRECT), _ELASTIC),
    ("elastic_threaded", functools.partial(Elastic, THREADED), _ELASTIC),
]
ITER_ENTRIES = [IterEntry(*row) for row in _ROWS]
