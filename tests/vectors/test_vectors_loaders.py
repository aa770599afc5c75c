"""Samplers and ``DataLoader``: records, elements and states as Grain has them."""

import json
import logging
import sys
from itertools import islice

import cloudpickle
import numpy as np
import pytest
from operations import operation
from refusing import assert_raises
from vector_data import load, plain

import gristmill as grain
from gristmill import transforms as t
from gristmill.samplers import IndexSampler, SequentialSampler
from gristmill.sharding import NoSharding, ShardOptions, even_split

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # which workers would import
CASES, SAMPLERS = load("data_loader")["cases"], load("samplers")["cases"]
SHARDING, SPLITS = load("data_loader_sharding")["cases"], load("even_split")["cases"]


def test_how_many_cases_there_are():
    assert (len(CASES), len(SAMPLERS), len(SHARDING), len(SPLITS)) == (46, 124, 36, 156)
    assert [case["worker_count"] for case in CASES] == [0] * 15 + [2] * 15 + [3] * 15 + [1]
    assert [case["operations"] for case in CASES[15:30]] == [
        case["operations"] for case in CASES[30:45]
    ]
    assert len([case for case in CASES if "fan" in case["operations"]]) == 3


@pytest.fixture(autouse=True)
def without_warnings(caplog):
    caplog.set_level(logging.ERROR, "gristmill")


DRAWS = {
    "raw": lambda rng: rng.bit_generator.random_raw(2).tolist(),
    "permutation_5": lambda rng: rng.permutation(5).tolist(),
}
DRAWS |= {"random": lambda rng: rng.random().hex(), "normal": lambda rng: rng.normal().hex()}
DRAWS |= {
    "integers_1000": lambda rng: int(rng.integers(1000)),
    "integers_0_2e32": lambda rng: int(rng.integers(0, 2**32)),
}


def test_samplers_and_how_records_are_split():
    for case in SPLITS:
        count, drop = case["shard_count"], case["drop_remainder"]
        intervals = [
            even_split(case["num_examples"], ShardOptions(i, count, drop)) for i in range(count)
        ]
        assert intervals == [tuple(interval) for interval in case["intervals"]]
    num_draws = num_defaults = 0
    for case in SAMPLERS:
        shard = case["shard_options"]
        kwargs = case["kwargs"] | (
            {} if shard is None else {"shard_options": ShardOptions(**shard)}
        )
        num_defaults += shard is None
        sampler = {"IndexSampler": IndexSampler, "SequentialSampler": SequentialSampler}[
            case["sampler"]
        ](**kwargs)
        assert (repr(sampler), len(sampler)) == (case["repr"], case["length"])
        there = [[index, key] for index, key in case["index_to_record_key"] if key != "IndexError"]
        assert [[m.index, m.record_key] for m in [sampler[index] for index, _ in there]] == there
        assert [
            [m.index, m.record_key] for m in sampler._block([index for index, _ in there])
        ] == there
        for index, _ in [pair for pair in case["index_to_record_key"] if pair[1] == "IndexError"]:
            assert_raises(IndexError, None, sampler.__getitem__, index)
        for index, draws in case.get("rng") or []:
            found = (
                {kind: draw(sampler[index].rng) for kind, draw in DRAWS.items()}
                if draws
                else sampler[index].rng
            )
            assert found == draws, (case["repr"], index)
            num_draws += len(draws or ())
    assert num_draws == 52 * len(DRAWS) and num_defaults
    assert IndexSampler(3)._shard_options == SequentialSampler(3)._shard_options == NoSharding()


def fan(element):
    for j in range(element % 4):
        yield element * 10 + j


def of_token(token):
    name, _, size = token.partition(":")
    if name.startswith("batch"):
        return t.Batch(int(size or 1), drop_remainder=name == "batch_drop")
    return {
        "plus_one": operation(t.Map, "map", lambda x: x + 1),
        "even": operation(t.Filter, "filter", lambda x: x % 2 == 0),
        "not3": operation(t.Filter, "filter", lambda x: x % 3 != 0),
        "fan": operation(grain.experimental.FlatMapTransform, "flat_map", fan, max_fan_out=3),
        "rand": operation(
            t.RandomMap, "random_map", lambda x, rng: x * 10**6 + int(rng.integers(10**6))
        ),
        "rand2": operation(
            t.RandomMap, "random_map", lambda x, rng: x * 10 + int(rng.integers(10))
        ),
        "rand_batch": operation(
            t.RandomMap, "random_map", lambda x, rng: np.append(x, rng.integers(1000000))
        ),
    }[name]


