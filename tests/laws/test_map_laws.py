"""Laws of map stages: a block is what single accesses give, and both are what the formulas say."""

import random

import numpy as np
import pytest
from entry import plain
from stage_table import MAP_ENTRIES

from gristmill.testing import assert_map_dataset_conforms

by_name = {"ids": lambda entry: entry.name}
each_entry = pytest.mark.parametrize("entry", MAP_ENTRIES, **by_name)
each_endless_entry = pytest.mark.parametrize(
    "entry", [entry for entry in MAP_ENTRIES if entry.endless], **by_name
)


def index_blocks(n):
    """Blocks of every form that a consumer may hand over."""
    yield from (
        range(n),
        range(-2 * n, 3 * n),
        range(3 * n, -2 * n, -1),
        range(1, 4 * n, max(n - 1, 1)),
    )
    yield from (range(-1, -2, -1), range(-n - 1, -n + 2))
    yield from ([5], [-1, 0, -1, 0, n, n - 1, -n, 3 * n + 1, -1], [0] * 7)
    yield from (np.arange(-n, 2 * n), np.array([7, -7, 7, 0, 10**12, -(10**12)]), np.array([3]))
    for far in (2**31, 2**32, 2**53, 2**62, 2**63 - 40):
        yield from (range(far - 3, far + 3), range(-far + 3, -far - 3, -1))
        yield from ([far, -far, 0, far + 1], np.array([far, -far, 0, far + 1]))
    yield np.array([2**63 - 1, -(2**63), 0, -1])
    yield from (np.arange(2**63 - 25, 2**63 - 1), np.arange(-(2**63), -(2**63) + 25))
    for beyond in (2**63, 2**64, 2**65 + 1, 10**30):
        yield from (range(beyond - 3, beyond + 3), [beyond, -beyond, 1], [beyond])
        yield np.array([beyond, -beyond, 1], dtype=object)


@each_endless_entry
def test_block_equals_single_accesses_and_the_model(entry):
    ds = entry.make()
    for indices in index_blocks(entry.length):
        numbers = [int(i) for i in indices]
        expected = [plain(entry.model(i)) for i in numbers]
        assert [plain(x) for x in ds._gm_items(indices)] == expected, indices
        assert [plain(ds[i]) for i in numbers] == expected, indices
        assert [int(i) for i in indices] == numbers  # arrays are left alone


@each_endless_entry
def test_elements_are_computed_one_after_the_other(entry):
    ds, n = entry.make(), entry.length
    blocks = (
        range(n),
        range(-2, 2 * n),
        range(n, -3, -1),
        [5, 0, 0, -1],
        np.array([3, 2**40, 1]),
        range(2**62, 2**62 + 4),
    )
    for indices in blocks:
        expected = [plain(entry.model(int(i))) for i in indices]
        for num_taken in {0, 1, len(expected) // 2, len(expected)}:
            todo = [*range(len(expected))]
            pairs = zip(todo, ds._gm_items(indices), strict=False)
            got = [plain(next(pairs)[1]) for _ in range(num_taken)]
            del todo[num_taken + 1 :]
            assert got + [plain(x) for _, x in pairs] == expected[: num_taken + 1]


@each_entry
def test_one_epoch_in_blocks_of_any_kind(entry):
    ds, n = entry.make(), entry.length
    assert len(ds) == n
    expected = [plain(entry.model(i)) for i in range(n)]
    for size in range(1, n + 1) if n < 100 else (1, 7, n - 1, n):
        got = [
            x
            for start in range(0, n, size)
            for x in ds._gm_items(range(start, min(start + size, n)))
        ]
        assert [plain(x) for x in got] == expected
    order = random.Random(n).choices(range(n), k=3 * n)
    for block in (order, np.array(order)):
        assert [plain(x) for x in ds._gm_items(block)] == [expected[i] for i in order]
    for index in (np.int64(2), np.int8(2), np.uint64(2), True):
        assert plain(ds[index]) == plain(ds[int(index)])
    with pytest.raises(TypeError):  # NumPy's own booleans are no integers
        ds[np.bool_(False)]


@pytest.mark.filterwarnings("ignore:.*takes every n-th element")
@each_entry
def test_it_conforms(entry):
    assert_map_dataset_conforms(entry.make(), max_elements=10, endless=entry.endless)
