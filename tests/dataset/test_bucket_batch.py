"""``bucket_batch``: batches by length, against models that go through the windows and the elements
one by one.
"""

import itertools
import pickle
import random
import tracemalloc

import numpy as np
import pytest
from computing_ahead import DIRECT
from formulas import bucket_batches, shuffled
from local_workers import LocalWorkersIterDataset
from refusing import assert_raises, assert_refused, assert_stays

import gristmill
from gristmill import MapDataset, bucket_boundaries
from gristmill.experimental import ShapeDtypeStruct, get_element_spec
from gristmill.sharding import ShardOptions
from gristmill.transforms.length_buckets import Lengths


class Records:
    """Records that know their lengths, and refuse to be read while batches are planned."""

    element_spec = {  # noqa: RUF012
        "x": ShapeDtypeStruct((None,), np.int32),
        "key": ShapeDtypeStruct((), np.int64),
    }

    def __init__(self, lengths, may_be_read=True):
        self.lengths, self.may_be_read = lengths, may_be_read

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, key):
        assert self.may_be_read
        return {"x": np.full(self.lengths[key], key, np.int32), "key": key}


def log_normal(num, median=100):
    lengths = np.random.default_rng(0).lognormal(np.log(median), 1, num).astype(np.int64) + 1
    return np.minimum(lengths, 10 * median)


def keys_in(batches):
    return [batch["key"].tolist() for batch in batches]


@pytest.mark.parametrize("seed", range(8))
def test_batches_are_those_of_a_model_of_windows(seed):
    rng = random.Random(seed)
    num = rng.randint(1, 40)
    lengths = [rng.randint(0, 12) for _ in range(num)]
    boundaries = sorted(rng.sample(range(1, 12), rng.randint(1, 4)))
    sizes, last = [rng.randint(1, 5) for _ in boundaries], boundaries[-1]
    window = rng.choice([1, 4, 7, 30, 1000])
    drop = rng.random() < 0.3
    on_long = rng.choice(["drop", "truncate"])
    pad_to = {"x": rng.choice(["longest", "boundary"]), "key": None}
    options = {
        "drop_remainder": drop,
        "on_long": on_long,
        "pad_to": pad_to,
        "pad_value": {"x": -1, "key": 0},
    }
    source = MapDataset.source(Records(lengths)).shuffle(seed=seed).repeat(2)
    ds = source.bucket_batch(
        None, boundaries, batch_sizes=sizes, window=window, seed=2**32 - 1, **options
    )
    assert ds.num_long == 2 * sum([n > last for n in lengths])
    expected = {}
    for epoch in (-1, 0, 1):
        order = [shuffled(2 * epoch * num + i, num, seed) % num for i in range(2 * num)]
        of_order = [min(lengths[key], last if on_long == "truncate" else 99) for key in order]
        batches = bucket_batches(epoch, of_order, boundaries, sizes, window, 2**32 - 1, drop)
        assert len(batches) == len(ds)
        for i, (bucket, rows) in enumerate(batches):
            num_cells = (
                boundaries[bucket]
                if pad_to["x"] == "boundary"
                else max([of_order[row] for row in rows])
            )
            padded = [
                [order[row]] * of_order[row] + [-1] * (num_cells - of_order[row]) for row in rows
            ]
            expected[epoch * len(ds) + i] = [order[row] for row in rows], padded
    for index in sorted(expected, key=lambda _: rng.random()):
        assert (ds[index]["key"].tolist(), ds[index]["x"].tolist()) == expected[index]
        assert ds[index]["x"].dtype == np.int32
    if len(ds):
        it, found = iter(ds.to_iter_dataset(DIRECT)), [expected[i][0] for i in range(len(ds))]
        assert keys_in(it) == found and it.get_state() == {"next_index": len(ds)}
        assert sorted(keys_in(LocalWorkersIterDataset(ds.to_iter_dataset(DIRECT), 2))) == sorted(
            found
        )