def make_loader(case, read_options=None):
    num, shard = case["num_records"], case["sampler_shard"]
    shard = NoSharding() if shard is None else ShardOptions(*shard)
    sequential = SequentialSampler(num, shard, case["seed"])
    shuffled = IndexSampler(num, shard, case["shuffle"], case["num_epochs"], case["seed"])
    return grain.DataLoader(
        data_source=grain.sources.RangeDataSource(0, num, 1),
        sampler=shuffled if case["sampler"] == "index" else sequential,
        operations=[of_token(token) for token in case["operations"]],
        shard_options=None if case["loader_shard"] is None else ShardOptions(*case["loader_shard"]),
        worker_count=case["worker_count"],
        read_options=read_options,
    )


def full_state(case, state):
    """The bytes of a state that the vectors abbreviate."""
    # all of Grain's state; ours says beside it which loader it belongs to
    if "fan" in case["operations"]:
        source = f"RangeDataSource(start=0, stop={case['num_records']}, step=1)"
        origin = {
            "worker_count": case["worker_count"],
            "sampler": repr(make_loader(case)._sampler),
            "data_source": source,
        }
        return json.dumps({**state, **origin}, indent=4).encode()
    last_seen = {str(worker): index for worker, index in enumerate(state[0])}
    return json.dumps(
        {**case["initial_state"], "last_seen_indices": last_seen, "last_worker_index": state[1]},
        indent=4,
    ).encode()


# Of 2 and of 3 workers at the same pipeline, one in turn is enough for a quick run: they take long.
IN_TURN = [
    i if i % 2 == 0 or case["worker_count"] < 2 else pytest.param(i, marks=pytest.mark.slow)
    for i, case in enumerate(CASES)
]


@pytest.mark.parametrize("number", IN_TURN)
def test_outputs_and_states(number):
    case, missing = CASES[number], object()
    loader, output = make_loader(case, grain.ReadOptions(3 * (number % 2), 7)), case["output"]
    states = [full_state(case, state) for state in case["states"]]
    assert (
        "fan" in case["operations"]
        or states[0] == json.dumps(case["initial_state"], indent=4).encode()
    )
    it = iter(loader)
    assert it.get_state() == states[0]
    for element, state in zip(output, states[1:], strict=True):
        assert plain(next(it)) == element
        assert it.get_state() == state
        assert str(it) == f"PyGrainDatasetIterator(state={it.get_state().decode()})"
    if case["ends"]:
        states.append(full_state(case, case["state_after_end"]))
        for _ in range(2):
            assert next(it, missing) is missing
            assert it.get_state() == states[-1]
    else:
        assert len(output) == case["limit"]
    used = it
    for position, text in enumerate(states):
        if case["worker_count"] and (position + number // 2) % 2:
            continue  # of the other number of workers it is this one
        is_given_text = position % 3 != (number + 1) % 3
        it = (
            used
            if position % 3 == number % 3
            else grain.DataLoaderIterator(loader, None if is_given_text else json.loads(text))
        )
        if is_given_text:
            it.set_state(text)
        assert it.get_state() == text
        assert [
            plain(x) for x in islice(it, None if case["ends"] else len(output) - position)
        ] == output[position:]
        del it  # its workers serve the next one


def test_sharding():
    """Each shard gets what Grain after 0.2.18 gives it, but an empty one no elements, no
    ``ZeroDivisionError`` (01 §5.3).
    """
    for case in SHARDING:
        num_records, count, drop = case["num_records"], case["shard_count"], case["drop_remainder"]
        of_indices = case["sampler"] == "index"
        for index, upstream in enumerate(case["upstream_after_0_2_18"]):
            options = ShardOptions(index, count, drop)
            epochs = {"num_epochs": case["num_epochs"]} if of_indices else {}
            sampler = (IndexSampler if of_indices else SequentialSampler)(
                num_records, options, **epochs
            )
            loader = grain.DataLoader(
                data_source=grain.sources.RangeDataSource(0, num_records, 1), sampler=sampler
            )
            output = list(loader)
            # epochs of its own slice: Grain cuts or fills them
            if of_indices and not drop and case["num_epochs"] > 1:
                assert (
                    output == list(range(*even_split(num_records, options))) * case["num_epochs"]
                ), case
                if upstream != "ZeroDivisionError":
                    shorter = min(len(output), len(upstream))
                    assert abs(len(output) - len(upstream)) <= 1
                    assert output[:shorter] == upstream[:shorter]
            else:
                assert output == upstream, case
                grains = case["grain_0_2_18"][index]
                assert output[: len(grains)] == grains  # which drops the remainder always
