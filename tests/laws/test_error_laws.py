"""Laws of failing user code: no error loses, repeats or reorders an element, whatever stage, read-ahead or batch it meets."""

import itertools
import threading

import numpy as np
import pytest
from entry import DIRECT, THREADED, stream
from local_workers import LocalWorkersIterDataset

from gristmill.core.options import MultiprocessingOptions, ReadOptions
from gristmill.core.permutation import index_shuffle
from gristmill.dataset import IterDataset, MapDataset
from gristmill.dataset.stages.bin_packing import FirstFitPackIterDataset
from gristmill.dataset.stages.concat_then_split import ConcatThenSplitIterDataset
from gristmill.dataset.stages.interleave import InterleaveIterDataset
from gristmill.dataset.stages.thread_prefetch import ThreadPrefetchIterDataset
from gristmill.loader.records import LegacyOperationIterDataset

N = 12


class Boom(Exception):
    pass


class Bombs:
    """User code that fails at the given elements: always, or the first ``times`` times."""

    def __init__(self, elements=(), times=None, error=Boom):
        self.args = elements, times, error
        self.left = dict.fromkeys(elements, float("inf") if times is None else times)
        self.error = error
        self.lock = threading.Lock()

    def __reduce__(self):
        return Bombs, self.args

    def check(self, x):
        with self.lock:
            if self.left.get(x, 0) > 0:
                self.left[x] -= 1
                raise self.error(x)


class Source:
    def __init__(self, bombs):
        self.bombs = bombs

    def __len__(self):
        return N

    def __getitem__(self, key):
        self.bombs.check(key)
        return key


class VectoredSource(Source):
    def __getitems__(self, keys):
        return [self[key] for key in keys]


class LengthAndItem(MapDataset):
    """A user's own data set."""

    def __init__(self, bombs):
        super().__init__()
        self.bombs = bombs

    def __len__(self):
        return N

    def __getitem__(self, index):
        self.bombs.check(index)
        return index


def checked(bombs):
    return lambda x: (bombs.check(x), x)[1]


def odd(bombs):
    return lambda x: (bombs.check(x), x % 2 == 1)[1]


def operation(bombs):
    def generate(records):
        for x in records:
            bombs.check(x)
            yield x

    return generate


def plain_range(options):
    return MapDataset.range(N).to_iter_dataset(options)


# name: the stage with user code, as a stream of the integers below N (the odd ones after a filter)
STAGES = {
    "source": lambda b, o: MapDataset.source(Source(b)).to_iter_dataset(o),
    "source_vectored": lambda b, o: MapDataset.source(VectoredSource(b)).to_iter_dataset(o),
    "user_dataset": lambda b, o: LengthAndItem(b).to_iter_dataset(o),
    "map": lambda b, o: MapDataset.range(N).map(checked(b)).to_iter_dataset(o),
    "map_with_index": lambda b, o: MapDataset.range(N).map_with_index(lambda i, x: checked(b)(x)).to_iter_dataset(o),
    "random_map": lambda b, o: MapDataset.range(N).random_map(lambda x, r: checked(b)(x), seed=1).to_iter_dataset(o),
    "filter": lambda b, o: MapDataset.range(N).filter(odd(b)).to_iter_dataset(o),
    "batch_fn": lambda b, o: MapDataset.range(N).batch(1, batch_fn=lambda xs: checked(b)(xs[0])).to_iter_dataset(o),
    "iter_map": lambda b, o: plain_range(o).map(checked(b)),
    "iter_map_with_index": lambda b, o: plain_range(o).map_with_index(lambda i, x: checked(b)(x)),
    "iter_random_map": lambda b, o: plain_range(o).random_map(lambda x, rng: checked(b)(x), seed=1),
    "iter_filter": lambda b, o: plain_range(o).filter(odd(b)),
    "iter_batch_fn": lambda b, o: plain_range(o).batch(1, batch_fn=lambda xs: checked(b)(xs[0])),
    "legacy_operation": lambda b, o: LegacyOperationIterDataset(plain_range(o), operation(b)),
    "zip": lambda b, o: MapDataset.range(N).zip(MapDataset.range(N).map(checked(b))).map(lambda row: row[1]).to_iter_dataset(o),
    "iter_zip_second": lambda b, o: plain_range(o).zip(plain_range(o).map(checked(b))).map(lambda row: row[1]),
    "flat_map": lambda b, o: MapDataset.range(N).flat_map(lambda x: [checked(b)(x)], max_fan_out=1).to_iter_dataset(o),
    "iter_flat_map": lambda b, o: plain_range(o).flat_map(lambda x: [checked(b)(x)]),
    "iter_make_dataset": lambda b, o: MapDataset.range(N).interleave(
        lambda x: (b.check(x), MapDataset.source([x]).to_iter_dataset(o))[1], cycle_length=3
    ),
    "iter_window_shuffle": lambda b, o: plain_range(o).map(checked(b)).window_shuffle(1, seed=0),
}