@pytest.mark.slow
def test_few_shapes_little_padding_and_every_record_once():
    source = Records(log_normal(16_000))
    ds = MapDataset.source(source).seed(3).shuffle()
    assert 1 - source.lengths.mean() / source.lengths.max() > 0.6  # in fixed batches
    for num_hosts in range(1, 9):
        source.may_be_read = False
        shards = [ShardOptions(host, num_hosts) for host in range(num_hosts)]
        options = {"max_tokens": 16_384, "window": 2048, "with_lengths": True}
        hosts = [ds.bucket_batch(None, 8, shard_options=shard, **options) for shard in shards]
        assert len({len(host) for host in hosts}) == 1 and len(hosts[0].boundaries) == 8
        source.may_be_read = True
        shapes, seen, num_cells, num_real = set(), [], 0, 0
        for i in range(len(hosts[0])):
            step = [host[i] for host in hosts]
            assert len({batch["x"].shape for batch, _ in step}) == 1  # of one bucket
            shapes.add(step[0][0]["x"].shape)
            for batch, lengths in step:
                seen += batch["key"][lengths > 0].tolist()
                num_cells, num_real = num_cells + batch["x"].size, num_real + int(lengths.sum())
        assert sorted(seen) == [*range(len(source))]
        assert len(shapes) <= 8 and 1 - num_real / num_cells <= 0.25


@pytest.mark.parametrize("option", ["with_lengths", "drop_remainder"])
@pytest.mark.parametrize("pad_to", ["boundary", "longest"])
def test_the_rows_of_all_hosts_are_the_batch_of_one(option, pad_to):
    lengths = log_normal(300, median=5)
    ds = MapDataset.source([np.full(n, k + 1) for k, n in enumerate(lengths)]).shuffle(seed=1)
    whole, *hosts = [
        ds.bucket_batch(
            lengths,
            3,
            batch_sizes=12,
            window=100,
            pad_to=pad_to,
            shard_options=shard,
            **{option: True},
        )
        for shard in (None, *[ShardOptions(host, 4) for host in range(4)])
    ]
    for i in range(-3, len(whole) + 3):
        of_one, of_hosts = whole[i], [host[i] for host in hosts]
        if option == "with_lengths":
            assert np.array_equal(of_one[1], np.concatenate([lengths for _, lengths in of_hosts]))
            of_one, of_hosts = of_one[0], [batch for batch, _ in of_hosts]
        assert np.array_equal(of_one, np.concatenate(of_hosts)) and len(of_one) == 12


def test_no_boundaries_leave_less_padding():
    def cells(lengths, boundaries):
        return int(np.asarray(boundaries)[np.searchsorted(boundaries, lengths)].sum())

    rng = random.Random(0)
    for _ in range(200):
        lengths = [
            rng.randint(1, 12) * rng.choice([1, 1, 40_000]) for _ in range(rng.randint(1, 20))
        ]
        number, values = rng.randint(1, 5), sorted({*lengths})
        found = bucket_boundaries(lengths, number)
        others = [
            [*some, values[-1]]
            for r in range(number)
            for some in itertools.combinations(values[:-1], r)
        ]
        if values[-1] <= 1 << 16:
            assert cells(lengths, found) == min([cells(lengths, other) for other in others])
        assert len(found) <= number and found[-1] == values[-1]
    assert bucket_boundaries([0, 5, 9, 400], 3, longest=10) == [1, 5, 10]
    for on_long, chosen in (("drop", (3, 9)), ("truncate", (9, 24))):
        ds = MapDataset.range(5).bucket_batch([1, 3, 5, 9, 40], 2, max_tokens=24, on_long=on_long)
        assert (ds.boundaries, ds.num_long) == (chosen, 1)


