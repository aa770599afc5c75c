"""Global batches: equal for any number of hosts and workers, through saving and restoring; finite
data; errors.
"""

import importlib.util
import itertools
import json
import operator
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from computing_ahead import DIRECT, Boom, Failing
from local_workers import LocalWorkersIterDataset, through_json
from new_seed import SEED
from operations import operation
from refusing import assert_raises

from gristmill import (
    IterDataset,
    MapDataset,
    MultiprocessingOptions,
    ShardOptions,
    dataset_length,
    global_batch,
)
from gristmill import experimental as gx
from gristmill.checkpoint import CheckpointHandler, agree_jax, agree_torch, merge_states
from gristmill.core.errors import StateKeyError, StateMismatchError
from gristmill.dataset.bases.context import IteratorContext
from gristmill.dataset.bases.iterator import iterate
from gristmill.dataset.slicing import slice_pipeline
from gristmill.lengths import AtMost, Infinite, Unknown
from gristmill.loader import DataLoader
from gristmill.samplers import IndexSampler
from gristmill.transforms import Map

HANDLER, MANY = CheckpointHandler(), 600  # elements of a lane without end: no history takes more


class Keep:
    """About a part of the integers, in any order."""

    def __init__(self, part, seed):
        self.part, self.seed = part, seed

    def __call__(self, x):
        return random.Random(x * 1000 + self.seed).random() < self.part


def twice(x):
    return [x, 1000 + x][: x % 3]


def tokens(x):
    return {"x": np.full(x % 4 + 1, x)}


FITS = {"length_struct": {"x": 6}, "num_packing_bins": 2, "shuffle_bins": False}
STEPS = {
    "filter": lambda ds, seed: ds.filter(Keep(0.7, seed)),
    "flat_map": lambda ds, seed: ds.flat_map(twice),
    "random_map": lambda ds, seed: ds.random_map(
        lambda x, rng: x + 10000 * int(rng.integers(100)), seed=seed
    ),
    "window": lambda ds, seed: ds.window_shuffle(1 + seed % 7, seed=seed),
    "limit": lambda ds, seed: ds.limit(1 + seed % 30),
    "with_index": lambda ds, seed: ds.map_with_index(operator.add),
    "ahead": lambda ds, seed: ds.thread_prefetch(3),
}
LAST = {
    "alone": lambda ds: ds,
    "table": lambda ds: ds.map(lambda x: {"x": np.array([x, -x]), "y": (x / 2,)}),
    "rebatch": lambda ds: ds.batch(3).rebatch(2, drop_remainder=True),
    "first_fit": lambda ds: gx.FirstFitPackIterDataset(ds.map(tokens), **FITS),
    "best_fit": lambda ds: gx.BestFitPackIterDataset(ds.map(tokens), **FITS),
    "split": lambda ds: gx.ConcatThenSplitIterDataset(ds.map(tokens), length_struct={"x": 4}),
}


def root(rng, number):
    ds = MapDataset.range(100 * number, 100 * number + rng.randint(16, 70))
    if rng.random() < 0.5:
        ds = ds.shuffle(seed=number)
    return ds.to_iter_dataset(DIRECT)


def steps(ds, rng, num):
    for name in rng.choices([*STEPS], k=num):
        ds = STEPS[name](ds, rng.randrange(100))
    return ds


def pipeline(rng):
    kind = rng.choice(["one", "one", "mix", "interleave"])
    if kind == "one":
        ds = root(rng, 0)
    elif kind == "mix":
        parts = [steps(root(rng, i), rng, 1) for i in range(rng.randint(2, 4))]
        ds = IterDataset.mix(parts, [rng.randint(1, 3) for _ in parts])
    else:  # files, of which every lane has some
        files = [
            MapDataset.range(100 * i, 100 * i + rng.randint(1, 9)).to_iter_dataset(DIRECT)
            for i in range(20)
        ]
        ds = gx.InterleaveIterDataset(
            files, cycle_length=3, num_make_iter_threads=0, iter_buffer_size=0
        )
    return LAST[rng.choice([*LAST])](steps(ds, rng, rng.randint(0, 3)))


def plain(x):
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    if isinstance(x, tuple):
        return tuple(map(plain, x))
    return x.tolist() if isinstance(x, np.ndarray | np.generic) else x