# name: what stands after it, and what becomes of a list of outcomes (an element or ``FAILED``)
FAILED = object()


def alone(outcomes):
    return outcomes


def grouped(size):
    def group(outcomes):
        groups = [outcomes[i : i + size] for i in range(0, len(outcomes), size)]
        return [FAILED if FAILED in group else group for group in groups]

    return group


def joined(size):
    def join(outcomes):
        """A row that fails takes those along with which it would have been joined."""
        groups, group = [], []
        for x in outcomes:
            group.append(x)
            if x is FAILED or len(group) == size:
                groups.append(FAILED if x is FAILED else group)
                group = []
        return [*groups, group] if group else groups

    return join


def drawn(outcomes):
    return [FAILED if x is FAILED else (x, int(stream(4, i).integers(10**6))) for i, x in enumerate(outcomes)]


def numbered(outcomes):
    return [FAILED if x is FAILED else (i, x) for i, x in enumerate(outcomes)]


def doubled(outcomes):
    return [y for x in outcomes for y in ([FAILED] if x is FAILED else [x, x])]


def window_shuffled(outcomes):
    delivered = []
    for k, group in enumerate([outcomes[i : i + 4] for i in range(0, len(outcomes), 4)]):
        order = [index_shuffle(i, len(group) - 1, 7 + k, 4) for i in range(len(group))]
        delivered += [FAILED] if FAILED in group else [group[i] for i in reversed(order)]
    return delivered


def packed(size):
    def pack(outcomes):
        """A row is complete when something comes that does not fit; what fails meanwhile comes before it."""
        rows, row = [], []
        for x in outcomes:
            if x is not FAILED and len(row) == size:
                rows.append(row)
                row = []
            (rows if x is FAILED else row).append(x)
        return [*rows, row] if row else rows

    return pack


def tokens(ds, num):
    """Every element as a sequence of ``num`` equal tokens."""
    return ds.map(lambda x: {"x": np.full(num, x)})


def first_fit(ds):
    rows = FirstFitPackIterDataset(tokens(ds, 2), length_struct={"x": 6}, num_packing_bins=1)
    return rows.map(lambda row: row["x"][row["x_segment_ids"] > 0][::2].tolist())


def concat_then_split(ds):
    rows = ConcatThenSplitIterDataset(tokens(ds, 3), length_struct={"x": 2})
    return rows.map(lambda row: row["x"][row["x_segment_ids"] > 0].tolist())


def ds_of_letters():
    return MapDataset.source(["letter"]).repeat().to_iter_dataset(DIRECT)


def lettered(outcomes):
    return [x for outcome in outcomes for x in (outcome, "letter")]


