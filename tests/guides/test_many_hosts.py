"""What the page on many hosts says of evaluations holds for any data, filter, number of hosts and size of batches."""

import itertools
from pathlib import Path

import pytest
from notebooks import blocks_of

import gristmill as grain

PAGE = Path(__file__).parents[2] / "docs/guides/many_hosts.md"


def functions_of_the_page():
    (block,) = [block for block in blocks_of(PAGE) if "def pad_to_multiple" in block.code]
    namespace = {"grain": grain}
    exec(block.code[block.code.index("def ") : block.code.index("even = ")], namespace)
    return namespace


KEEP = {"all": lambda x: True, "some": lambda x: x % 3 == 1, "late": lambda x: x >= 4, "one": lambda x: x == 5}


@pytest.mark.parametrize("keep", KEEP.values(), ids=KEEP)
@pytest.mark.parametrize("num_hosts", [1, 2, 3, 5])
def test_an_evaluation_sees_every_record_once_in_equally_many_batches(keep, num_hosts):
    pad_to_multiple = functions_of_the_page()["pad_to_multiple"]
    for length, batch_size in itertools.product((6, 7, 13, 24), (1, 2, 4)):
        test_set = grain.MapDataset.range(length).map(lambda x: (x, -x)).filter(lambda x: keep(x[0]))
        even = pad_to_multiple(test_set, num_hosts * batch_size)
        shares = [list(even[i::num_hosts].to_iter_dataset().batch(batch_size)) for i in range(num_hosts)]
        assert len({len(share) for share in shares}) == 1
        assert {len(batch["counts"]) for share in shares for batch in share} == {batch_size}
        rows = [(*batch["x"], batch["counts"]) for share in shares for batch in share]
        seen = [(int(a), int(b)) for row in rows for a, b, counts in zip(*row, strict=True) if counts]
        assert sorted(seen) == [(x, -x) for x in range(length) if keep(x)]
