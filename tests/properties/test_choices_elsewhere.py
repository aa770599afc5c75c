"""Choices that positions do not determine, made in members of an interleave and by threads."""

import json
import random
from itertools import islice

import pytest
from computing_ahead import DIRECT, no_threads_left  # noqa: F401
from dropping import DroppingIterDataset

from gristmill import IterDataset, MapDataset
from gristmill.experimental import InterleaveIterDataset, ThreadPrefetchIterDataset

WINDOW = 7


def dropping(rng, start, num):
    ds = MapDataset.range(start, start + num).to_iter_dataset(DIRECT)
    return DroppingIterDataset(ds, lambda x: rng.random() < 0.3, passes=False)


def interleaved(rng, size):
    members = [dropping(rng, 100 * i, 5 + 9 * i) for i in range(4)]
    return InterleaveIterDataset(members, cycle_length=2, iter_buffer_size=size)


def mixed_in_epochs(rng):
    components = [
        ThreadPrefetchIterDataset(dropping(rng, 100 * i, 6 + i), prefetch_buffer_size=2)
        for i in range(3)
    ]
    return IterDataset.mix(components, stop="never").limit(50)


PIPELINES = {
    "thread": lambda rng: ThreadPrefetchIterDataset(dropping(rng, 0, 60), prefetch_buffer_size=4),
    "thread of threads": lambda rng: ThreadPrefetchIterDataset(
        interleaved(rng, 3), prefetch_buffer_size=2
    ),
    "interleave": lambda rng: interleaved(rng, 0),
    "interleave of threads": lambda rng: interleaved(rng, 2),
    "interleave of interleaves": lambda rng: InterleaveIterDataset(
        [interleaved(rng, 0), interleaved(rng, 1)], cycle_length=2
    ),
    "windows": lambda rng: ThreadPrefetchIterDataset(
        interleaved(rng, 0).window_shuffle(3, seed=2), prefetch_buffer_size=3
    ),
    "components in later epochs": mixed_in_epochs,
    "in the caller": lambda rng: ThreadPrefetchIterDataset(
        dropping(rng, 0, 60), prefetch_buffer_size=0
    ),
}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("in_place", [True, False], ids=["in_place", "opened_again"])
def test_a_window_has_the_elements_that_it_had_in_the_first_run(name, in_place):
    rng = random.Random(1)  # of all runs together, so that each would drop others
    ds = PIPELINES[name](rng).window_shuffle(WINDOW, seed=3)
    it, states, first = iter(ds), [], []
    while len(states) == len(first):
        states.append(json.dumps(it.get_state()))
        first += islice(it, 1)
    assert len(first) > 20
    for position in range(0, len(first), 3):
        again = it if in_place else iter(ds)
        again.set_state(json.loads(states[position]))
        end = min(len(first), position - position % WINDOW + WINDOW)
        # nothing was chosen yet at the beginning of a window
        expected = first[position:end] if position % WINDOW else []
        assert [*islice(again, len(expected))] == expected, position
        again.close() if again is not it else None


def test_members_opened_ahead_choose_by_remaining_keys():
    members = [
        IterDataset.mix({"a": MapDataset.range(12).to_iter_dataset()}).window_shuffle(4, seed=i)
        for i in range(3)
    ]
    ds = InterleaveIterDataset(members, cycle_length=2, make_iter_buffer_size=2, iter_buffer_size=3)
    assert sorted(ds) == sorted([*range(12)] * 3)
