"""The reason for a reader of Parquet footers: pyarrow ends the interpreter where one is damaged."""

import io
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gristmill.sources import DamagedFileError, ParquetSource
from gristmill.sources.parquet_footer import NullCounts

pa = pytest.importorskip("pyarrow", minversion="26", reason="older ones may read this damage")
pq = pytest.importorskip("pyarrow.parquet")
PROGRAM = Path(__file__).with_name("read_footer.py")


@pytest.fixture
def damaged():
    """Return a file with an optional column that its schema says is required."""
    file = io.BytesIO()
    pq.write_table(pa.table({"x": pa.array([1, None, 3], pa.int64())}), file, store_schema=False)
    content = file.getvalue()
    found = content.replace(b"%\x02\x18\x01x", b"%\x00\x18\x01x", 1)
    assert found != content
    return found


def test_pyarrow_still_ends_the_interpreter(damaged, tmp_path):
    (tmp_path / "x.parquet").write_bytes(damaged)
    command = [sys.executable, PROGRAM, tmp_path / "x.parquet"]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert process.returncode == -signal.SIGABRT, (
        "pyarrow raises an error for a damaged footer now, or reads it, so its metadata can take "
        f"the place of gristmill.sources.parquet_footer: {process.stdout} {process.stderr}"
    )


def test_our_reader_reads_the_damaged_footer(damaged, tmp_path):
    length = int.from_bytes(damaged[-8:-4], "little")
    assert NullCounts(damaged[-8 - length : -8]).of_group(0) == [1]
    (tmp_path / "x.parquet").write_bytes(damaged)
    source = ParquetSource(tmp_path / "x.parquet")
    with pytest.raises(DamagedFileError, match="cannot be read as Parquet"):
        source[0]
