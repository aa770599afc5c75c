"""The example of tar shards, run as a reader runs it."""

import re

import pytest
from running import run_example

pytestmark = pytest.mark.timeout(500)


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_shards_are_shuffled_and_training_resumes(tmp_path, num_workers):
    output = run_example(
        "tar_shards.py", "--records", 40, "--steps", 20, "--workers", num_workers, "--out", tmp_path
    )
    assert (
        "resumed after step 10" in output
        and "320 records in 8 shards" in output
        and "means of both runs: bit-identical" in output
    )
    (discs,) = re.findall(r"discs in the first batch: (\d+) of 32", output)
    assert 5 < int(discs) < 27  # one shard alone has none, or nothing else
    assert int(re.findall(r"(\d+)% of 46 shapes", output)[0]) > 85
    assert len([*tmp_path.glob("*.gmidx")]) == 8