AFTER = {
    "alone": (lambda ds: ds, alone),
    "map": (lambda ds: ds.map(lambda x: x), alone),
    "filter": (lambda ds: ds.filter(lambda x: True), alone),
    "map_with_index": (lambda ds: ds.map_with_index(lambda i, x: (i, x)), numbered),
    "random_map": (lambda ds: ds.random_map(lambda x, rng: (x, int(rng.integers(10**6))), seed=4), drawn),
    "batch": (lambda ds: ds.batch(4, batch_fn=list), grouped(4)),
    "index_batch": (
        lambda ds: ds.map_with_index(lambda i, x: (i, x)).batch(5, batch_fn=list),
        lambda outcomes: grouped(5)(numbered(outcomes)),
    ),
    "thread_prefetch": (lambda ds: ThreadPrefetchIterDataset(ds, prefetch_buffer_size=3), alone),
    "thread_prefetch_batch": (
        lambda ds: ThreadPrefetchIterDataset(ds, prefetch_buffer_size=3).batch(4, batch_fn=list),
        grouped(4),
    ),
    "batch_thread_prefetch": (
        lambda ds: ThreadPrefetchIterDataset(ds.batch(5, batch_fn=list), prefetch_buffer_size=1),
        grouped(5),
    ),
    "zip": (lambda ds: plain_range(DIRECT).zip(ds, strict=False), numbered),
    "flat_map": (lambda ds: ds.flat_map(lambda x: [x, x]), doubled),
    "window_shuffle": (lambda ds: ds.window_shuffle(4, seed=7), window_shuffled),
    "batch_batch": (
        lambda ds: ds.batch(2, batch_fn=list).batch(2, batch_fn=list),
        lambda outcomes: grouped(2)(grouped(2)(outcomes)),
    ),
    "first_fit": (first_fit, packed(3)),
    "first_fit_thread_prefetch": (lambda ds: ThreadPrefetchIterDataset(first_fit(ds), prefetch_buffer_size=2), packed(3)),
    "concat_then_split": (
        concat_then_split,
        lambda outcomes: packed(2)([x for x in outcomes for _ in range(1 if x is FAILED else 3)]),
    ),
    "mix": (lambda ds: IterDataset.mix([ds, ds_of_letters()]), lettered),
    "interleave": (lambda ds: InterleaveIterDataset([ds], cycle_length=2), alone),
    "interleave_two": (
        lambda ds: InterleaveIterDataset([ds_of_letters().limit(2), ds], cycle_length=2, iter_buffer_size=0),
        lambda outcomes: [x for pair in zip(["letter"] * 2, outcomes, strict=False) for x in pair] + outcomes[2:],
    ),
    "limit": (lambda ds: ds.limit(7), lambda outcomes: outcomes[:7]),
    "repeat": (lambda ds: ds.repeat(2), lambda outcomes: outcomes * 2),
    "cache": (lambda ds: ds.cache(), alone),
    "cache_repeat": (
        lambda ds: ds.cache().repeat(2),  # what was skipped is not in the cache
        lambda outcomes: [*outcomes, *[x for x in outcomes if x is not FAILED]],
    ),
    "rebatch": (
        lambda ds: ds.batch(1).rebatch(3).map(lambda rows: rows.tolist()),
        joined(3),
    ),
}
MODES = {"direct": DIRECT, "threaded": THREADED, "far_ahead": ReadOptions(1, 64)}

each_stage = pytest.mark.parametrize("stage", STAGES)
each_mode = pytest.mark.parametrize("mode", MODES)
MODES_AND_WORKER = (*MODES, "worker")  # a single worker: all is as without one


def outcomes(stage, after, bad):
    """What the pipeline delivers, output by output."""
    single = [FAILED if x in bad else x for x in range(N) if "filter" not in stage or x % 2 or x in bad]
    return AFTER[after][1](single)


# What stands after a stage sees its outputs and errors alone: some stages meet everything, the others a few typical ones.
THOROUGH = ("source", "map", "iter_map", "iter_filter", "legacy_operation")
TYPICAL = ("alone", "batch", "batch_thread_prefetch", "mix", "interleave", "cache_repeat")


