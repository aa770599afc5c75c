"""Laws of failing user code: no error loses, repeats or reorders an element, for every stage,
read-ahead or batch.
"""

import itertools

import numpy as np
import pytest
from computing_ahead import Boom, Failing
from entry import DIRECT, THREADED
from local_workers import LocalWorkersIterDataset
from new_seed import SEED
from refusing import assert_raises
from users_datasets import BareIterator, Given

from gristmill.core.errors import SourceEnded
from gristmill.core.options import ReadOptions
from gristmill.dataset import IterDataset, MapDataset
from gristmill.dataset.stages.bin_packing import FirstFitPackIterDataset
from gristmill.dataset.stages.concat_then_split import ConcatThenSplitIterDataset
from gristmill.dataset.stages.interleave import InterleaveIterDataset
from gristmill.dataset.stages.thread_prefetch import ThreadPrefetchIterDataset
from gristmill.loader.records import LegacyOperationIterDataset

N = 12


class Bombs(Failing):
    """User code that fails at the given elements: always, or the first ``times`` times."""

    def __init__(self, elements=(), times=10**9, error=Boom):
        super().__init__(*elements, times=times, error=error)
        self.args = elements, times, error

    def __reduce__(self):
        return Bombs, self.args

    def is_odd(self, x):
        return self(x) % 2 == 1

    def operation(self, records):
        for x in records:
            yield self(x)


class Source:
    def __init__(self, bombs):
        self.bombs = bombs

    def __len__(self):
        return N

    def __getitem__(self, key):
        return self.bombs(key)


class VectoredSource(Source):
    def __getitems__(self, keys):
        return [self[key] for key in keys]


class UserDataset(Source, MapDataset):
    """A user's own data set, which does not call ``super().__init__``."""


def streamed(make):
    """The stage of a map dataset of the integers below N, as a stream."""
    return lambda b, o: make(MapDataset.range(N), b).to_iter_dataset(o)


def following(make):
    """The stage over a stream of the integers below N."""
    return lambda b, o: make(plain_range(o), b)


def plain_range(options):
    return MapDataset.range(N).to_iter_dataset(options)


def second(row):
    return row[1]


# name: the stage with user code, as a stream of the integers below N (the odd ones after a filter)
STAGES = {
    "source": lambda b, o: MapDataset.source(Source(b)).to_iter_dataset(o),
    "source_vectored": lambda b, o: MapDataset.source(VectoredSource(b)).to_iter_dataset(o),
    "user_dataset": lambda b, o: UserDataset(b).to_iter_dataset(o),
    "map": streamed(lambda ds, b: ds.map(b)),
    "map_with_index": streamed(lambda ds, b: ds.map_with_index(lambda i, x: b(x))),
    "random_map": streamed(lambda ds, b: ds.random_map(lambda x, rng: b(x), seed=1)),
    "filter": streamed(lambda ds, b: ds.filter(b.is_odd)),
    "batch_fn": streamed(lambda ds, b: ds.batch(1, batch_fn=lambda xs: b(xs[0]))),
    "iter_map": following(lambda ds, b: ds.map(b)),
    "iter_map_with_index": following(lambda ds, b: ds.map_with_index(lambda i, x: b(x))),
    "iter_random_map": following(lambda ds, b: ds.random_map(lambda x, rng: b(x), seed=1)),
    "iter_filter": following(lambda ds, b: ds.filter(b.is_odd)),
    "iter_batch_fn": following(lambda ds, b: ds.batch(1, batch_fn=lambda xs: b(xs[0]))),
    "legacy_operation": following(lambda ds, b: LegacyOperationIterDataset(ds, b.operation)),
    "zip": streamed(lambda ds, b: ds.zip(ds.map(b)).map(second)),
    "iter_zip_second": following(lambda ds, b: ds.zip(ds.map(b)).map(second)),
    "flat_map": streamed(lambda ds, b: ds.flat_map(lambda x: [b(x)], max_fan_out=1)),
    "iter_flat_map": following(lambda ds, b: ds.flat_map(lambda x: [b(x)])),
    "iter_make_dataset": (
        lambda b, o: MapDataset.range(N).interleave(
            lambda x: MapDataset.source([b(x)]).to_iter_dataset(o), cycle_length=3
        )
    ),
    "iter_window_shuffle": following(lambda ds, b: ds.map(b).window_shuffle(1, seed=0)),
}
each_stage = pytest.mark.parametrize("stage", STAGES)
each_part = pytest.mark.parametrize(
    "part", [0, pytest.param(1 + SEED % 3, marks=pytest.mark.slow, id="another")]
)

