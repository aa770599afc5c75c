"""Streams and the states of their iterators, element by element as Grain has them."""

import base64
import itertools
import warnings
from collections import Counter

import numpy as np
import pytest
from vector_data import FAN, build, check, load, plain, recorded_states

from gristmill import DataLoader, IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from gristmill import experimental as x
from gristmill.dataset.bases.context import Numbers
from gristmill.dataset.slicing import slice_pipeline
from gristmill.samplers import SequentialSampler
from gristmill.sharding import ShardOptions

MISC, MIX = load("exp_misc"), load("ds_mix")


def numbers(*args):
    return MapDataset.range(*args).to_iter_dataset()


SMALL = {
    "flat_map_iter": lambda: x.FlatMapIterDataset(numbers(5), FAN),
    "cache": lambda: x.CacheIterDataset(numbers(3)),
}
SMALL |= {
    "zip": lambda: x.ZipIterDataset([numbers(3), numbers(10, 13)]),
    "limit": lambda: x.LimitIterDataset(numbers(5), 3),
}
SMALL |= {"repeat": lambda: x.RepeatIterDataset(numbers(3), 2)}
SMALL |= {"repeat_cache": lambda: x.RepeatIterDataset(x.CacheIterDataset(numbers(3)), 2)}


def rebatched(case):
    stops = np.cumsum(case["parent_batch_sizes"], dtype=int)
    rows = [
        np.arange(stop - size, stop)
        for size, stop in zip(case["parent_batch_sizes"], stops, strict=True)
    ]
    parent = MapDataset.source([{"a": a, "b": 2 * a[:, None] + np.array([0, 1])} for a in rows])
    parent = parent.to_iter_dataset(ReadOptions(num_threads=0))
    return x.RebatchIterDataset(parent, case["batch_size"], case["drop_remainder"])


def window_shuffled(case):
    return x.WindowShuffleIterDataset(
        numbers(case["n"]), window_size=case["window_size"], seed=case["seed"]
    )


def interleaved(case, kind, options):
    datasets = [MapDataset.range(100 * i, 100 * i + n) for i, n in enumerate(case["lengths"])]
    if "iter" in kind:
        datasets = [ds.to_iter_dataset() for ds in datasets]
    if "lazy" in kind:
        datasets = MapDataset.source(datasets)
    return x.InterleaveIterDataset(datasets, cycle_length=case["cycle_length"], **options)


ALONE = {"num_make_iter_threads": 0, "iter_buffer_size": 0}
AHEAD = {"num_make_iter_threads": 2, "iter_buffer_size": 3, "make_iter_buffer_size": 2}
KINDS = ["map", "iter", "lazy_map", "lazy_iter"]


def mixed(row):
    return IterDataset.mix([build(component) for component in row["components"]], row["weights"])


def sequences(case):
    elements = [
        {k: np.array(v, np.int64) if isinstance(v, list) else v for k, v in e.items()}
        for e in case["elements"]
    ]
    return MapDataset.source(elements).to_iter_dataset()


def packed(case, cls):
    bins = {
        "length_struct": case["length_struct"],
        "num_packing_bins": case["num_packing_bins"],
        **case["args"],
    }
    ds = cls(sequences(case), **bins)
    for row in ds:
        assert {row[key].dtype for key in row if key.endswith(("_segment_ids", "_positions"))} <= {
            np.dtype(np.int32)
        }
    return ds


def concatenated(case):
    arguments = {
        key: x.BOSHandling[v.split(".")[-1]] if key == "bos_handling" else v
        for key, v in case["args"].items()
    }
    return x.ConcatThenSplitIterDataset(
        sequences(case), length_struct=case["length_struct"], **arguments
    )