def combinations(stage, *choices):
    """All that may stand behind ``stage`` with all that may fail, and of ``choices`` one in turn, so that any two meet."""
    afters = AFTER if stage in THOROUGH else TYPICAL
    for i, (after, bad) in enumerate(itertools.product(afters, BAD), start=list(STAGES).index(stage)):
        turn = i + i // len(BAD)
        yield after, bad, *[options[(turn + turn // len(options) * k) % len(options)] for k, options in enumerate(choices)]


def build(stage, after, mode, bombs):
    ds = AFTER[after][0](STAGES[stage](bombs, MODES.get(mode, DIRECT)))
    return LocalWorkersIterDataset(ds) if mode == "worker" else ds


BAD = [{0}, {5}, {3, 4}, {1, 6, 7, N - 1}, set(range(N))]


@each_stage
def test_permanent_failures_can_be_skipped_and_nothing_else_is_lost(stage):
    for after, bad, mode in combinations(stage, MODES_AND_WORKER):
        it = iter(build(stage, after, mode, Bombs(bad)))
        for output in outcomes(stage, after, bad):
            if output is not FAILED:
                assert next(it) == output
                with pytest.raises(ValueError, match="nothing to skip"):
                    it.skip_failed()
                continue
            with pytest.raises(Boom) as first:
                next(it)
            state = it.get_state()
            with pytest.raises(Boom) as second:
                next(it)
            assert first.value.args == second.value.args
            assert it.get_state() == state
            it.skip_failed()
            with pytest.raises(ValueError, match="nothing to skip"):
                it.skip_failed()
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(it)


@pytest.mark.parametrize("after", TYPICAL)
def test_a_worker_process_skips_what_fails(after):
    it = iter(build("iter_map", after, "direct", Bombs({0, 5})).mp_prefetch(MultiprocessingOptions(num_workers=1)))
    for output in outcomes("iter_map", after, {0, 5}):
        if output is FAILED:
            with pytest.raises(Boom):
                next(it)
            it.skip_failed()
        else:
            assert next(it) == output
    assert list(it) == []
    it.close()


@each_stage
def test_state_after_an_error_is_that_after_the_last_element(stage):
    for after, bad, mode in combinations(stage, MODES_AND_WORKER):
        healthy = outcomes(stage, after, set())
        it = iter(build(stage, after, mode, Bombs(bad)))
        delivered = []
        with pytest.raises(Boom):
            while True:
                delivered.append(next(it))
        expected = outcomes(stage, after, bad)
        assert delivered == expected[: expected.index(FAILED)]
        if "filter" in stage:  # failing elements that would be rejected have no counterpart in the healthy stream
            expected = [x for x in healthy if x not in delivered] if after in ("alone", "map", "filter") else None
        else:
            expected = healthy[len(delivered) :]
        fresh = iter(build(stage, after, mode, Bombs()))
        fresh.set_state(it.get_state())
        rest = list(fresh)
        assert expected is None or rest == expected


@each_stage
def test_transient_failures_heal(stage):
    # A filter may have got further; an interleave opens datasets for its state.
    keeps_state = "filter" not in stage and stage != "iter_make_dataset"
    kinds = [(1, Boom), (3, Boom), (2, KeyboardInterrupt), (2, StopIteration)]
    for after, bad, mode, (times, error) in combinations(stage, list(MODES), kinds):
        it = iter(build(stage, after, mode, Bombs(bad, times, error)))
        delivered = []
        for _ in range(200):
            before = it.get_state() if keeps_state else None
            try:
                delivered.append(next(it))
            except StopIteration:
                break
            except (Boom, KeyboardInterrupt):
                assert error is not StopIteration
            except RuntimeError as caught:
                assert error is StopIteration and isinstance(caught.__cause__, StopIteration)
            else:
                continue
            if keeps_state:
                assert it.get_state() == before
        assert delivered == outcomes(stage, after, set())


@each_stage
def test_stop_iteration_in_user_code_ends_nothing(stage):
    for after, mode in zip(AFTER, itertools.cycle(MODES_AND_WORKER), strict=False):
        it = iter(build(stage, after, mode, Bombs({6}, error=StopIteration)))
        seen = []
        for output in outcomes(stage, after, {6}):
            if output is FAILED:
                for _ in range(2):
                    with pytest.raises(RuntimeError, match="StopIteration") as caught:
                        next(it)
                    assert isinstance(caught.value.__cause__, StopIteration)
                it.skip_failed()
            else:
                seen.append(next(it))
        assert list(it) == []
        assert seen == [x for x in outcomes(stage, after, {6}) if x is not FAILED]


@pytest.mark.parametrize("stage", [name for name in STAGES if "iter" not in name and name != "legacy_operation"])
def test_random_access_reports_errors_and_goes_on(stage):
    for error, expected in ((Boom, Boom), (StopIteration, RuntimeError)):
        ds = STAGES[stage](Bombs({5}, error=error), DIRECT).parents[0]
        if stage == "user_dataset":
            ds = ds.map(lambda x: x)
        for _ in range(2):
            with pytest.raises(expected):
                ds[5]
        assert ds[7] == 7


@each_mode
@pytest.mark.parametrize("size", [1, 2, 5, 6, 12, 50])
def test_the_first_error_of_a_block_is_that_of_the_first_element(mode, size):
    """Two steps fail at different elements: the step that comes first in the pipeline must not win."""

    def early(x):
        if x in (7, 9):
            raise KeyError(x)
        return x

    def late(x):
        if x in (5, 9):
            raise OSError(x)
        return x

    map_ds = MapDataset.range(N).map(early).map(late)
    iter_ds = plain_range(MODES[mode]).map(early).map(late)
    across = MapDataset.range(N).map(early).to_iter_dataset(MODES[mode]).map(late)
    pipelines = [
        map_ds.to_iter_dataset(MODES[mode]).batch(size, batch_fn=list),
        map_ds.batch(size, batch_fn=list).to_iter_dataset(MODES[mode]),
        iter_ds.batch(size, batch_fn=list),
        across.batch(size, batch_fn=list),
    ]
    errors = {5: OSError(5), 7: KeyError(7), 9: KeyError(9)}
    for ds in pipelines:
        it = iter(ds)
        for start in range(0, N, size):
            members = range(start, min(start + size, N))
            first_bad = next((x for x in members if x in errors), None)
            if first_bad is None:
                assert next(it) == list(members)
                continue
            with pytest.raises(type(errors[first_bad])) as caught:
                next(it)
            assert caught.value.args == (first_bad,)
            it.skip_failed()
        assert list(it) == []


def test_a_failed_skip_changes_nothing():
    from gristmill.dataset import DatasetIterator, IterDataset

    class Stubborn(DatasetIterator):
        """A user's iterator that fails at 5 and does not know how to skip."""

        def __init__(self):
            super().__init__()
            self.position = 0

        def __next__(self):
            if self.position == 5:
                raise Boom(5)
            self.position += 1
            return self.position - 1

        def get_state(self):
            return {"position": self.position}

        def set_state(self, state):
            self.position = state["position"]

    class Ds(IterDataset):
        def __iter__(self):
            return Stubborn()

    it = iter(Ds().batch(3, batch_fn=list))
    assert next(it) == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(Boom):
            next(it)
        with pytest.raises(NotImplementedError):
            it.skip_failed()
        assert it.get_state() == {"position": 3}


def test_nothing_to_skip_after_set_state_and_at_the_beginning():
    it = iter(build("map", "batch", "threaded", Bombs({1})))
    with pytest.raises(ValueError, match="nothing to skip"):
        it.skip_failed()
    with pytest.raises(Boom):
        next(it)
    it.set_state(it.get_state())
    with pytest.raises(ValueError, match="nothing to skip"):
        it.skip_failed()