# A downstream stage, and its effect on a list of outcomes: elements, or ``FAILED``
FAILED = object()


def alone(outcomes):
    return outcomes


def grouped(size):
    def group(outcomes):
        groups = [outcomes[i : i + size] for i in range(0, len(outcomes), size)]
        return [FAILED if FAILED in group else group for group in groups]

    return group


def packed(size, num=1):
    def pack(outcomes):
        """A row is complete when something comes that does not fit; what fails meanwhile comes
        before it.
        """
        rows, row = [], []
        for x in [y for y in outcomes for _ in range(1 if y is FAILED else num)]:
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


def letters():
    return MapDataset.source(["letter"]).repeat().to_iter_dataset(DIRECT)


def batch(ds, size):
    return ds.batch(size, batch_fn=list)


def ahead(ds, size):
    return ThreadPrefetchIterDataset(ds, prefetch_buffer_size=size)


# Random trees of all stages with failing code are among the properties; here are typical ones, and
# those that pack.
AFTER = {
    "alone": (lambda ds: ds, alone),
    "batch": (lambda ds: batch(ds, 4), grouped(4)),
    "thread_prefetch_batch": (lambda ds: batch(ahead(ds, 3), 4), grouped(4)),
    "batch_thread_prefetch": (lambda ds: ahead(batch(ds, 5), 1), grouped(5)),
    "zip": (lambda ds: plain_range(DIRECT).zip(ds, strict=False).map(second), alone),
    "first_fit": (first_fit, packed(3)),
    "first_fit_thread_prefetch": (lambda ds: ahead(first_fit(ds), 2), packed(3)),
    "concat_then_split": (concat_then_split, packed(2, 3)),
    "mix": (
        lambda ds: IterDataset.mix([ds, letters()]),
        lambda outcomes: [y for x in outcomes for y in (x, "letter")],
    ),
    "interleave": (lambda ds: InterleaveIterDataset([ds], cycle_length=2), alone),
    "cache_repeat": (
        lambda ds: ds.cache().repeat(2),  # what was skipped is not in the cache
        lambda outcomes: [*outcomes, *[x for x in outcomes if x is not FAILED]],
    ),
}
MODES = {"direct": DIRECT, "threaded": THREADED, "far_ahead": ReadOptions(1, 64)}
MODES_AND_WORKER = (*MODES, "worker")  # a single worker: all is as without one
BAD = [{0}, {5}, {3, 4}, {1, 6, 7, N - 1}, set(range(N))]

# A downstream stage sees the outputs and errors alone: some stages meet everything, the others a
# few typical ones.
THOROUGH = ("source", "map", "iter_map", "iter_filter", "legacy_operation")
TYPICAL = ("alone", "batch", "batch_thread_prefetch", "mix", "interleave", "cache_repeat")


def combinations(stage, part, *choices):
    """A fourth of all stages downstream of ``stage`` and of all that may fail, each with one
    combination of ``choices``.
    """
    afters = AFTER if stage in THOROUGH else TYPICAL
    turns = itertools.cycle(itertools.product(*choices))
    for _ in range(list(STAGES).index(stage)):
        next(turns)
    for number, ((after, bad), choice) in enumerate(
        zip(itertools.product(afters, BAD), turns, strict=False)
    ):
        if number % 4 == part:
            yield after, bad, *choice
        if bad is BAD[-1]:  # so that any two choices meet
            next(turns)


