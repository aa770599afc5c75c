"""Program: reads the metadata of a column of a Parquet file by pyarrow, and prints its error."""

import sys

import pyarrow.parquet

metadata = pyarrow.parquet.read_metadata(sys.argv[1])
try:
    print(metadata.row_group(0).column(0))
except Exception as error:
    print(repr(error))
