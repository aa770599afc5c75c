import logging

from vector_data import load

from gristmill.samplers import IndexSampler, SequentialSampler
from gristmill.sharding import NoSharding, ShardOptions, even_split

DRAWS = {
    "raw": lambda rng: rng.bit_generator.random_raw(2).tolist(),
    "random": lambda rng: rng.random().hex(),
    "integers_1000": lambda rng: int(rng.integers(1000)),
    "integers_0_2e32": lambda rng: int(rng.integers(0, 2**32)),
    "normal": lambda rng: rng.normal().hex(),
    "permutation_5": lambda rng: rng.permutation(5).tolist(),
}


def test_even_split(caplog):
    cases = load("even_split")["cases"]
    assert len(cases) == 156
    caplog.set_level(logging.ERROR, "gristmill")  # dropping a remainder logs a warning
    for case in cases:
        count, drop = case["shard_count"], case["drop_remainder"]
        intervals = [even_split(case["num_examples"], ShardOptions(i, count, drop)) for i in range(count)]
        assert intervals == [tuple(interval) for interval in case["intervals"]]


def make_sampler(case):
    kwargs = dict(case["kwargs"])
    if case["shard_options"] is not None:
        kwargs["shard_options"] = ShardOptions(**case["shard_options"])
    return {"IndexSampler": IndexSampler, "SequentialSampler": SequentialSampler}[case["sampler"]](**kwargs)


def test_samplers(caplog):
    caplog.set_level(logging.ERROR, "gristmill")
    cases = load("samplers")["cases"]
    assert len(cases) == 124
    num_draws = 0
    for case in cases:
        sampler = make_sampler(case)
        assert repr(sampler) == case["repr"]
        assert len(sampler) == case["length"]
        for index, expected in case["index_to_record_key"]:
            try:
                metadata = sampler[index]
            except IndexError:
                assert expected == "IndexError", (case["repr"], index)
            else:
                assert (metadata.index, metadata.record_key) == (index, expected), (case["repr"], index)
        for index, draws in case.get("rng") or []:
            if draws is None:
                assert sampler[index].rng is None
                continue
            assert draws.keys() == DRAWS.keys()
            for kind, value in draws.items():
                assert DRAWS[kind](sampler[index].rng) == value, (case["repr"], index, kind)
                num_draws += 1
    assert num_draws == 52 * len(DRAWS)


def test_blocks_give_what_single_indices_give():
    for case in load("samplers")["cases"]:
        sampler = make_sampler(case)
        pairs = [(index, key) for index, key in case["index_to_record_key"] if key != "IndexError"]
        if pairs:
            block = sampler._block([index for index, _ in pairs])
            assert [(m.index, m.record_key) for m in block] == pairs


def test_no_sharding_is_the_default():
    assert any(case["shard_options"] is None for case in load("samplers")["cases"])
    assert IndexSampler(3)._shard_options == SequentialSampler(3)._shard_options == NoSharding()