def outcomes(stage, after, bad):
    """The outcomes of the pipeline, output by output."""
    single = [
        FAILED if x in bad else x for x in range(N) if "filter" not in stage or x % 2 or x in bad
    ]
    return AFTER[after][1](single)


def errors_of(stage):
    """The errors that may be raised: a ``StopIteration`` of a source is its end."""
    return (
        (Boom,) if stage in ("source", "source_vectored", "user_dataset") else (Boom, StopIteration)
    )


def build(stage, after, mode, bombs):
    ds = AFTER[after][0](STAGES[stage](bombs, MODES.get(mode, DIRECT)))
    return LocalWorkersIterDataset(ds) if mode == "worker" else ds


def check_nothing_to_skip(it):
    assert_raises(ValueError, "nothing to skip", it.skip_failed)


@each_part
@each_stage
def test_permanent_failures_can_be_skipped(stage, part):
    for after, bad, mode, error in combinations(stage, part, MODES_AND_WORKER, errors_of(stage)):
        case, raised = (after, bad, mode, error), RuntimeError if error is StopIteration else Boom
        it = iter(build(stage, after, mode, Bombs(bad, error=error)))
        expected, delivered, has_failed = outcomes(stage, after, bad), [], False
        for output in expected:
            check_nothing_to_skip(it)
            if output is not FAILED:
                assert next(it) == output, case
                delivered.append(output)
                continue
            with pytest.raises(raised) as first:
                next(it)
            assert raised is Boom or isinstance(first.value.__cause__, StopIteration), case
            state = it.get_state()
            with pytest.raises(raised) as second:
                next(it)
            assert first.value.args == second.value.args and it.get_state() == state, case
            if not has_failed:
                check_state_of_failure(stage, after, mode, state, delivered)
            has_failed = True
            it.skip_failed()
        check_nothing_to_skip(it)
        for _ in range(2):
            assert_raises(StopIteration, None, next, it)


def check_state_of_failure(stage, after, mode, state, delivered):
    """It is that after the last element, also where all is well."""
    it = iter(build(stage, after, mode, Bombs()))
    it.set_state(state)
    rest, healthy = list(it), outcomes(stage, after, set())
    # failing elements that would be rejected have no counterpart in the healthy stream
    if "filter" not in stage:
        assert rest == healthy[len(delivered) :], (after, mode)
    elif after == "alone":
        assert rest == [x for x in healthy if x not in delivered], (after, mode)


@each_part
@each_stage
def test_transient_failures_heal(stage, part):
    # A filter may have got further; an interleave opens datasets for its state.
    keeps_state = "filter" not in stage and stage != "iter_make_dataset"
    kinds = [(1, Boom), (3, Boom), (2, KeyboardInterrupt), (2, errors_of(stage)[-1])]
    for after, bad, mode, (times, error) in combinations(stage, part, MODES, kinds):
        it = iter(build(stage, after, mode, Bombs(bad, times, error)))
        delivered = []
        for _ in range(200):
            before = it.get_state() if keeps_state else None
            try:
                delivered.append(next(it))
                continue
            except StopIteration:
                break
            except (Boom, KeyboardInterrupt):
                assert error is not StopIteration
            except RuntimeError as caught:
                assert error is StopIteration and isinstance(caught.__cause__, StopIteration)
            assert not keeps_state or it.get_state() == before, (after, bad, mode, times, error)
        assert delivered == outcomes(stage, after, set()), (after, bad, mode, times, error)


class Disguised:
    """For any index it gives the next element, and at its end ``error``."""

    def __init__(self, n, error):
        self.records, self.error, self.num_asked = iter(range(n)), error, 0

    def __len__(self):
        return 10**6

    def __getitem__(self, key):
        self.num_asked += 1
        for record in self.records:
            return record
        raise self.error("the end")


class Through(MapDataset):
    def __len__(self):
        return len(self._parent)

    def __getitem__(self, index):
        return self._parent[index]


