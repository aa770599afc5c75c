"""A mixture with other weights or components goes on without loss, or is refused by the step that holds what it has mixed."""

import itertools
import json
from collections import Counter

import numpy as np
import pytest

from gristmill import IterDataset, MapDataset, ReadOptions
from gristmill import experimental as gx
from gristmill.core.errors import StateMismatchError


def mixture(weights):
    """Elements say which component they are of: 1000 and more of b, 2000 and more of c."""
    components = {}
    for name in weights:
        first = 1000 * "abc".index(name)
        components[name] = MapDataset.range(first, first + 1000).to_iter_dataset(ReadOptions(num_threads=0))
    return IterDataset.mix(components, weights)


def packed(cls, ds, length, **options):
    return cls(ds.map(lambda x: {"x": np.full(x % 3 + 1, x)}), length_struct={"x": length}, **options)


# Behind a mixture: what holds nothing of it when it has delivered something.
HOLD_NOTHING = {
    "nothing": lambda ds: ds,
    "map": lambda ds: ds.map(lambda x: x),
    "filter": lambda ds: ds.filter(lambda x: x % 5 != 3),
    "random_map": lambda ds: ds.random_map(lambda x, rng: x, seed=1),
    "batch": lambda ds: ds.batch(3),
    "limit": lambda ds: ds.limit(100),
    "repeat": lambda ds: ds.repeat(2),
    "thread": lambda ds: ds.thread_prefetch(3),
    "zip": lambda ds: gx.ZipIterDataset([ds, ds]).map(lambda pair: pair[0]),
    "mixed again": lambda ds: IterDataset.mix({"a": ds}),
    "interleave": lambda ds: gx.InterleaveIterDataset([ds], cycle_length=1),
}
# What holds something, at nearly every place; and how it says so.
IN_BINS = "BinPackDatasetIterator holds up to 3 rows"
HOLD = {
    "window_shuffle": (lambda ds: ds.window_shuffle(4, seed=1), "WindowShuffleDatasetIterator holds a window of up to 4 "),
    "first_fit": (lambda ds: packed(gx.FirstFitPackIterDataset, ds, 4, num_packing_bins=3), IN_BINS),
    "best_fit": (lambda ds: packed(gx.BestFitPackIterDataset, ds, 5, num_packing_bins=3), IN_BINS),
    "concat_then_split": (lambda ds: packed(gx.ConcatThenSplitIterDataset, ds, 4), "ConcatThenSplitDatasetIterator holds"),
    "rebatch": (lambda ds: ds.batch(3).rebatch(2), r"RebatchDatasetIterator\(.*\) holds a batch, \d rows of it delivered"),
    "flat_map": (lambda ds: ds.flat_map(lambda x: [x, x + 0.5]), r"FlatMapDatasetIterator\(.*\) holds an element, \d items of"),
    "cache": (lambda ds: ds.cache(), r"CacheDatasetIterator holds \d+ elements"),
}
PACKING = ("first_fit", "best_fit", "concat_then_split")
BEHIND = {
    "nothing": lambda ds: ds,
    "batches": lambda ds: ds.batch(2, batch_fn=list),
    "thread": lambda ds: ds.thread_prefetch(2),
    "workers": lambda ds: ds.multithread_prefetch(num_threads=2, buffer_size=1),
}
CHANGES = [({"a": 1, "b": 2}, {"a": 3, "b": 1}), ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 2})]
CHANGES += [({"a": 1, "b": 2, "c": 1}, {"a": 1, "b": 2}), ({"a": 1, "b": 1}, {"a": 1, "c": 1})]


def flat(element):
    if isinstance(element, dict):
        return flat(element["x"][element["x_segment_ids"] > 0]) if "x_segment_ids" in element else flat(element["x"])
    return [x for part in element for x in flat(part)] if isinstance(element, list) else np.atleast_1d(element).tolist()


def check_each_once(delivered, before, after, *, is_packed=False, has_gaps=False):
    """Of the components that stay, whatever was delivered has come once, and nothing before it was left out."""
    for name in set(before) & set(after):
        first = 1000 * "abc".index(name)
        found = Counter([x for x in delivered if first <= x < first + 1000])
        assert found == {x: x % 3 + 1 if is_packed else 1 for x in found}
        assert has_gaps or sorted(found) == [*range(first, first + len(found))]


@pytest.mark.parametrize("name", HOLD_NOTHING)
def test_where_nothing_is_held_all_components_go_on(name):
    step = HOLD_NOTHING[name]
    for (before, after), num in itertools.product(CHANGES, (0, 1, 2, 3, 5, 8, 11)):
        with iter(step(mixture(before))) as it, iter(step(mixture(after))) as other:
            delivered = [x for _ in range(num) for x in flat(next(it))]
            other.set_state(json.loads(json.dumps(it.get_state())))
            delivered += [x for _ in range(12) for x in flat(next(other))]
            check_each_once(delivered, before, after, has_gaps=name == "filter")


# Any two meet.
CASES = [(name, behind, (i + i // 4) % 4) for i, (name, behind) in enumerate(itertools.product(HOLD, BEHIND))]


@pytest.mark.parametrize(("name", "behind", "change"), CASES)
def test_a_step_that_holds_elements_refuses_or_has_delivered_them_all(name, behind, change):
    (before, after), (step, message) = CHANGES[change], HOLD[name]
    num_refused = 0
    for num in range(9):
        it, other, same = [iter(BEHIND[behind](step(mixture(weights)))) for weights in (before, after, before)]
        delivered = [x for _ in range(num) for x in flat(next(it))]
        start, state = other.get_state(), json.loads(json.dumps(it.get_state()))
        try:
            other.set_state(state)
        except StateMismatchError as refusal:
            num_refused += 1
            with pytest.raises(StateMismatchError, match=message):
                raise refusal
            assert "MixedDatasetIterator" in str(refusal) and other.get_state() == start
        else:
            check_each_once(delivered, before, after, is_packed=name in PACKING, has_gaps=behind == "workers")
        same.set_state(state)
        assert flat(next(same)) == flat(next(it))
        for iterator in (it, other, same):
            iterator.close()
    assert num_refused >= 4
