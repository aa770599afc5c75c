"""The shares of workers, taken in turn, are what Grain's worker processes deliver."""

import itertools

import pytest
from vector_data import build, load, plain

from gristmill.dataset.slicing import slice_pipeline

ROWS = load("ds_mp_prefetch")["rows"]


def run_share(ds, index, count, **options):
    it = iter(slice_pipeline(ds, index, count, **options))
    it._ctx.worker_index, it._ctx.worker_count = index, count
    return [plain(x) for x in it]


def taken_in_turn(columns):
    missing = object()
    return [x for row in itertools.zip_longest(*columns, fillvalue=missing) for x in row if x is not missing]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['pipeline']} {row['num_workers']}")
def test_elements(row):
    count, options = row["num_workers"], {"sequential": row.get("sequential_slice", False)}
    elements = taken_in_turn([run_share(build(row["pipeline"]), i, count, **options) for i in range(count)])
    if ".map_with_index(" in row["pipeline"]:
        # Grain counts 0, 1, … in every worker; here the count does not depend on the number of workers.
        assert row["elements"] == [[0, 0], [0, 1], [1, 2], [1, 3], [2, 4]]
        assert elements == [[i, i] for i in range(5)]
    else:
        assert elements == row["elements"]


def test_what_the_rows_hold():
    assert len(ROWS) == 20
    assert sum(row.get("sequential_slice", False) for row in ROWS) == 2
