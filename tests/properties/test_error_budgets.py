"""Error budgets: a restored run has the elements, the counts and the errors of the first one,
for every stage that replays elements.
"""

import json
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill import FaultBudgetError, IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.experimental import InterleaveIterDataset, RepeatIterDataset

EVERY = {"max_rate": None, "max_consecutive": None}
LENGTH = 13


class Fails:
    """A function that fails at some numbers, while it is set to."""

    def __init__(self, divisor, rest):
        self.divisor, self.rest, self.is_on = divisor, rest, True

    def __call__(self, x):
        if self.is_on and int(x) % self.divisor == self.rest % self.divisor:
            raise ValueError(f"{x} is broken")
        return x


def twice(x):
    return [x] * (int(x) % 3)


interleaved = partial(
    InterleaveIterDataset, cycle_length=2, iter_buffer_size=0, make_iter_buffer_size=0
)


def make_fails(functions, divisor, rest):
    functions.append(Fails(divisor, rest))
    return functions[-1]


divisors = st.tuples(st.sampled_from([2, 3, 5]), st.integers(0, 4))
map_steps = st.one_of(
    st.tuples(st.just("fail"), divisors),
    st.tuples(st.just("tolerate"), st.sampled_from(["skip", "replace"])),
    st.tuples(
        st.sampled_from(["shuffle", "block_shuffle", "flat_map", "repeat", "filter"]), st.none()
    ),
)
stream_steps = st.one_of(
    st.tuples(st.just("fail"), divisors),
    st.tuples(st.just("window"), st.integers(2, 6)),
    st.tuples(st.just("rebatch"), st.integers(2, 4)),
    st.tuples(st.just("limit"), st.integers(1, 20)),
    st.tuples(st.sampled_from(["members", "opened"]), st.sampled_from([None, "lanes", "stream"])),
    st.tuples(
        st.sampled_from(
            ["tolerate", "flat_map", "repeat", "filter", "interleave", "kinds", "mix", "rows"]
        ),
        st.none(),
    ),
)


def members_of(ds, fails, last, is_lazy, by_whom):
    """An interleave of datasets that tolerate faults, made when they are opened or before, and who
    computes it.
    """
    lengths = (9, 4, 20)

    def make(i):
        return ds.limit(lengths[i]).map(fails).tolerate(**last)

    members = interleaved(MapDataset.range(3).map(make) if is_lazy else [*map(make, range(3))])
    if by_whom == "lanes":
        return members.mp_prefetch(MultiprocessingOptions(num_lanes=2))
    threads = MultiprocessingOptions(2, executor="threads")
    return members if by_whom is None else members.mp_prefetch(threads, order="stream")


def build(of_map, of_stream, threads, functions, last=EVERY):
    ds = MapDataset.range(LENGTH).map(lambda x: x + 1)
    for name, argument in of_map:
        ds = {
            "fail": lambda ds, argument: ds.map(make_fails(functions, *argument)),
            "tolerate": lambda ds, argument: ds.tolerate(
                max_rate=None, max_consecutive=50, then=argument
            ),
            "shuffle": lambda ds, argument: ds.shuffle(seed=3),
            "block_shuffle": lambda ds, argument: ds.block_shuffle(3, group_size=2, seed=4),
            "flat_map": lambda ds, argument: ds.flat_map(twice, max_fan_out=2),
            "repeat": lambda ds, argument: ds.repeat(2),
            "filter": lambda ds, argument: ds.filter(lambda x: x % 7),
        }[name](ds, argument)
    ds = ds.tolerate(max_rate=None).to_iter_dataset(ReadOptions(threads, 4))
    for name, argument in of_stream:
        ds = {
            "fail": lambda ds, argument: ds.map(make_fails(functions, *argument)).tolerate(**EVERY),
            "tolerate": lambda ds, argument: ds.tolerate(**EVERY),
            "window": lambda ds, argument: ds.window_shuffle(argument, seed=5),
            "rebatch": lambda ds, argument: ds.batch(2).rebatch(argument).flat_map(list),
            "flat_map": lambda ds, argument: ds.flat_map(twice),
            "limit": lambda ds, argument: ds.limit(argument),
            "interleave": lambda ds, argument: interleaved([ds.limit(n) for n in (9, 4, 20)]),
            "kinds": lambda ds, argument: interleaved(
                [ds.limit(6), MapDataset.range(2).map(lambda x: x + 1), ds.map(int), ds.limit(9)]
            ),
            "members": lambda ds, by_whom: members_of(
                ds, make_fails(functions, 7, 1), last, False, by_whom
            ),
            "opened": lambda ds, by_whom: members_of(
                ds, make_fails(functions, 7, 1), last, True, by_whom
            ),
            "rows": lambda ds, argument: ds.global_batch(2, batch_fn=list).flat_map(list),
            "mix": lambda ds, argument: IterDataset.mix([ds, ds.limit(7)], [5, 1]),
            "repeat": lambda ds, argument: RepeatIterDataset(ds, num_epochs=2),
            "filter": lambda ds, argument: ds.filter(lambda x: x % 7),
        }[name](ds, argument)
    return ds.tolerate(**last)