def rows():
    """For each row: its name, a function that makes the dataset and its arguments, elements and
    recorded states.
    """
    for name, make in SMALL.items():
        yield name, make, (), MISC[name]["output"], recorded_states(MISC[name])
    for case in load("exp_rebatch")["cases"]:
        yield "rebatch", rebatched, (case,), case["output"], recorded_states(case)
    for name, key in (("exp_window_shuffle", "output"), ("ds_window_shuffle", "elements")):
        for case in load(name)["iter"]:
            yield "window_shuffle", window_shuffled, (case,), case[key], recorded_states(case)
    for i, case in enumerate(load("exp_interleave")["cases"]):
        yield (
            "interleave",
            interleaved,
            (case, KINDS[i % 4], ALONE),
            case["output"],
            recorded_states(case),
        )
        yield (
            "interleave",
            interleaved,
            (case, KINDS[(i + i // 4 + 1) % 4], AHEAD),
            case["output"],
            recorded_states(case),
        )
    for row in MIX["iter_mix"]:
        states = {
            0: row["state_before"],
            min(2, len(row["elements"])): row["state_after_2"],
            -1: row["state_after_stop"],
        }
        yield "mix", mixed, (row,), row["elements"], states
    row = MIX["iter_mix_mapping"]
    by_name = {"b": numbers(5), "a": numbers(100, 105)}, {"b": 1, "a": 2}
    yield "mix by name", IterDataset.mix, by_name, row["elements"] + row["rest"], {4: row["state"]}
    for case in load("pack_bins")["cases"]:
        for name, cls in (
            ("first_fit", x.FirstFitPackIterDataset),
            ("best_fit", x.BestFitPackIterDataset),
        ):
            yield "bins", packed, (case, cls), case[name]["output"], recorded_states(case[name])
    for case in load("pack_concat_then_split")["cases"]:
        if "grain_defect" in case:
            yield "defects of Grain", concatenated, (case,), case["expected_correct"], {}
        else:
            yield "concat_then_split", concatenated, (case,), case["output"], recorded_states(case)


ROWS = list(rows())


@pytest.mark.parametrize(("name", "make", "arguments", "output", "recorded"), ROWS)
def test_elements_and_states(name, make, arguments, output, recorded):
    check(make(*arguments), output, recorded)


def test_no_row_is_left_out():
    num_rows, num_states = Counter(name for name, *_ in ROWS), Counter()
    for name, *_, recorded in ROWS:
        num_states[name] += len(recorded)
    numbers = {
        "rebatch": 11,
        "window_shuffle": 19,
        "interleave": 46,
        "mix": 7,
        "bins": 30,
        "concat_then_split": 12,
    }
    assert num_rows == {
        **dict.fromkeys([*SMALL, "mix by name"], 1),
        **numbers,
        "defects of Grain": 2,
    }
    assert num_states["window_shuffle"] == 119 + 11 and num_states["mix"] == 3 * 7
    assert sum(name == "interleave" and bool(recorded) for name, *_, recorded in ROWS) == 2 * 6
    assert len(STATES) == 27 and len(OF_WORKERS) == 20
    assert [row["pipeline"] for row in OF_WORKERS if decided(row) != row["elements"]] == [NUMBERED]


STATES = load("ds_iterator_states")["rows"]


@pytest.mark.parametrize("row", STATES, ids=lambda row: row["pipeline"])
def test_iterator_states(row):
    ds, steps = build(row["pipeline"]), row["steps"]
    ends = steps[-1]["after"] == "StopIteration"
    output = [step["element"] for step in steps[1 : -1 if ends else None]]
    check(ds, output, {position: step["state"] for position, step in enumerate(steps)}, ends=ends)
    # The first is an interleave in Grain, the second shows its address there.
    if "multithread_prefetch" not in row["pipeline"] and " at 0x" not in row["iterator"]:
        assert str(iter(ds)) == row["iterator"].replace(" @ FILE:LINE", "").lstrip("_")


def test_files(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = [str(tmp_path / name) for name in ("one.parquet", "two.parquet", "records.tfrecord")]
    for path, values in zip(paths, (range(5), range(10, 13)), strict=False):
        pq.write_table(pa.table({"x": pa.array(values, pa.int64())}), path, row_group_size=2)
    (tmp_path / "records.tfrecord").write_bytes(base64.b64decode(MISC["tfrecord"]["file_base64"]))
    for name, ds in {
        "parquet": x.ParquetIterDataset(paths[0]),
        "parquet_two_files": x.ParquetIterDataset(paths[:2]),
        "tfrecord": x.TFRecordIterDataset(paths[2], check_crc=False),  # the file has none
    }.items():
        check(ds, MISC[name]["output"], recorded_states(MISC[name]))
    with pytest.raises(
        ValueError, match=r"records\.tfrecord .* byte 0 has a wrong checksum .*check_crc=False"
    ):
        list(x.TFRecordIterDataset(paths[2]))


OF_WORKERS = load("ds_mp_prefetch")["rows"]
NUMBERED = "range(5).to_iter.map_with_index((i,x))"


def decided(row):
    """The elements as DECISIONS 7 has them: worker ``i`` of ``n`` numbers its elements ``i``, ``i +
    n``, …; Grain 0, 1, ….
    """
    if row["pipeline"] != NUMBERED:
        return row["elements"]
    assert row["elements"] == [[0, 0], [0, 1], [1, 2], [1, 3], [2, 4]]
    return [[x, x] for _, x in row["elements"]]


def states_of_workers(row):
    """Either all are recorded, the last one after the end, or those after 3 elements and after the
    end.
    """
    if "states" in row:
        return {**dict(enumerate(row["states"][:-1])), -1: row["states"][-1]}
    return {3: row["state_after_3"], -1: row["state_after_stop"]}


def share(ds, index, count, **options):
    it = iter(slice_pipeline(ds, index, count, **options))
    it._ctx.numbers = Numbers(index, count)
    return [plain(x) for x in it]


@pytest.mark.parametrize("number", range(len(OF_WORKERS)))
def test_behind_workers(number):
    """Shares taken in turn, threads, and real processes deliver what Grain's processes do, with the
    same states.
    """
    row, missing = OF_WORKERS[number], object()
    count, sequential = row["num_workers"], row.get("sequential_slice", False)
    elements, states = decided(row), states_of_workers(row)
    shares = [share(build(row["pipeline"]), i, count, sequential=sequential) for i in range(count)]
    in_turn = [
        x
        for turn in itertools.zip_longest(*shares, fillvalue=missing)
        for x in turn
        if x is not missing
    ]
    assert in_turn == elements
    check(
        x.multithread_prefetch(build(row["pipeline"]), count, (0, 1, 7)[number % 3], sequential),
        elements,
        states,
    )
    ds = build(row["pipeline"]).mp_prefetch(
        MultiprocessingOptions(count), sequential_slice=sequential
    )
    check(ds, elements, states, new=False)
    it, position = iter(ds), [*states][number % len(states)]
    it.set_state(states[position])  # it takes over the processes of the other one
    assert plain(next(it, None)) == (
        elements[position] if position in range(len(elements)) else None
    )


def test_threads_elastic_padding_and_pack_and_batch():
    for case in MISC["multithread_prefetch"]["cases"]:
        ds, num = numbers(case["n"]), case["num_threads"]
        assert list(x.multithread_prefetch(ds, num, 1)) == case["output"]
        assert list(x.multithread_prefetch(ds, num, 1, sequential_slice=True)) == case["sequential"]
        batches = list(x.multithread_prefetch(ds.batch(2), num, 1))
        assert plain(batches) == case["batched2"]
        assert {type(batch) for batch in batches} == {np.ndarray}
    cases = MISC["elastic"]["cases"]
    # Grain's shards end at different steps; ours all with the last whole global batch
    for case in cases:
        ds = MapDataset.range(case["length"])
        size = case["global_batch_size"]
        count = case["shard_count"]
        per_shard = [
            plain(list(x.ElasticIterator(ds, size, ShardOptions(i, count)))) for i in range(count)
        ]
        steps = case["length"] // size
        assert per_shard == [batches[:steps] for batches in case["per_shard"]]
        assert {len(batches) for batches in per_shard} == {steps}
    assert [len({len(batches) for batches in case["per_shard"]}) for case in cases] == [
        1,
        1,
        2,
        1,
        2,
    ]
    cases = MISC["batch_and_pad"]["cases"]
    for values, batch_size, pad_value, result, dtype in cases:
        values = [np.float32(x) for x in values] if dtype == "float32" else values
        if pad_value == 2.7:  # which Grain cuts to 2
            with pytest.raises(ValueError, match=r"dtype int64 can hold, got 2\.7"):
                x.batch_and_pad(values, batch_size=batch_size, pad_value=pad_value)
        else:
            batch = x.batch_and_pad(values, batch_size=batch_size, pad_value=pad_value)
            assert (batch.dtype, batch.tolist()) == (dtype, result)
    assert len(cases) == 7
    cases = load("pack_and_batch_operation")["cases"]
    for case in cases:
        length, num_rows = case["length"], case["batch_size"]
        if "two_features" in case:
            elements = [
                {"inputs": np.arange(a), "targets": np.arange(100, 100 + b)}
                for a, b in case["lengths"]
            ]
        else:
            elements = [
                {"x": np.arange(1, n + 1), "y": np.full((n, 2), n, np.float32)}
                for n in case["lengths"]
            ]
            length = {"x": length, "y": length}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            operation = x.PackAndBatchOperation(length, num_rows, case["max_sequences_per_bin"])
        loader = DataLoader(
            data_source=elements, sampler=SequentialSampler(len(elements)), operations=[operation]
        )
        # Grain's operation begins the second time with what was left of the first
        for _ in range(2):
            assert [plain(batch) for batch in loader] == case["batches"]
    assert len(cases) == 5
