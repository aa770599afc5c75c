import numpy as np
from vector_data import load

from gristmill.experimental import RngPool


def test_rng_pool():
    vectors = load("exp_misc")["rng_pool"]
    pool = RngPool(42)
    assert len(vectors["draws"]) == 6
    for case in vectors["draws"]:
        rng = pool.acquire_rng(case["index"], op_seed=case["op_seed"])
        assert rng.bit_generator.state["state"]["key"].tolist() == vectors["key"]
        assert rng.integers(0, 1000, 6).tolist() == case["integers_1000"]
        assert [float(x).hex() for x in rng.random(2)] == case["random"]
        assert [float(x).hex() for x in rng.standard_normal(2)] == case["normal"]
        rng.integers(0, 2**31, dtype=np.uint32)  # half a word stays behind: the next user must not see it
        pool.release_rng(rng)