def run(it, limit=150):
    """Return the elements, and the counts after each, of the end too."""
    found, counts = [], []
    for _ in range(limit):
        try:
            x = next(it)
        except StopIteration:
            break
        except FaultBudgetError as error:
            found.append(type(error))
            break
        except ValueError as error:
            found.append(str(error))
            break
        found.append(int(x))
        counts.append((it.faults().total, it.faults().tried))
    return found, [*counts, (it.faults().total, it.faults().tried)]


def through_json(state):
    return json.loads(json.dumps(state))


def is_wanted(steps):
    """Further interleaves make many members, which take long; a ``global_batch`` has no other
    upstream.
    """
    names = [name for name, _ in steps]
    num = sum(name in ("interleave", "kinds") for name in names)
    num += 2 * (names.count("members") + names.count("opened"))
    num_divided = names.count("rows") + sum(
        argument in ("lanes", "stream") for _, argument in steps
    )
    return num < 4 and num_divided < 2


streams = st.lists(stream_steps, max_size=4).filter(is_wanted)
pipelines = st.tuples(st.lists(map_steps, max_size=4), streams, st.sampled_from([0, 2]))
some = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


@some
@given(pipelines, st.integers(0, 3))
def test_a_restored_run_has_the_same_elements_and_counts(pipeline, max_total):
    for last in (EVERY, {**EVERY, "max_total": max_total}):
        ds = build(*pipeline, [], last)
        first = iter(ds)
        found, counts = run(first)
        assert counts == sorted(counts)
        it = iter(ds)
        for k in range(min(len(found), 40)):
            state = through_json(it.get_state())
            again = iter(ds)
            again.set_state(state)
            assert through_json(again.get_state()) == state
            assert (again.faults().total, again.faults().tried) == (
                it.faults().total,
                it.faults().tried,
            )
            rest, rest_counts = run(again, 150 - k)
            assert rest == found[k:]
            assert rest_counts == counts[k:]
            if k + 1 < len(found) and isinstance(found[k], int):
                next(it)
            else:
                break


@pytest.mark.parametrize("limit", [4, 7, 100])
@pytest.mark.parametrize("stage", ["interleave", "windows", "windows of a mixture"])
def test_totals_continue_in_each_epoch(stage, limit):
    def one(num):
        return (
            MapDataset.range(num).to_iter_dataset(ReadOptions(0)).map(Fails(5, 3)).tolerate(**EVERY)
        )

    ds = {
        "interleave": lambda: interleaved([one(4), one(6), one(9)]),
        "windows": lambda: interleaved([one(4), one(6), one(9)]).window_shuffle(5, seed=1),
        "windows of a mixture": lambda: IterDataset.mix([one(4), one(9)]).window_shuffle(5, seed=1),
    }[stage]().limit(limit)
    once = run(iter(ds))[1][-1]
    assert run(iter(RepeatIterDataset(ds, num_epochs=3)))[1][-1] == (3 * once[0], 3 * once[1])


@some
@given(pipelines)
def test_counts_depend_on_no_threads_or_blocks(pipeline):
    of_map, of_stream, _ = pipeline
    expected = run(iter(build(of_map, of_stream, 0, [])), 60)
    assert run(iter(build(of_map, of_stream, 3, [])), 60) == expected
    it, found = iter(build(of_map, of_stream, 0, [])), []
    while len(found) < 60 and (block := it._gm_take(min(7, 60 - len(found)))):
        found += [int(x) for x in block]
    if all(isinstance(x, int) for x in expected[0]):
        assert found == expected[0] and it.faults().total == expected[1][-1][0]