UPSTREAM = {  # of elements, by threads or not, from a dataset of records
    "alone": lambda ds, o: ds.to_iter_dataset(o),
    "map": lambda ds, o: (
        ds.map(lambda x: x).random_map(lambda x, rng: x, seed=1).to_iter_dataset(o)
    ),
    "sliced": lambda ds, o: (
        ds.shuffle(seed=3)[1:].map_with_index(lambda i, x: x).to_iter_dataset(o)
    ),
    "batch": lambda ds, o: ds.batch(1, batch_fn=lambda xs: xs[0]).to_iter_dataset(o),
    "zip": lambda ds, o: MapDataset.range(10**6).zip(ds).map(second).to_iter_dataset(o),
    "mix": lambda ds, o: MapDataset.mix([ds]).to_iter_dataset(o),
    "user_dataset": lambda ds, o: Through(ds).to_iter_dataset(o),
    "stream": lambda ds, o: (
        ds.to_iter_dataset(o).map(lambda x: x).random_map(lambda x, rng: x, seed=1)
    ),
    "all_pass": lambda ds, o: ds.filter(lambda x: True).to_iter_dataset(o).filter(lambda x: True),
    "loader": lambda ds, o: LegacyOperationIterDataset(
        ds.to_iter_dataset(o), lambda records: records
    ),
}


@pytest.mark.parametrize("upstream", UPSTREAM)
def test_a_source_is_asked_once_for_each_element(upstream):
    """Also downstream of stages that take blocks, if records are read by one thread, or none;
    ``StopIteration`` is the end.
    """
    modes = {"direct": DIRECT, "one": ReadOptions(1, 8), "far_ahead": ReadOptions(1, 64)}
    for after, mode, error in itertools.product(AFTER, modes, (IndexError, StopIteration)):
        source = Disguised(11, error)
        it = iter(AFTER[after][0](UPSTREAM[upstream](MapDataset.source(source), modes[mode])))
        expected = AFTER[after][1]([*range(11), *([FAILED] if error is IndexError else [])])
        if error is IndexError:
            expected = expected[: expected.index(FAILED)]
        assert [next(it) for _ in expected] == expected, (after, mode, error)
        for _ in range(2):
            assert_raises(error, None, next, it)
            assert error is IndexError or source.num_asked == 12, (after, mode, source.num_asked)


@pytest.mark.parametrize("upstream", UPSTREAM)
def test_of_such_a_source_only_records_that_failed_are_lost(upstream):
    for after, options in itertools.product(
        (alone, lambda ds: ahead(ds, 3)), (DIRECT, ReadOptions(1, 8))
    ):
        for make in (
            lambda ds, o, fn: UPSTREAM[upstream](ds.map(fn), o),
            lambda ds, o, fn: UPSTREAM[upstream](ds, o).map(fn),
        ):
            it = iter(
                after(
                    make(
                        MapDataset.source(Disguised(50, StopIteration)),
                        options,
                        Bombs({5, 20, 21}, 1),
                    )
                )
            )
            delivered, failed = [], []
            while len(delivered) + len(failed) < 50:
                try:
                    delivered.append(next(it))
                except Boom as error:
                    failed.append(error.args[0])
            assert failed == [5, 20, 21] and sorted(delivered + failed) == [*range(50)]
            assert list(it) == []


@pytest.mark.parametrize(
    "stage", [name for name in STAGES if "iter" not in name and name != "legacy_operation"]
)
def test_random_access_reports_errors_and_continues(stage):
    for error, expected in (
        (Boom, Boom),
        (StopIteration, RuntimeError if StopIteration in errors_of(stage) else StopIteration),
    ):
        ds = STAGES[stage](Bombs({5}, error=error), DIRECT).parents[0]
        if stage == "user_dataset":
            ds = ds.map(lambda x: x)
        for _ in range(2):
            with pytest.raises(expected):
                ds[5]
        assert ds[7] == 7


