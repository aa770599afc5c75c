import copy
import json
import logging
from itertools import islice

import numpy as np
import pytest
from vector_data import load, plain

import gristmill as grain

CASES = load("data_loader")["cases"]


class PlusOne(grain.transforms.Map):
    def map(self, element):
        return element + 1


class Keep(grain.transforms.Filter):
    def __init__(self, condition):
        self.condition = condition

    def filter(self, element):
        return self.condition(element)


class Draw(grain.transforms.RandomMap):
    def __init__(self, bound):
        self.bound = bound

    def random_map(self, element, rng):
        return element * self.bound + int(rng.integers(self.bound))


class Fan(grain.experimental.FlatMapTransform):
    max_fan_out = 3

    def flat_map(self, element):
        for j in range(element % 4):
            yield element * 10 + j


class AppendDraw(grain.transforms.RandomMap):
    def random_map(self, element, rng):
        return np.append(element, rng.integers(1000000))


def operation(token):
    name, _, size = token.partition(":")
    return {
        "plus_one": PlusOne(),
        "even": Keep(lambda x: x % 2 == 0),
        "not3": Keep(lambda x: x % 3 != 0),
        "fan": Fan(),
        "rand": Draw(1000000),
        "rand2": Draw(10),
        "rand_batch": AppendDraw(),
        "batch": grain.transforms.Batch(int(size or 1)),
        "batch_drop": grain.transforms.Batch(int(size or 1), drop_remainder=True),
    }[name]


def shard(options):
    return None if options is None else grain.sharding.ShardOptions(*options)


def make_loader(case, **kwargs):
    sampler_shard = shard(case["sampler_shard"]) or grain.sharding.NoSharding()
    if case["sampler"] == "index":
        sampler = grain.samplers.IndexSampler(
            case["num_records"], sampler_shard, case["shuffle"], case["num_epochs"], case["seed"]
        )
    else:
        sampler = grain.samplers.SequentialSampler(case["num_records"], sampler_shard, case["seed"])
    return grain.DataLoader(
        data_source=grain.sources.RangeDataSource(0, case["num_records"], 1),
        sampler=sampler,
        operations=[operation(token) for token in case["operations"]],
        shard_options=shard(case["loader_shard"]),
        worker_count=case["worker_count"],
        **kwargs,
    )


def full_state(case, state):
    """The bytes of a state that the vectors abbreviate.

    With a flat map they hold all of Grain's state; ours says beside it which loader it belongs to.
    """
    if has_flat_map(case):
        origin = {
            "worker_count": case["worker_count"],
            "sampler": repr(make_loader(case)._sampler),
            "data_source": f"RangeDataSource(start=0, stop={case['num_records']}, step=1)",
        }
        return json.dumps({**state, **origin}, indent=4).encode()
    last_seen, last_worker_index = state
    expected = copy.deepcopy(case["initial_state"])
    expected["last_seen_indices"] = {str(worker): index for worker, index in enumerate(last_seen)}
    expected["last_worker_index"] = last_worker_index
    return json.dumps(expected, indent=4).encode()


def has_flat_map(case):
    return "fan" in case["operations"]


def test_no_case_is_left_out():
    assert len(CASES) == 46
    assert len([case for case in CASES if case["worker_count"]]) == 31
    assert len([case for case in CASES if has_flat_map(case)]) == 3


@pytest.mark.parametrize("number", range(len(CASES)))
def test_outputs_and_states(number):
    case = CASES[number]
    loader = make_loader(case, read_options=grain.ReadOptions(3 * (number % 2), 7))
    it = iter(loader)
    if not has_flat_map(case):
        assert it.get_state() == json.dumps(case["initial_state"], indent=4).encode()
    assert it.get_state() == full_state(case, case["states"][0])
    for output, state in zip(case["output"], case["states"][1:], strict=True):
        assert plain(next(it)) == output
        assert it.get_state() == full_state(case, state)
        assert str(it) == f"PyGrainDatasetIterator(state={it.get_state().decode()})"
    if case["ends"]:
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(it)
            assert it.get_state() == full_state(case, case["state_after_end"])
    else:
        assert len(case["output"]) == case["limit"]
    it.close()


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_recorded_state_restores(number):
    case = CASES[number]
    loader = make_loader(case, read_options=grain.ReadOptions(2, 5))  # not far ahead: each epoch of few records takes 2 ms
    used = iter(loader)
    for position, state in enumerate(case["states"]):
        text = full_state(case, state)
        rest = case["output"][position:]
        fresh = iter(loader)
        fresh.set_state(text)
        used.set_state(text)
        for it in (fresh, grain.DataLoaderIterator(loader, json.loads(text)), used):
            assert it.get_state() == text
            if case["ends"]:
                assert [plain(x) for x in it] == rest
            else:
                assert [plain(x) for x in islice(it, len(rest))] == rest
            del it  # its workers serve the next one
    if case["ends"]:
        used.set_state(full_state(case, case["state_after_end"]))
        assert list(used) == []


@pytest.mark.parametrize("case", load("data_loader_sharding")["cases"], ids=str)
def test_sharding(case, caplog):
    """Each shard gets what Grain after 0.2.18 gives it, but for the two points that 04 §3.3 decides otherwise.

    Several epochs without ``drop_remainder`` of an ``IndexSampler``: exactly the epochs of the shard's own slice, where
    Grain cuts long shards short and gives short ones records of another epoch. An empty shard: no elements, no
    ``ZeroDivisionError`` (01 §5.3).
    """
    caplog.set_level(logging.ERROR, "gristmill")
    num_records, count, drop = case["num_records"], case["shard_count"], case["drop_remainder"]
    for index, upstream in enumerate(case["upstream_after_0_2_18"]):
        options = grain.sharding.ShardOptions(index, count, drop)
        sampler = (
            grain.samplers.IndexSampler(num_records, options, num_epochs=case["num_epochs"])
            if case["sampler"] == "index"
            else grain.samplers.SequentialSampler(num_records, options)
        )
        loader = grain.DataLoader(data_source=grain.sources.RangeDataSource(0, num_records, 1), sampler=sampler)
        output = list(loader)
        if case["sampler"] == "index" and not drop and case["num_epochs"] > 1:
            start, end = grain.sharding.even_split(num_records, options)
            assert output == list(range(start, end)) * case["num_epochs"]
            if upstream != "ZeroDivisionError":
                shorter = min(len(output), len(upstream))
                assert abs(len(output) - len(upstream)) <= 1
                assert output[:shorter] == upstream[:shorter]
        else:
            assert output == upstream
            grains = case["grain_0_2_18"][index]
            assert output[: len(grains)] == grains  # which drops the remainder always


def test_no_sharding_case_is_left_out():
    assert len(load("data_loader_sharding")["cases"]) == 36
