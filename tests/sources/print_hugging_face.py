"""Program: print the text of a source of a data set of Hugging Face. Argument: its folder."""

import sys

import datasets

from gristmill.sources import HuggingFaceSource

print(HuggingFaceSource(datasets.load_from_disk(sys.argv[1])))