def test_planning_takes_the_memory_of_a_window(tmp_path):
    num = 500_000
    np.save(tmp_path / "lengths.npy", log_normal(num).astype(np.uint16))
    lengths = np.load(tmp_path / "lengths.npy", mmap_mode="r")
    tracemalloc.start()
    try:
        ds = (
            MapDataset.range(num)
            .shuffle(seed=0)
            .bucket_batch(lengths, 8, max_tokens=4096, window=4096)
        )
        batches = [ds[i].tolist() for i in (0, -1, len(ds) - 1)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 * num  # of a block of lengths, and some windows
    text = pickle.dumps(ds)
    assert len(text) < 20_000
    assert [pickle.loads(text)[i].tolist() for i in (0, -1, len(ds) - 1)] == batches
    part = pickle.loads(pickle.dumps(Lengths(lengths[10:20])))  # not the whole file
    assert part.values.tolist() == lengths[10:20].tolist()


def test_lengths_are_those_of_the_records_wherever_they_stand():
    lengths = np.array([4, 1, 3, 2, 5, 1])
    source = MapDataset.source([np.full(n, k) for k, n in enumerate(lengths)])
    labels = MapDataset.range(6)
    for ds, keys in (
        (source[::-1], [*range(6)]),
        (source[1:5].shuffle(seed=3), [1, 2, 3, 4]),
        (source[::-1].random_map(lambda x, rng: x, seed=1), [*range(6)]),
        (source.slice([4, 4, 0]), [0, 4, 4]),
        (
            source.map(lambda x: x + 0).repeat(2, reseed_each_epoch=False),
            [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5],
        ),
        (MapDataset.source(source).seed(1).random_map(lambda x, rng: x), [*range(6)]),
        (source.zip(labels).shuffle(seed=1).map(lambda pair: pair[0]), [*range(6)]),
    ):
        found = sorted([int(batch[0, 0]) for batch in ds.bucket_batch(lengths, [5], batch_sizes=1)])
        assert found == keys
    shuffled_source = source.shuffle(seed=1)
    parts = MapDataset.concatenate([shuffled_source[:3], source])
    for ds in (
        MapDataset.mix([source, source[:2]], [1, 2]),
        parts,
        shuffled_source.zip(labels),
        shuffled_source[:4],
    ):
        given = lengths if len(ds) in (4, 6) else np.arange(len(ds))
        with pytest.raises(ValueError, match="same elements in every epoch"):
            ds.bucket_batch(given, [1, 3, 99], batch_sizes=1)
    wrong = source.bucket_batch(lengths[::-1].copy(), [5], batch_sizes=2)
    assert_raises(ValueError, "length of its record", lambda: wrong[0])


def test_leaves_are_padded_each_by_its_rule():
    records = [
        {
            "x": np.full((n, 2), n, np.float32),
            "y": np.arange(3),
            "z": (np.arange(n % 3), "ab"[: n % 2 + 1]),
        }
        for n in (1, 4)
    ]
    pad_to = {"x": "boundary", "y": None, "z": (2, None)}
    options = {"pad_value": {"x": 0.5, "y": 0, "z": (-1, "")}, "with_lengths": True}
    batch, lengths = MapDataset.source(records).bucket_batch(
        [1, 4], [6], batch_sizes=3, pad_to=pad_to, **options
    )[0]
    assert batch["x"].shape == (3, 6, 2) and batch["x"][:, :, 0].tolist() == [
        [1] + [0.5] * 5,
        [4] * 4 + [0.5] * 2,
        [0.5] * 6,
    ]
    assert batch["z"][0].tolist() == [[0, -1], [0, -1], [-1, -1]] and batch["z"][1].tolist() == [
        "ab",
        "a",
        "",
    ]
    assert batch["y"].tolist() == [[0, 1, 2], [0, 1, 2], [0, 0, 0]] and lengths.tolist() == [
        1,
        4,
        0,
    ]
    for options, match in (
        ({}, "length of its record is 1"),
        ({"pad_to": {"x": "boundary"}}, "structure of the elements"),
        ({"pad_to": pad_to | {"y": 2}}, "longer than the 2"),
        ({"pad_to": pad_to, "pad_value": "?"}, r"pad_value .*\['x'\]"),
    ):
        wrong = MapDataset.source(records).bucket_batch([1, 4], [6], batch_sizes=2, **options)
        assert_raises(ValueError, match, lambda: wrong[0])  # noqa: B023


def test_element_specs():
    ds = MapDataset.source(Records(np.array([1, 2, 9])))
    of_hosts = {"drop_remainder": True, "shard_options": ShardOptions(0, 2)}
    of_lengths = {"with_lengths": True, "pad_to": {"x": "longest", "key": None}}
    for boundaries, options, shape in (
        ([3, 9], {}, (None, None)),
        ([9], of_hosts, (2, 9)),
        ([9], of_lengths, (4, None)),
    ):
        spec = {
            "x": ShapeDtypeStruct(shape, np.int32),
            "key": ShapeDtypeStruct(shape[:1], np.int64),
        }
        expected = (spec, ShapeDtypeStruct(shape[:1], np.int32)) if options is of_lengths else spec
        found = get_element_spec(ds.bucket_batch(None, boundaries, batch_sizes=4, **options))
        assert found == expected
        if options is not of_hosts:
            found = get_element_spec(
                ds.to_iter_dataset().bucket_batch(len, boundaries, batch_sizes=4, **options)
            )
            assert found == expected


def test_what_is_too_long_is_in_reports_and_metrics():
    lengths = MapDataset.source([1, 9, 2, 9, 9, 1]).to_iter_dataset(DIRECT)
    it = iter(lengths.map(np.zeros).bucket_batch(len, [2], batch_sizes=2, on_long="drop").map(len))
    with gristmill.observe(it) as observed:
        assert next(it) == 2
        assert "longer than the last boundary" in str(observed.summary())
        assert "longer than" in observed.report()
        assert [*it] == [1]
        (found,) = [
            node.num_long for node in observed.summary().values() if node.num_long is not None
        ]
        assert found == 3 and "3 in BucketBatch" in str(observed.summary())
    it = iter(lengths.bucket_batch(int, [2], batch_sizes=2, on_long="truncate"))
    assert [(len(batch), it.num_long) for batch in it] == [(2, 1), (2, 2), (2, 3)]


def test_a_stream_refuses_what_is_too_long():
    ds = MapDataset.source([np.zeros(n) for n in (1, 9, 2, 2, 1)]).to_iter_dataset(DIRECT)
    it = iter(ds.bucket_batch(len, [1, 2], batch_sizes=2))
    assert_stays(it, ValueError, "longer than the last boundary, 2")
    it.skip_failed()
    assert [batch.shape for batch in it] == [(2, 2), (2, 1)]
    it = iter(ds.bucket_batch(lambda x: min(len(x), 2), [2], batch_sizes=2))
    assert_stays(it, ValueError, "length of its record is 2")
    it.skip_failed()
    assert [batch.shape for batch in it] == [(2, 2), (1, 2)]
    assert_refused(
        it,
        ValueError,
        "no more than the buckets hold",
        it.get_state() | {"num_read": 3, "held": "0-2"},
    )
    it.set_state(it.get_state() | {"num_read": 1, "held": "0"})
    assert_stays(it, ValueError, "data end before")


def test_wrong_arguments():
    ds, two = MapDataset.range(4), {"batch_sizes": 2}
    for error, match, *args, options in (
        (TypeError, "either max_tokens or batch_sizes", [1] * 4, [1], {}),
        (
            TypeError,
            "either max_tokens or batch_sizes",
            [1] * 4,
            [1],
            {"max_tokens": 3, "batch_sizes": 2},
        ),
        (TypeError, "one-dimensional array of integers", [1.5] * 4, [1], two),
        (ValueError, "must not be negative", [1, -1, 1, 1], [1], two),
        (ValueError, "one length for each element", [1] * 3, [1], two),
        (ValueError, "no attribute lengths", None, [1], two),
        (ValueError, "increasing lengths", [1] * 4, [2, 1], two),
        (ValueError, "one for each of the 2 buckets", [1] * 4, [1, 2], {"batch_sizes": [2]}),
        (ValueError, "a row of the longest boundary", [1] * 4, [1, 9], {"max_tokens": 8}),
        (ValueError, r"lengths\[2\] is 7.* up to the greatest length, 7", [1, 2, 7, 1], [3], two),
        (ValueError, "on_long must be", [1] * 4, [1], two | {"on_long": "cut"}),
        (ValueError, "pad_to must be 'boundary'", [1] * 4, [1], two | {"pad_to": "bucket"}),
        (
            ValueError,
            "divisible by the number of shards",
            [1] * 4,
            [1],
            two | {"shard_options": ShardOptions(0, 3)},
        ),
        (
            ValueError,
            "with several shards",
            [1] * 4,
            [1],
            two | {"shard_options": ShardOptions(0, 2)},
        ),
    ):
        assert_raises(error, match, ds.bucket_batch, *args, **options)
    with pytest.raises(ValueError, match="may drop elements"):
        ds.filter(bool).bucket_batch([1] * 4, [1], **two)
    with pytest.raises(ValueError, match="is endless: call repeat"):
        ds.repeat().bucket_batch([1] * 4, [1], **two)
    with pytest.raises(TypeError, match="boundaries must be a sequence"):
        ds.to_iter_dataset().bucket_batch(len, 3, **two)
    assert list(MapDataset.source([]).bucket_batch([], [3], **two)) == []
