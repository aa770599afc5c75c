"""Random pipelines over the whole Dataset API, nested ones too, in Grain 0.2.18 and here.

Lengths, elements, errors, states at every step, indices and element specs are compared, and we go on from Grain's states. The
pipelines keep away from where we differ on purpose, or the comparison knows it: ``DEVIATIONS``, and those of ``test_peer.py``.

``GRISTMILL_PEER_SEED`` and ``GRISTMILL_PEER_COUNT`` make ``test_random_datasets`` try others, and more.
"""

import concurrent.futures
import json
import os
import re
import textwrap
from pathlib import Path

import peer_pipelines
import pytest
import test_peer
from peer_driver import known, same_state
from peer_pipelines import Pipelines, smaller
from peer_process import needs_grain, run

pytestmark = needs_grain

# Why, the code that shows it, what Grain gives and what we give.
_NAMES = """
import itertools
x, M, I = m.experimental, m.MapDataset, m.IterDataset

class Fan(x.FlatMapTransform):
    max_fan_out = 2
    def __init__(self, fn):
        self.flat_map = fn
    def flat_map(self, element):
        raise AssertionError

def outcome(fn):
    value = attempt(fn)
    return value["error"][0] if isinstance(value, dict) and "error" in value else value
"""

DEVIATIONS = {
    "map_window_shuffle": (
        "a window ends with its epoch, so that every epoch has all elements",
        "result = list(x.WindowShuffleMapDataset(M.range(5), window_size=10, seed=1))",
        [0, 2, 1, 0, 4],
        [1, 2, 3, 0, 4],
    ),
    "missing_elements_of_flat_maps": (
        "`None` means that there is no element",
        """
        ds = M.source([1, None, 2]).to_iter_dataset(allow_nones=True)
        result = outcome(lambda: list(x.FlatMapIterDataset(ds, Fan(lambda v: [v, v]))))
        """,
        [1, 1, None, None, 2, 2],
        [1, 1, 2, 2],
    ),
    "generators_of_flat_maps": (
        "the documented example of a flat map is a generator",
        """
        ds = M.range(3).to_iter_dataset()
        result = outcome(lambda: list(x.FlatMapIterDataset(ds, Fan(lambda v: (v for _ in range(v))))))
        """,
        "TypeError",
        [1, 2, 2],
    ),
    "third_epoch_of_interleave": (
        "no element may be lost; Grain's states are others from the second epoch on",
        """
        datasets = [M.range(2).to_iter_dataset(), M.range(3, 6).to_iter_dataset(), M.range(10, 11).to_iter_dataset()]
        result = list(x.RepeatIterDataset(x.InterleaveIterDataset(datasets, cycle_length=2), 3))
        """,
        [0, 3, 1, 4, 5, 10, 0, 3, 1, 4, 5, 10, 10, 3, 4, 10, 5],
        [0, 3, 1, 4, 5, 10, 0, 3, 1, 4, 5, 10, 0, 3, 1, 4, 5, 10],
    ),
    "checkpoint_in_the_second_epoch_of_interleave": (
        "no element may be lost",
        """
        ds = x.RepeatIterDataset(x.InterleaveIterDataset([M.range(2), M.range(3, 6)], cycle_length=2), 2)
        it = iter(ds)
        [next(it) for _ in range(6)]
        state = it.get_state()
        it = iter(ds)
        it.set_state(state)
        result = list(it)
        """,
        [],
        [3, 1, 4, 5],
    ),
    "missing_datasets_of_interleave": (
        "no element may be lost",
        """
        datasets = M.source([0, 1, 2, 3]).filter(lambda v: v != 1).map(lambda v: M.range(10 * v, 10 * v + 3).to_iter_dataset())
        result = list(x.InterleaveIterDataset(datasets, cycle_length=4))
        """,
        [0, 20, 30],
        [0, 20, 30, 1, 21, 31, 2, 22, 32],
    ),
    "no_datasets_to_interleave": (
        "nothing, if there is nothing",
        "result = outcome(lambda: list(x.InterleaveIterDataset([], cycle_length=2)))",
        "IndexError",
        [],
    ),
    "cycle_of_length_0": (
        "arguments are checked where they are given",
        "result = outcome(lambda: list(x.InterleaveIterDataset([M.range(2)], cycle_length=0)))",
        "IndexError",
        "ValueError",
    ),
    "options_above_interleave": (
        "options are for the whole pipeline",
        """
        ds = x.InterleaveIterDataset([M.range(2000).to_iter_dataset().filter(lambda v: v == 0)], cycle_length=1)
        options = x.DatasetOptions(filter_raise_threshold_ratio=0.5)
        result = outcome(lambda: list(x.WithOptionsIterDataset(x.RepeatIterDataset(ds, 1), options)))
        """,
        [0],
        "ValueError",
    ),
    "map_with_index_in_threads": (
        "indices are those of the same pipeline without threads",
        """
        ds = M.range(5).to_iter_dataset().map_with_index(lambda i, v: (i, v))
        result = list(x.multithread_prefetch(ds, num_threads=2, buffer_size=1))
        """,
        [[0, 0], [0, 1], [1, 2], [1, 3], [2, 4]],
        [[0, 0], [1, 1], [2, 2], [3, 3], [4, 4]],
    ),
    "threads_in_threads": (
        "each thread's share is shared out once more; Grain hands out whole inner threads",
        """
        ds = M.range(7).to_iter_dataset().batch(2, batch_fn=list)
        ds = x.multithread_prefetch(x.multithread_prefetch(ds, num_threads=3, buffer_size=1), num_threads=2, buffer_size=1)
        result = list(ds)
        """,
        [[0, 3], [1, 4], [2, 5], [6]],
        [[0, 6], [1], [2], [3], [4], [5]],
    ),
    "fewer_datasets_than_threads": (
        "a thread without datasets has nothing to do",
        """
        ds = x.InterleaveIterDataset([M.range(3).to_iter_dataset()], cycle_length=1)
        result = outcome(lambda: list(x.multithread_prefetch(ds, num_threads=2, buffer_size=1)))
        """,
        "IndexError",
        [0, 1, 2],
    ),
    "a_dataset_twice_in_threads": (
        "no element may be lost",
        """
        a = M.range(6).to_iter_dataset()
        result = list(x.multithread_prefetch(I.mix([a, a]), num_threads=2, buffer_size=1))
        """,
        [0, 3, 0, 3, 4, 4],
        [0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5],
    ),
    "parts_of_what_has_a_length": (
        "no element may come twice",
        """
        ds = M.range(4).repeat(2).to_iter_dataset()
        result = outcome(lambda: list(x.multithread_prefetch(ds, num_threads=2, buffer_size=1, sequential_slice=True)))
        """,
        [0, 2, 1, 3, 0, 2, 1, 3, 0, 2, 1, 3, 0, 2, 1, 3],
        [0, 2, 1, 3, 0, 2, 1, 3],
    ),
    "seeds_before_threads": (
        "seeds are those of the same pipeline without threads",
        """
        ds = x.multithread_prefetch(M.range(2).to_iter_dataset().seed(1), num_threads=1, buffer_size=1)
        result = outcome(lambda: list(ds.random_map(lambda v, rng: int(rng.integers(100)))))
        """,
        "ValueError",
        [0, 33],
    ),
    "second_cut_of_several_features": (
        "no token may come twice",
        """
        elements = [{"a": np.arange(5), "b": np.arange(2)}, {"a": np.arange(5, 13), "b": np.arange(2, 5)}]
        ds = x.ConcatThenSplitIterDataset(M.source(elements).to_iter_dataset(), length_struct={"a": 4, "b": 3})
        result = [[v[name][v[f"{name}_segment_ids"] > 0].tolist() for name in "ab"] for v in itertools.islice(ds, 9)]
        """,
        [[[0, 1, 2, 3], [0, 1]], [[4, 5, 6, 7], [2, 3, 4]], [[8, 9, 10, 11], []], [[12], [2, 3, 4]]],
        [[[0, 1, 2, 3], [0, 1]], [[4, 5, 6, 7], [2, 3, 4]], [[8, 9, 10, 11], []], [[12], []]],
    ),
    "first_tokens_of_empty_pieces": (
        "padding is not a token",
        """
        elements = [{"a": np.array([1]), "b": np.arange(4)}]
        ds = x.ConcatThenSplitIterDataset(
            M.source(elements).to_iter_dataset(),
            length_struct={"a": 2, "b": 3},
            bos_handling=x.BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS,
            bos_features=["a"],
            bos_token_id=99,
        )
        result = [v["a"].tolist() for v in ds]
        """,
        [[99, 0], [99, 0]],
        [[99, 0], [0, 0]],
    ),
    "split_from_a_file": (
        "no token may be lost",
        """
        ds = M.source([{"a": np.arange(3 * i, 3 * i + 3)} for i in range(4)]).to_iter_dataset()
        ds = x.ConcatThenSplitIterDataset(ds, length_struct={"a": 4})
        it = iter(ds)
        state = json.loads(json.dumps(it.get_state()))
        it.set_state(state)
        result = outcome(lambda: [v["a"].tolist() for v in it])
        """,
        [[3, 4, 5, 6], [7, 8, 9, 10], [11, 0, 0, 0]],
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]],
    ),
    "lossy_padding": (
        "padding is not changed silently",
        "result = outcome(lambda: x.batch_and_pad([1, 2], batch_size=3, pad_value=-1.5).tolist())",
        [1, 2, -1],
        "ValueError",
    ),
    "bytes_that_end_in_nul": (
        "nothing is lost without a word",
        'result = outcome(lambda: M.source(["a\\0", "b"]).batch(2)[0].tolist())',
        ["a", "b"],
        "ValueError",
    ),
    "packing_of_nested_features": (
        "what is nested in an element may be nested in a row",
        """
        ds = M.source([{"a": {"b": np.arange(2)}}] * 2).to_iter_dataset()
        ds = x.FirstFitPackIterDataset(ds, length_struct={"a": {"b": 5}}, num_packing_bins=1)
        result = outcome(lambda: [{key: value.tolist() for key, value in row["a"].items()} for row in ds])
        """,
        "ValueError",
        [{"b": [0, 1, 0, 1, 0], "b_segment_ids": [1, 1, 2, 2, 0], "b_positions": [0, 1, 0, 1, 0]}],
    ),
    "packing_of_wider_numbers": (
        "tokens are not changed silently",
        """
        elements = [{"a": np.array([1], np.int8)}, {"a": np.array([300])}]
        ds = x.FirstFitPackIterDataset(M.source(elements).to_iter_dataset(), length_struct={"a": 2}, num_packing_bins=1)
        result = outcome(lambda: [v["a"].tolist() for v in ds])
        """,
        [[1, 44]],
        "ValueError",
    ),
    "full_bins_of_nothing": (
        "a limit is a limit",
        """
        elements = [{"a": np.zeros(0, int)}] * 5
        ds = x.BestFitPackIterDataset(
            M.source(elements).to_iter_dataset(),
            length_struct={"a": 2},
            num_packing_bins=3,
            max_sequences_per_bin=2,
        )
        result = outcome(lambda: len(list(ds)))
        """,
        1,
        3,
    ),
    "rebatch_of_uneven_leaves": (
        "rows that belong together stay together",
        """
        ds = x.RebatchIterDataset(M.source([{"a": np.arange(2), "b": np.arange(3)}]).to_iter_dataset(), 2)
        result = outcome(lambda: [[len(v["a"]), len(v["b"])] for v in ds])
        """,
        [[2, 2]],
        "ValueError",
    ),
    "rebatch_after_the_end": (
        "the end is the end",
        """
        it = iter(x.RebatchIterDataset(M.source([np.arange(4)]).to_iter_dataset(), 4))
        next(it)
        it.set_state(it.get_state())
        result = [v.tolist() for v in it]
        """,
        [[]],
        [],
    ),
    "cache_after_restore": (
        "a state that was set is the one to get",
        """
        ds = x.RepeatIterDataset(x.CacheIterDataset(M.range(2).to_iter_dataset()), 2)
        it = iter(ds)
        [next(it) for _ in range(3)]
        state = it.get_state()
        it = iter(ds)
        it.set_state(state)
        result = [it.get_state() == state, list(it)]
        """,
        [False, [1]],
        [True, [1]],
    ),
    "caches_that_are_full": (
        "a state that was set is the one to get",
        """
        it = iter(x.CacheIterDataset(M.range(2).to_iter_dataset()))
        start = it.get_state()
        list(it)
        it.set_state(start)
        result = it.get_state() == start
        """,
        False,
        True,
    ),
    "caches_in_caches": (
        "a state that was set is the one to get",
        """
        it = iter(x.RepeatIterDataset(x.CacheIterDataset(x.CacheIterDataset(M.range(2).to_iter_dataset())), 2))
        [next(it) for _ in range(3)]
        result = it.get_state()["parent"]["parent"]
        """,
        {"parent": {"next_index": 0}, "position": 0, "cache_filled": True},
        {"parent": {"next_index": 0}, "position": 0, "cache_filled": False},
    ),
    "caches_of_interleaved_datasets": (
        "datasets are opened anew in every epoch",
        """
        numbers = []
        ds = M.range(2).map(lambda v: numbers.append(v) or v).to_iter_dataset()
        list(x.RepeatIterDataset(x.InterleaveIterDataset([x.CacheIterDataset(ds)], cycle_length=1), 2))
        result = numbers
        """,
        [0, 1],
        [0, 1, 0, 1],
    ),
    "counts_of_empty_epochs": (
        "nothing is read again that was found empty",
        """
        ds = x.RepeatIterDataset(M.range(408).to_iter_dataset().filter(lambda v: False), 3)
        ds = x.WithOptionsIterDataset(ds, x.DatasetOptions(filter_raise_threshold_ratio=0.5))
        result = outcome(lambda: list(ds))
        """,
        "ValueError",
        [],
    ),
    "state_of_repeat_too_far": (
        "Grain goes on for ever",
        """
        it = iter(x.RepeatIterDataset(M.range(2).to_iter_dataset(), 2))
        it.set_state({"parent": {"next_index": 2}, "epoch": 3})
        result = [next(it, None) for _ in range(3)]
        """,
        [0, 1, 0],
        [None, None, None],
    ),
    "states_at_the_end": (
        "Grain's depend on how often the end was asked for",
        """
        ds = x.FlatMapIterDataset(M.range(4).to_iter_dataset().filter(lambda v: v < 2), Fan(lambda v: [v]))
        it = iter(ds)
        result = [list(it), it.get_state(), list(it), it.get_state()]
        """,
        [
            [0, 1],
            {"parent": {"next_index": 2}, "next_index_in_buffer": 1},
            [],
            {"parent": {"next_index": 4}, "next_index_in_buffer": 1},
        ],
        [
            [0, 1],
            {"parent": {"next_index": 2}, "next_index_in_buffer": 1},
            [],
            {"parent": {"next_index": 2}, "next_index_in_buffer": 1},
        ],
    ),
    "zip_that_has_ended": (
        "Grain goes on reading",
        """
        it = iter(x.ZipIterDataset([M.range(9).to_iter_dataset(), M.range(1).to_iter_dataset()], strict=False))
        result = [len(list(it)) for _ in range(3)] + [it.get_state()["parents"][0]]
        """,
        [1, 0, 0, {"next_index": 4}],
        [1, 0, 0, {"next_index": 2}],
    ),
    "error_in_a_mixture": (
        "an error ends nothing",
        """
        broken = [True]
        def fail_for_a_while(v):
            if v == 1 and broken:
                raise OSError
            return v
        it = iter(I.mix([M.range(3).to_iter_dataset(m.ReadOptions(0, 0)).map(fail_for_a_while), M.range(9).to_iter_dataset()]))
        found = [outcome(lambda: next(it)) for _ in range(3)]
        broken.clear()
        result = found + [outcome(lambda: next(it)) for _ in range(2)]
        """,
        [0, 0, "OSError", "StopIteration", "StopIteration"],
        [0, 0, "OSError", 1, 1],
    ),
    "datasets_that_cannot_be_made": (
        "Grain leaves such a dataset out after one error",
        """
        datasets = M.source([0, 1, 2]).map(lambda v: M.range(6 // v).to_iter_dataset())
        it = iter(x.InterleaveIterDataset(datasets.shuffle(seed=0), cycle_length=3))
        result = [outcome(it.get_state)] and [outcome(lambda: next(it)) for _ in range(3)]
        """,
        ["ZeroDivisionError", 0, 0],
        ["ZeroDivisionError", "ZeroDivisionError", "ZeroDivisionError"],
    ),
    "mixtures_with_arrays_of_weights": (
        "as `MapDataset.mix` takes them",
        "result = outcome(lambda: list(I.mix([M.range(2).to_iter_dataset()] * 2, np.array([1, 2]))))",
        "ValueError",
        [0, 0, 1, 1],
    ),
    "mixtures_with_other_names": (
        "weights belong to datasets by name",
        "result = outcome(lambda: list(I.mix({'a': M.range(2).to_iter_dataset()}, {'b': 1})))",
        [0, 1],
        "ValueError",
    ),
    "negative_weights": (
        "arguments are checked where they are given",
        "result = outcome(lambda: len(M.mix([M.range(2), M.range(2)], [1, -1])))",
        "ZeroDivisionError",
        "ValueError",
    ),
    "wrong_number_of_weights": (
        "the error says what is wrong",
        "result = outcome(lambda: M.mix([M.range(2), M.range(2)], [1]))",
        "AssertionError",
        "ValueError",
    ),
    "indices_with_gaps": (
        "the number of an element does not follow from its index then",
        """
        it = iter(M.range(9).filter(lambda v: v % 3 == 0).to_iter_dataset().batch(2))
        result = [outcome(lambda: x.get_next_index(it)), next(it).tolist(), outcome(lambda: x.get_next_index(it))]
        """,
        [0, [0, 3], 2],
        ["NotImplementedError", [0, 3], "NotImplementedError"],
    ),
    "indices_behind_threads": (
        "a step that has no index has none behind a thread either",
        """
        it = iter(x.ThreadPrefetchIterDataset(M.range(9).to_iter_dataset().filter(lambda v: v % 3 == 0), prefetch_buffer_size=1))
        result = [outcome(lambda: x.get_next_index(it)), next(it), outcome(lambda: x.get_next_index(it))]
        it.set_state(it.get_state())
        result += [outcome(lambda: x.get_next_index(it))]
        """,
        [0, 0, 1, "NotImplementedError"],
        ["NotImplementedError", 0, "NotImplementedError", "NotImplementedError"],
    ),
    "index_of_the_end": (
        "the end of `batch` is where it is",
        """
        it = iter(M.range(5).to_iter_dataset().batch(2))
        list(it)
        result = [x.get_next_index(it), outcome(lambda: x.set_next_index(it, 3))]
        """,
        [3, "IndexError"],
        [3, None],
    ),
    "index_behind_a_limit": (
        "there is no element",
        """
        it = iter(x.LimitIterDataset(M.range(9).to_iter_dataset(), count=3))
        result = outcome(lambda: x.set_next_index(it, 5))
        """,
        None,
        "StateIndexError",
    ),
    "index_of_interleave_at_its_end": (
        "the end is not the beginning",
        """
        it = iter(x.InterleaveIterDataset([M.range(3)], cycle_length=1))
        list(it)
        result = x.get_next_index(it)
        """,
        0,
        3,
    ),
    "slices_by_index": (
        "an addition of Grain's later versions",
        "result = outcome(lambda: list(M.range(9).slice([3, 1])))",
        "ValueError",
        [3, 1],
    ),
    "fractional_counts": (
        "half an element is a mistake",
        "result = outcome(lambda: list(x.LimitIterDataset(M.range(9).to_iter_dataset(), 2.5)))",
        [0, 1, 2],
        "TypeError",
    ),
    "flat_maps_of_a_loader_that_say_too_little": (
        "as in a `MapDataset`",
        """
        sampler = m.samplers.SequentialSampler(3)
        loader = m.DataLoader(data_source=range(3), sampler=sampler, operations=[Fan(lambda v: [v] * 5)])
        result = outcome(lambda: len(list(loader)))
        """,
        15,
        "ValueError",
    ),
    "random_maps_after_flat_maps": (
        "every item has a generator of its own",
        """
        class Random(m.transforms.RandomMap):
            def random_map(self, element, rng):
                return type(rng).__name__
        sampler = m.samplers.IndexSampler(1, m.sharding.NoSharding(), False, 1, 0)
        result = list(m.DataLoader(data_source=range(1), sampler=sampler, operations=[Fan(lambda v: [v] * 2), Random()]))
        """,
        ["NoneType", "NoneType"],
        ["Generator", "Generator"],
    ),
}