def rows_of(batch, num):
    """The rows of a batch, as ``plain`` has elements."""
    if isinstance(batch, dict):
        columns = {key: rows_of(value, num) for key, value in batch.items()}
        return [{key: column[r] for key, column in columns.items()} for r in range(num)]
    if isinstance(batch, tuple):
        return [*zip(*[rows_of(value, num) for value in batch], strict=True)]
    assert len(batch) == num
    return batch.tolist()


class Model:
    """Lanes as lists, all of which are read at the same pace."""

    def __init__(self, ds, num_lanes, end="drop"):
        self.end, self.position = end, 0
        whole = ds.repeat() if end == "repeat" else ds
        shares = [
            iterate(slice_pipeline(whole, i, num_lanes, by_lanes=True)) for i in range(num_lanes)
        ]
        for i, it in enumerate(shares):
            it._ctx.belong_to(i, num_lanes, IteratorContext())
        self.lanes = [[plain(x) for x in itertools.islice(it, MANY)] for it in shares]

    def take(self, num, size):
        """Rows and mask of the next ``num`` steps."""
        taken = []
        pick = max if self.end == "pad" else min
        while len(taken) < num and pick(map(len, self.lanes)) - self.position >= (
            1 if self.end == "pad" else size
        ):
            step = []
            for lane in self.lanes:
                part = lane[self.position : self.position + size]
                step += [(x, True) for x in part] + [(lane[-1] if lane else 0, False)] * (
                    size - len(part)
                )
            taken.append(step)
            self.position += size
        return taken


class Agreement:
    """All hosts, each in a thread, wait for one another."""

    def __init__(self, count):
        self.numbers, self.barrier, self.num_calls = (
            [0] * count,
            threading.Barrier(count),
            [0] * count,
        )

    def of(self, host):
        def agree(num, largest=False):
            self.numbers[host] = num
            self.num_calls[host] += 1
            self.barrier.wait(30)
            agreed = max(self.numbers) if largest else min(self.numbers)
            self.barrier.wait(30)
            return agreed

        return agree


class Hosts:
    """As many hosts, whose workers run in this process."""

    def __init__(self, ds, size, num_lanes, count, num_workers=0, end="drop", every=3):
        agreement = Agreement(count)
        self.end, self.num_rows, self.num_calls = (
            end,
            size * num_lanes // count,
            agreement.num_calls,
        )
        self.its = []
        for host in range(count):
            options = {"shard_options": ShardOptions(host, count), "end": end, "agree_every": every}
            options |= {"workers": MultiprocessingOptions(num_workers)} if num_workers else {}
            options |= {"agree": agreement.of(host)} if count > 1 else {}
            batches = ds.global_batch(size * num_lanes, num_lanes=num_lanes, **options)
            if num_workers:
                batches._rows = LocalWorkersIterDataset(batches._rows.parents[0], num_workers)
            self.its.append(iter(batches))

    def take(self, num):
        with ThreadPoolExecutor(len(self.its)) as pool:
            found = [*pool.map(lambda it: [*itertools.islice(it, num)], self.its)]
        assert len({*map(len, found)}) == len({*self.num_calls}) == 1
        return [
            [row for batch in step for row in self.rows(batch)] for step in zip(*found, strict=True)
        ]

    def rows(self, batch):
        batch, mask = batch if self.end == "pad" else (batch, np.full(self.num_rows, True))
        rows = [*zip(rows_of(batch, self.num_rows), mask.tolist(), strict=True)]
        assert len(mask) == self.num_rows and mask.dtype == bool
        return rows

    def states(self):
        states = [through_json(it.get_state()) for it in self.its]
        assert max([len(json.dumps({**state, "lanes": {}})) for state in states]) < 200
        return states

    def restore(self, states):
        own = states if len(states) == len(self.its) else [merge_states(states)] * len(self.its)
        for it, state in zip(self.its, own, strict=True):
            it.set_state(state)


def draw(rng):
    """A pipeline that can be divided into lanes, their number, and how it ends."""
    while True:
        ds = pipeline(rng)
        num_lanes = rng.choice([1, 2, 4, 6, 8])
        end = rng.choice(["drop", "pad", "repeat"])
        if all(Model(ds, num_lanes).lanes) or end == "drop":
            return ds, num_lanes, end


def divisors(number, most=8):
    return [i for i in range(1, min(number, most) + 1) if not number % i]