@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
def test_the_first_error_of_a_block_is_of_the_first_element(options):
    """Two stages fail at different elements: the one upstream must not win."""

    def failing(error, elements):
        def step(x):
            if x in elements:
                raise error(x)
            return x

        return step

    early, late = failing(KeyError, (7, 9)), failing(OSError, (5, 9))
    map_ds = MapDataset.range(N).map(early).map(late)
    errors = {5: OSError, 7: KeyError, 9: KeyError}
    for size in (1, 2, 5, 6, 12, 50):
        for ds in (
            batch(map_ds.to_iter_dataset(options), size),
            batch(map_ds, size).to_iter_dataset(options),
            batch(plain_range(options).map(early).map(late), size),
            batch(MapDataset.range(N).map(early).to_iter_dataset(options).map(late), size),
        ):
            it = iter(ds)
            for start in range(0, N, size):
                members = list(range(start, min(start + size, N)))
                first_bad = next((x for x in members if x in errors), None)
                if first_bad is None:
                    assert next(it) == members
                    continue
                with pytest.raises(errors[first_bad]) as caught:
                    next(it)
                assert caught.value.args == (first_bad,)
                it.skip_failed()
            assert list(it) == []


class Stubborn(BareIterator):
    """A user's iterator that fails at 5 and does not know how to skip."""

    def __next__(self):
        if self.position == 5:
            raise Boom(5)
        return super().__next__()


def test_a_failed_skip_changes_nothing():
    it = iter(batch(Given(lambda: Stubborn(N)), 3))
    assert next(it) == [0, 1, 2]
    for _ in range(2):
        assert_raises(Boom, "5", next, it)
        assert_raises(NotImplementedError, None, it.skip_failed)
        assert it.get_state() == {"position": 3}
    it = iter(build("map", "batch", "threaded", Bombs({1})))
    assert_raises(Boom, "1", next, it)
    it.set_state(it.get_state())
    check_nothing_to_skip(it)


ITEMS = {
    "source": lambda b: MapDataset.source(Source(b)),
    "source_vectored": lambda b: MapDataset.source(VectoredSource(b)),
    "user_dataset": UserDataset,
    "map": lambda b: MapDataset.range(N).map(b),
    "maps": lambda b: MapDataset.range(N).map(lambda x: x).map(b).map(lambda x: x),
    "map_with_index": lambda b: MapDataset.range(N).map_with_index(lambda i, x: b(x)),
    "random_map": lambda b: MapDataset.range(N).random_map(lambda x, rng: b(x), seed=1),
    "filter": lambda b: MapDataset.range(N).filter(b.is_odd),
    "batch": lambda b: MapDataset.range(N).map(b).batch(2),
    "batch_fn": lambda b: MapDataset.range(N).batch(2, batch_fn=lambda xs: [b(x) for x in xs][-1]),
    "flat_map": lambda b: MapDataset.range(N).flat_map(lambda x: [b(x)], max_fan_out=2),
    "zip": lambda b: MapDataset.range(N).zip(MapDataset.range(N).map(b)).map(second),
    "mix": lambda b: MapDataset.mix(
        [MapDataset.range(N).map(b), MapDataset.source(VectoredSource(b))]
    ),
    "shuffle": lambda b: MapDataset.source(VectoredSource(b)).shuffle(seed=1),
    "block_shuffle": lambda b: MapDataset.source(VectoredSource(b)).block_shuffle(2, seed=1),
    "tolerate": lambda b: MapDataset.range(N).map(b).tolerate(ZeroDivisionError),
}


@pytest.mark.parametrize("error", [Boom, StopIteration])
@pytest.mark.parametrize("stage", ITEMS.values(), ids=ITEMS)
def test_an_iterator_raises_what_an_element_alone_raises(stage, error):
    for bad in range(0, N, 3):
        ds = stage(Bombs([bad], error=error))
        found = []
        for blocks in ([[i] for i in range(2 * N)], [range(2 * N)]):
            got = []
            with pytest.raises((Boom, RuntimeError, SourceEnded)) as caught:
                for block in blocks:
                    for x in ds._gm_items(block):
                        got.append(x.tolist() if isinstance(x, np.ndarray) else x)
            found.append((got, type(caught.value), getattr(caught.value, "__notes__", [])))
        assert found[0] == found[1]
        assert caught.type is SourceEnded or any(
            ["at element" in note for note in caught.value.__notes__]
        )