# Not to be shown, as Grain's result is left to chance: without a buffer, its threads and its consumer read at the same time.
UNSHOWN = {"race_without_buffer"}

STOP = ["StopIteration", "Exception", "BaseException", "object"]
OVERFLOW = ["OverflowError", "ArithmeticError", "Exception", "BaseException", "object"]
BATCH = 100  # pipelines of a process


class Different(Exception):
    """What differs between Grain and us, in words."""


def compare(specs):
    """What differs, for every one of ``specs``; ``None`` if nothing does."""
    plain = [{key: value for key, value in spec.items() if key != "node"} for spec in specs]
    # Buffers have no effect on the results, but without one Grain's are left to chance: "race_without_buffer".
    peers = run("grain", [{**spec, "code": spec["code"].replace("buffer_size=0", "buffer_size=1")} for spec in plain])
    ours = run("gristmill", [{**spec, **to_restore(spec, peer)} for spec, peer in zip(plain, peers, strict=True)])
    found = []
    for spec, peer, our in zip(specs, peers, ours, strict=True):
        try:
            check(spec, peer, our)
        except Different as difference:
            found.append(str(difference))
        else:
            found.append(None)
    return found


def to_restore(spec, peer):
    """Grain's states, for us to go on from."""
    if "run" not in peer or is_error(peer["start"]) or not spec.get("restores", True):
        return {}
    run, n = peer["run"], len(peer["run"]["states"])
    states = [peer["start"], *run["states"]] + ([run["end_state"]] if run["end"] == STOP else [])
    # A full cache stays full when its iterator goes back, so that states are others then, in Grain as well.
    return {"states": states, "restore": [0, n // 2, n // 2, n], "in_place": "CacheIterDataset" not in spec["code"]}


def check(spec, peer, ours):
    if "hangs" in peer:  # Grain repeats the empty shard of a thread for ever
        expect("end", True, "Repeat" in spec["code"] and "multithread_prefetch" in spec["code"])
        return
    if "error" in peer:
        # Grain makes the first datasets of an interleave when its state is asked for.
        if "error" not in ours and "lambda: " in spec["code"]:
            return
        expect("construction", peer, ours)
        return
    if "error" in ours:
        # We refuse some at construction that Grain refuses at the first element.
        run = peer.get("run", {"elements": None})
        expect("construction", {"error": run["end"]} if run["elements"] == [] and run["end"] else "accepted", ours)
        return
    if "length" in peer:
        expect("length", peer["length"], ours["length"])
        if not spec.get("shrunk"):
            expect("length by the rules", spec["node"].length, ours["length"])
        for index, theirs, mine in zip(spec["indices"], peer["indexed"], ours["indexed"], strict=True):
            if theirs != {"error": OVERFLOW} or "andom" not in spec["code"]:  # "random_map_at_negative_index"
                expect(f"[{index}]", theirs, mine)
    if "element_spec" in peer and not lacks(peer["element_spec"]):
        expect("element spec", peer["element_spec"], ours["element_spec"])
    check_next_indices(spec, peer, ours)
    if "run" in peer:
        check_run(spec, peer, ours)


def check_next_indices(spec, peer, ours):
    facts = spec["node"].facts
    if "gaps" in facts:  # "indices_with_gaps"
        return
    for step, (theirs, mine) in enumerate(zip(peer.get("next_index", ()), ours.get("next_index", ()), strict=False)):
        if lacks(theirs) or (lacks(mine) and ("refetch" in spec["code"] or "interleaved" in facts)):  # "indices_behind_threads"
            return
        if is_error(theirs) and mine is None:  # "index_of_the_end"
            expect("set_next_index", theirs, {"error": ["IndexError"]})
            return
        if theirs is None and is_error(mine) and mine["error"][0] == "StateIndexError":  # "index_behind_a_limit"
            return
        if theirs == 0 and "interleaved" in facts:  # "index_of_interleave_at_its_end"
            return
        expect(f"step {step} of next indices", theirs, mine)
        if is_error(theirs):
            return


def check_run(spec, peer, ours):
    facts = spec["node"].facts
    has_full_caches = "CacheIterDataset" in spec["code"] and "RepeatIterDataset" in spec["code"]  # "caches_that_are_full"
    theirs, mine = peer["run"], ours["run"]
    if is_error(peer["start"]):  # a dataset of an interleave could not be made
        return
    # "random_map_at_negative_index", "datasets_that_cannot_be_made"
    is_too_early = theirs["end"] == OVERFLOW and "andom" in spec["code"]
    is_too_early |= theirs["end"] not in (None, STOP) and "lambda: " in spec["code"]
    if is_too_early and len(mine["elements"]) > len(theirs["elements"]):
        expect("elements", theirs["elements"], mine["elements"][: len(theirs["elements"])])
        return
    expect_elements(theirs, mine, 0)
    if mine["end"] == STOP:
        if "ends" not in facts:
            expect("what follows the end", theirs["again"], mine["again"])
    elif mine["end"]:
        # What was left out may count as delivered or not.
        last = without([ours["start"], *mine["states"]][-1], "next_index")
        expect("state after an error", last, without(mine["end_state"], "next_index"))
    their_states, my_states = all_states(peer["start"], theirs), all_states(ours["start"], mine)
    unlike = [i for i, (a, b) in enumerate(zip(their_states, my_states, strict=True)) if not same_state(b, a)]
    if "repeated" in facts:  # "third_epoch_of_interleave"
        for i in unlike if "ends" not in facts else ():
            expect(f"state {i}", without(their_states[i], "exhausted"), without(my_states[i], "exhausted"))
    elif unlike and "ends" not in facts and not has_full_caches:  # "states_at_the_end"
        expect(f"state {unlike[0]}", their_states[unlike[0]], my_states[unlike[0]])
    for position, restored in ours["restored"]:
        if position in unlike and "repeated" in facts:
            continue
        if restored["end"] not in (STOP, theirs["end"]) and "filter_raise_threshold_ratio" in spec["code"]:
            continue  # what earlier restores read counts, here and in Grain
        place = f"after restoring state {position}, {json.dumps(their_states[position])}: "
        expect(place + "success", True, "error" not in restored or restored)
        expect_state(place + "state", their_states[position], restored["state"])
        position = min(position, len(theirs["elements"]))  # that of the end
        expect_elements(theirs, restored, position, place)
        if position not in unlike and not has_full_caches:
            common = [known(mine, theirs) for mine, theirs in zip(my_states, their_states, strict=True)]
            following = list(zip(common[position + 1 :], all_states(None, restored)[1:], strict=True))
            for a, b in following[:-1] if "ends" in facts else following:
                expect_state(place + "following state", a, b)


def all_states(start, run):
    return [start, *run["states"]] + ([run["end_state"]] if run["end"] == STOP else [])


def expect_elements(theirs, mine, start, place=""):
    for i, (a, b) in enumerate(zip(theirs["elements"][start:], mine["elements"], strict=False)):
        expect(f"{place}element {start + i}", a, b)
    expect(f"{place}number of elements", len(theirs["elements"]) - start, len(mine["elements"]))
    ends = [{"error": run["end"]} if run["end"] else None for run in (theirs, mine)]
    expect(f"{place}end", *ends)


def expect_state(what, theirs, mine):
    if not same_state(mine, theirs):
        expect(what, theirs, mine)


def expect(what, theirs, mine):
    """Errors must be of Grain's class."""
    if is_error(theirs) and is_error(mine):
        kind = theirs["error"][0]
        if kind in mine["error"] or (kind == "ZeroDivisionError" and "IndexError" in mine["error"]):  # "empty_index"
            return
    if json.dumps(theirs, sort_keys=True) != json.dumps(mine, sort_keys=True):
        raise Different(f"{what}: {brief(theirs)} in Grain, {brief(mine)} here")


def brief(value):
    text = value["error"][0] if is_error(value) else json.dumps(value)
    return text if len(text) < 1000 else text[:1000] + "..."


def is_error(value):
    return isinstance(value, dict) and "error" in value


def lacks(value):
    return is_error(value) and value["error"][0] == "NotImplementedError"


def without(state, left_out):
    """``state`` without the values of a key, anywhere in it."""
    if isinstance(state, dict):
        return {key: without(value, left_out) for key, value in state.items() if key != left_out}
    return [without(value, left_out) for value in state] if isinstance(state, list) else state


def differences(specs):
    """The pipelines that differ, and how."""
    batches = [specs[i : i + BATCH] for i in range(0, len(specs), BATCH)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = [difference for batch in pool.map(compare, batches) for difference in batch]
    return [(spec, difference) for spec, difference in zip(specs, found, strict=True) if difference]


def simplest(spec, difference):
    """The same with as much left out as possible, as long as anything differs."""
    while True:
        nodes = sorted(smaller(spec["node"]), key=lambda node: len(str(node)))[:BATCH]
        specs = [{**spec, "node": node, "code": str(node), "shrunk": True} for node in nodes]
        found = [pair for pair in zip(specs, compare(specs) if specs else [], strict=True) if pair[1]]
        if not found:
            return spec, difference
        spec, difference = found[0]


def check_equal(specs):
    found = [simplest(*pair) if i < 3 else pair for i, pair in enumerate(differences(specs))]
    assert not found, "\n".join(f"{spec['code']}\n    {difference}" for spec, difference in found)


def random_specs(seed, count):
    rng = Pipelines(seed)
    return [rng.next_spec() for _ in range(count)]


def test_random_datasets():
    seed = os.environ.get("GRISTMILL_PEER_SEED", "20261120")
    check_equal(random_specs(seed, int(os.environ.get("GRISTMILL_PEER_COUNT", "300"))))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_random_datasets():
    check_equal(random_specs("many", 2000))


@pytest.mark.slow
@pytest.mark.timeout(900)  # Grain's processes take their time to start
def test_random_datasets_with_workers():
    rng = Pipelines("workers")
    check_equal([rng.workers_spec() for _ in range(10)])


def test_most_pipelines_work():
    """Otherwise the comparison means little."""
    peers = run("gristmill", [{**spec, "node": None} for spec in random_specs("work", 300)])
    assert sum("error" not in peer for peer in peers) > 0.9 * len(peers)
    runs = [peer["run"] for peer in peers if "run" in peer]
    assert sum(len(found["elements"]) > 2 for found in runs) > 0.5 * len(runs)
    assert sum(found["end"] in (None, STOP) for found in runs) > 0.8 * len(runs)


def test_deviations_that_are_referred_to_exist():
    sources = Path(peer_pipelines.__file__).read_text() + Path(__file__).read_text()
    comments = re.findall(r"  #(.*)", sources)
    names = {name for comment in comments for name in re.findall(r'"([\w*+]+)"', comment)}
    assert len(names) > 20
    assert names <= {*DEVIATIONS, *UNSHOWN, *test_peer.DEVIATIONS}


@pytest.fixture(scope="module")
def deviations():
    specs = [{"kind": "code", "code": _NAMES + textwrap.dedent(code)} for _, code, _, _ in DEVIATIONS.values()]
    return dict(zip(DEVIATIONS, zip(run("grain", specs), run("gristmill", specs), strict=True), strict=True))


@pytest.mark.parametrize("name", DEVIATIONS)
def test_deviation(deviations, name):
    _, _, grain, ours = DEVIATIONS[name]
    assert grain != ours
    assert deviations[name] == (grain, ours)