def check_equal(rng):
    ds, num_lanes, end = draw(rng)
    size, num = rng.randint(1, 3), rng.randint(20, 60)
    expected = Model(ds, num_lanes, end).take(num, size)
    for count in divisors(num_lanes):
        for num_workers in range(min(3, 1 + num_lanes // count)):
            assert Hosts(ds, size, num_lanes, count, num_workers, end).take(num) == expected, (
                str(ds),
                count,
                num_workers,
            )


def check_history(rng):
    """Hosts are killed, and continue from any state that was saved, in other numbers."""
    ds, num_lanes, end = draw(rng)
    model, saved = Model(ds, num_lanes, end), []
    for _ in range(rng.randint(2, 5)):
        size, count = rng.randint(1, 3), rng.choice(divisors(num_lanes))
        hosts = Hosts(
            ds,
            size,
            num_lanes,
            count,
            rng.randint(0, min(3, num_lanes // count)),
            end,
            rng.randint(1, 4),
        )
        if saved:
            model.position, states = rng.choice(saved[-2:])
            hosts.restore(states)
        for num in (rng.randint(0, 4), rng.choice([1, MANY // 20])):
            assert hosts.take(num) == model.take(num, size), (str(ds), num_lanes, end)
            saved.append((model.position, hosts.states()))


@pytest.mark.parametrize(
    ("check", "seed"),
    [*[(check_equal, i) for i in range(5)], *[(check_history, i) for i in range(10)]],
)
def test_batches_are_the_same_in_all_histories(check, seed):
    check(random.Random(seed))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_many_more_pipelines_and_histories():
    for seed in range(2):
        check_equal(random.Random(f"{SEED} {seed}"))
    for seed in range(10):
        check_history(random.Random(f"{SEED} {seed}"))


def check_world(num, size, num_lanes, part):
    """All hosts take the same number of steps; nothing is lost but what the law says; padding
    delivers all once.
    """
    records = [*filter(Keep(part, num), range(num))]
    ds = MapDataset.range(num).to_iter_dataset(DIRECT)
    ds = ds if part == 1 else ds.filter(Keep(part, num))
    for end in ("drop", "pad"):
        expected = Model(ds, num_lanes, end).take(MANY, size // num_lanes)
        for count in divisors(num_lanes, 12):
            hosts = Hosts(ds, size // num_lanes, num_lanes, count, end=end)
            assert hosts.take(MANY) == expected
            assert (part < 1 < count) == bool(hosts.num_calls[0])
        assert part < 1 or len(ds.global_batch(size, num_lanes=num_lanes, end=end)) == len(expected)
        delivered = sorted([x for step in expected for x, is_one in step if is_one])
        assert delivered == records if end == "pad" else {*delivered} <= {*records}


WORLDS = [
    (n, b, k, part)
    for part in (1, 0.6)
    for b in range(1, 13)
    for k in divisors(b, 12)
    for n in range(k, 41)
]


@pytest.mark.parametrize("step", [29, pytest.param(17, marks=pytest.mark.slow)])
def test_small_worlds(step):
    for world in WORLDS[::step]:
        check_world(*world)


def test_what_never_was_is_padded_with_zeros_of_its_shape():
    records = [{"n": i, "x": np.full((2,), i, np.float32), "text": "abc"} for i in range(12)]
    ds = MapDataset.source(records).to_iter_dataset(DIRECT).filter(lambda x: x["n"] % 4 < 1)
    zero = {"n": 0, "x": [0.0, 0.0], "text": ""}
    rows = [plain(records[i]) for i in (0, 4)] + [zero] * 6
    for num_workers in (0, 1, 2, 4):
        hosts = Hosts(ds, 2, 4, 1, num_workers, "pad")
        (batch, mask), _ = iter_batches = [*hosts.its[0]]
        assert batch["x"].dtype == np.float32
        assert batch["text"].dtype.kind == "U"
        assert len(iter_batches) == 2
        assert rows_of(batch, 8) == rows and mask.tolist() == [True, True] + [False] * 6
    assert (
        plain(next(iter(ds.global_batch(4, num_lanes=4, end="pad", batch_fn=list)))[0][3]) == zero
    )
    alone = iter(
        ds.global_batch(
            8,
            num_lanes=4,
            end="pad",
            shard_options=ShardOptions(3, 4),
            agree=lambda num, largest: 2,
        )
    )
    assert_raises(
        ValueError, "no lane of shard 3 has had an element.*get_element_spec", next, alone
    )
    assert alone.get_state()["step"] == 0


def failing(at, **more):
    return (
        MapDataset.range(24)
        .to_iter_dataset(DIRECT)
        .map(Failing(at, **more))
        .filter(lambda x: x >= 0)
    )


@pytest.mark.parametrize("num_workers", [0, 2, None])
def test_errors_come_in_their_turn_and_can_be_skipped(num_workers):
    """Also where hosts look ahead, and have to agree: elements before them are delivered, and they
    count as steps.
    """
    agrees = {"shard_options": ShardOptions(0, 2), "agree": lambda num: num, "agree_every": 5}
    alone = num_workers is not None
    (it,) = (
        Hosts(failing(9), 2, 4, 1, num_workers).its
        if alone
        else [iter(failing(9).global_batch(8, num_lanes=4, **agrees))]
    )
    num_rows = 8 if alone else 4
    assert next(it).tolist() == [0, 4, 1, 5, 2, 6, 3, 7][:num_rows]
    state = it.get_state()
    for _ in range(2):
        assert_raises(Boom, "9", next, it)
        assert it.get_state() == state
    it.skip_failed()
    assert next(it).tolist() == [16, 20, 17, 21, 18, 22, 19, 23][:num_rows]
    assert next(it, None) is None


def test_hosts_are_not_asked_again_where_a_step_is_tried_again():
    calls, left = [], ["once"]

    def stacked(rows):
        if left:
            raise Boom(left.pop())
        return np.stack(rows)

    def agree(num):
        calls.append(num)
        return num

    ds = MapDataset.range(24).to_iter_dataset(DIRECT).filter(lambda x: True)
    it = iter(
        ds.global_batch(
            8, shard_options=ShardOptions(0, 2), agree=agree, agree_every=2, batch_fn=stacked
        )
    )
    assert_raises(Boom, "once", next, it)
    assert len([*it]) == 3 and calls == [2, 1]
    it.set_state(it.get_state())  # where other hosts may begin, too


def test_what_fails_once_is_tried_again():
    for every in (1, 2, 5):
        options = {
            "shard_options": ShardOptions(0, 2),
            "agree": lambda num: num,
            "agree_every": every,
        }
        it, found = iter(failing(9, times=1).global_batch(8, num_lanes=4, **options)), []
        while len(found) < 3:
            try:
                found.append(next(it).tolist())
            except Boom:
                assert len(found) == 1
        assert found == [[0, 4, 1, 5], [8, 12, 9, 13], [16, 20, 17, 21]] and next(it, None) is None
    ds = MapDataset.range(16).map(lambda x: None if x == 6 else x).to_iter_dataset(DIRECT)
    for end in ("drop", "pad"):
        it = iter(ds.global_batch(4, end=end))
        assert len([*itertools.islice(it, 3)]) == 3
        assert_raises(
            ValueError,
            r"lane 2 of .* ends after 3 elements.* says 4: MapMapDataset\(.*lambda.* gives None",
            next,
            it,
        )


WRONG = {
    r"num_lanes must divide batch_size, 12, got 5: .* 1, 2, 3, 4, 6, 12": {"num_lanes": 5},
    r"must divide num_lanes, 4, got 3: .*one of 1, 2, 4 hosts, .*num_lanes=3 or 6 or 12": {
        "shard_options": ShardOptions(0, 3)
    },
    "end must be 'drop', 'pad' or 'repeat', got 'stop'": {"end": "stop"},
    "num_workers in workers must be at most 4, the number of lanes of a host, got 5": {
        "workers": MultiprocessingOptions(5)
    },
    "workers must have num_lanes=None": {"workers": MultiprocessingOptions(2, num_lanes=2)},
    "shard_options must be a ShardOptions": {"shard_options": 2},
    "workers must be a MultiprocessingOptions": {"workers": 2},
    "agree must be callable": {"agree": 2},
    "batch_fn must be callable": {"batch_fn": 2},
}


def test_arguments():
    ds, two = MapDataset.range(24).to_iter_dataset(DIRECT), {"shard_options": ShardOptions(0, 2)}
    for match, options in WRONG.items():
        assert_raises((TypeError, ValueError), match, ds.global_batch, 12, **options)
    filtered, workers = ds.filter(bool), MultiprocessingOptions(2)
    with pytest.raises(
        ValueError, match=r"RangeMapDataset.* of 24 elements has nothing for the last lane"
    ):
        ds.global_batch(32)
    with pytest.raises(ValueError, match=r"agree must be given .*FilterIterDataset"):
        filtered.global_batch(4, **two)
    with pytest.raises(ValueError, match="give workers=MultiprocessingOptions"):
        ds.mp_prefetch(workers).global_batch(4)
    with pytest.raises(ValueError, match="cannot be shared out among 2 workers"):
        ds.global_batch(4).mp_prefetch(workers)
    in_order = partial(
        ds.global_batch(4, num_lanes=2).map(len).mp_prefetch, workers, order="stream"
    )
    assert_raises(
        ValueError, "StreamOrderIterDataset.* cannot be shared out among 2 workers", in_order
    )
    for call in (partial(global_batch, [1], 4), partial(dataset_length, [1])):
        assert_raises(TypeError, "ds must be a MapDataset, IterDataset or DataLoader", call)
    for end, agreed in (("drop", 3), ("pad", 1), ("pad", 3), ("drop", 1.5)):
        it = iter(
            filtered.global_batch(
                4, end=end, agree=lambda num, agreed=agreed, **_: agreed, agree_every=2, **two
            )
        )
        with pytest.raises(
            (ValueError, TypeError),
            match=r"agree must return the .*est of the numbers|number that agree returns",
        ):
            next(it)
    assert agree_jax(3) == agree_jax(3, largest=True) == 3
    if importlib.util.find_spec("torch") is None:
        assert_raises(ImportError, "agree_torch needs PyTorch", agree_torch, 3)
    else:
        assert agree_torch(3) == agree_torch(3, largest=True) == 3


def test_hosts_agree_where_those_before_would_have():
    ds = MapDataset.range(40).to_iter_dataset(DIRECT).filter(bool)  # 9 steps
    before, after = [Hosts(ds, 1, 4, count, every=4) for count in (4, 2)]
    before.take(2)
    after.restore(before.states())
    assert (
        after.states()[0]["horizon"] == 4 and len(after.take(2)) == 2 and after.num_calls == [0, 0]
    )
    assert len(after.take(9)) == 5 and len(after.take(1)) == 0 and after.num_calls == [2, 2]
    for count in (1, 2):  # what is left at the end comes in smaller batches
        before, after, model = Hosts(ds, 4, 4, count), Hosts(ds, 1, 4, 1), Model(ds, 4)
        assert before.take(9) == model.take(9, 4)
        after.restore(before.states())
        assert after.take(9) == model.take(9, 1) and model.position == 9
    ds = MapDataset.range(24).to_iter_dataset(DIRECT)
    assert [len(ds.global_batch(8)), len(ds.global_batch(9, end="pad"))] == [3, 3]
    assert (
        dataset_length(ds.global_batch(4, end="repeat"))
        == dataset_length(ds.repeat().global_batch(4))
        == Infinite()
    )
    others = ds.filter(bool).global_batch(8), ds.batch(2).rebatch(3).global_batch(2, end="pad")
    assert [*map(dataset_length, others)] == [AtMost(3), Unknown()]


def test_states_that_do_not_fit_are_refused():
    ds = MapDataset.range(24).to_iter_dataset(DIRECT)
    hosts = [
        iter(ds.global_batch(8, num_lanes=4, shard_options=ShardOptions(host, 2)))
        for host in range(2)
    ]
    states = [it.get_state() for it in hosts]
    with pytest.raises(StateKeyError, match=r"must have the lanes \[2, 3\].*merge_states"):
        hosts[1].set_state(states[0])
    with pytest.raises(StateMismatchError, match=r"num_lanes=4, .* has 2"):
        iter(ds.global_batch(8, num_lanes=2)).set_state(states[0])
    next(hosts[1])
    with pytest.raises(StateMismatchError, match="after the same step"):
        merge_states([states[0], hosts[1].get_state()])
    with pytest.raises(StateMismatchError, match=r"lanes 0 to 3 together, got \[0, 1\]"):
        merge_states(states[:1])
    assert_raises(StateMismatchError, "at least one mapping, got", merge_states, [])
    merged = merge_states([{"parent": state, "index": 3} for state in states])
    assert merged == {"parent": merge_states(states[::-1]), "index": 3}


def test_checkpoints_continue_in_another_number_of_processes(tmp_path):
    ds = (
        MapDataset.range(200)
        .shuffle(seed=1)
        .to_iter_dataset(DIRECT)
        .filter(Keep(0.7, 0))
        .window_shuffle(5, seed=2)
    )
    model = Model(ds, 4)
    for turn, (count, size) in enumerate([(4, 2), (2, 3), (1, 1), (4, 2)]):
        hosts = Hosts(ds, size, 4, count)
        for it in hosts.its if turn else ():
            # finds no file of its own, or that of the only host
            HANDLER.restore(tmp_path / str(turn - 1), it)
        assert hosts.take(3) == model.take(3, size)
        directory = tmp_path / str(turn)
        directory.mkdir()
        for host, it in enumerate(hosts.its):
            HANDLER.save(directory, it)
            for file in directory.glob("*_0-of-1.json"):
                file.rename(file.with_name(file.name.replace("0-of-1", f"{host}-of-{count}")))
    for other, num_lanes, match in (
        (ds.map(twice), 4, "another pipeline"),
        (ds, 2, "num_lanes of GlobalBatch"),
    ):
        it = iter(other.global_batch(4, num_lanes=num_lanes))
        assert_raises(StateMismatchError, match, HANDLER.restore, tmp_path / "0", it)


def test_processes_compute_lanes():
    ds = MapDataset.range(50).map(lambda x: {"x": np.full(2000, x), "y": x}).to_iter_dataset(DIRECT)
    ds = ds.filter(lambda x: x["y"] % 7 != 3).window_shuffle(3, seed=1)
    for end, options in (("pad", {}), ("drop", {"batch_fn": list})):
        alone = [*map(repr, ds.global_batch(6, num_lanes=6, end=end, **options))]
        with iter(
            ds.global_batch(6, num_lanes=6, end=end, workers=MultiprocessingOptions(2), **options)
        ) as it:
            found = [repr(next(it)) for _ in range(3)]
            state = through_json(it.get_state())
            assert [*found, *map(repr, it)] == alone
            it.set_state(state)  # with histories, states of workers restore elsewhere
            assert repr(next(it)) == alone[3]


def test_a_record_that_kills_a_worker_is_named_and_skipped():
    ds = (
        MapDataset.range(24)
        .map(lambda x: os.kill(os.getpid(), 9) if x == 9 else x)
        .to_iter_dataset(DIRECT)
    )
    workers = MultiprocessingOptions(2, executor="processes")
    with iter(ds.global_batch(8, num_lanes=4, workers=workers)) as it:
        assert next(it).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
        with pytest.raises(
            RuntimeError, match=r"Worker process 0 of 2 .* at element 2 of its input 1.*skip_failed"
        ):
            next(it)
        it.skip_failed()
        assert [x.tolist() for x in it] == [[16, 20, 17, 21, 18, 22, 19, 23]]


WHERE = operation(Map, "map", lambda x: (x, os.environ.get("WHO", "")))


def test_a_data_loader_before_its_workers():
    sampler = IndexSampler(num_records=32, shuffle=True, num_epochs=1, seed=3)
    make = partial(DataLoader, data_source=range(32), operations=[WHERE])
    alone = make(sampler=sampler)
    expected = [*alone]
    batches = [*global_batch(alone, 8, num_lanes=8)]
    assert np.concatenate([x for x, _ in batches]).tolist() == [x for x, _ in expected]
    workers = MultiprocessingOptions(2, num_lanes=4, executor="processes")
    with_workers = make(
        sampler=sampler,
        workers=workers,
        worker_init_fn=lambda *who: os.environ.update(WHO=str(who)),
    )
    batch, places = next(iter(with_workers.global_batch(8)))
    assert batch.tolist() == [expected[i][0] for i in (0, 4, 1, 5, 2, 6, 3, 7)]
    assert places.tolist() == ["(0, 2)"] * 4 + ["(1, 2)"] * 4
    sharded = IndexSampler(num_records=32, num_epochs=1, seed=3, shard_options=ShardOptions(0, 2))
    assert_raises(ValueError, "loader that is not sharded", make(sampler=sharded).global_batch, 8)
