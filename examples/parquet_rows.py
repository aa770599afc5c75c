"""Rows of Parquet files in a shuffled order, with a bound on memory; stopped in the middle and
resumed.

It makes files of readings of sensors first. To run it: python examples/parquet_rows.py
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

import gristmill as grain
from gristmill.sources import ParquetSource

ROWS = 1000  # of a row group


def write(folder: Path, num_files: int = 4) -> None:
    """Files of some row groups each. Rows of the same sensor are together: the worst order to train
    in.
    """
    rng = np.random.default_rng(0)
    for number in range(num_files):
        size = 5 * ROWS
        columns = {
            "sensor": np.full(size, number),
            "readings": pyarrow.array(list(rng.normal(size=(size, 16)).astype(np.float32))),
            "comment": ["a text that training does not need"] * size,
        }
        pyarrow.parquet.write_table(
            pyarrow.table(columns), folder / f"sensor-{number}.parquet", row_group_size=ROWS
        )


def pipeline(source: ParquetSource) -> grain.IterDataset:
    """Batches. A block is a row group, so each of these is decoded once an epoch, and eight of them
    are mixed.
    """
    ds = grain.MapDataset.source(source).seed(7).block_shuffle(ROWS, group_size=8)
    return ds.repeat(2).to_iter_dataset().batch(500, drop_remainder=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--max-bytes",
        type=int,
        default=200_000,
        help="of decoded row groups (default: %(default)s)",
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        source = ParquetSource(
            f"{folder}/sensor-*.parquet",
            columns=["sensor", "readings"],
            max_bytes=arguments.max_bytes,
        )
        print(
            f"{len(source)} rows; one of them: sensor {source[12_345]['sensor']},"
            f" {source[12_345]['readings'].shape[0]} readings"
        )

        it = iter(pipeline(source))
        batches = [next(it) for _ in range(10)]
        mixed = [len(np.unique(batch["sensor"])) for batch in batches]
        print(
            f"batches of {batches[0]['readings'].shape}, each of {min(mixed)} to {max(mixed)}"
            " sensors"
        )
        assert source.kept_bytes <= arguments.max_bytes, source.kept_bytes
        state = it.get_state()
        expected = [next(it) for _ in range(30)]
        it.close()

        again = iter(
            pipeline(ParquetSource(f"{folder}/sensor-*.parquet", columns=["sensor", "readings"]))
        )
        again.set_state(state)
        same = all(np.array_equal(next(again)["readings"], batch["readings"]) for batch in expected)
        print("resumed: the same 30 batches" if same else "resumed: OTHER batches")
        again.close()


if __name__ == "__main__":
    main()
