"""``HuggingFaceSource``: every row is the data set's own, in every format, alone and in blocks, in
any thread and process.
"""

import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from refusing import assert_raises

from gristmill.core.errors import KeyRangeError
from gristmill.sources import HuggingFaceSource
from gristmill.sources.reading import read_keys

os.environ["HF_HUB_OFFLINE"] = "1"
datasets = pytest.importorskip("datasets")
NUM_ROWS = 23


def columns():
    rng = random.Random(0)
    return {
        "x": list(range(NUM_ROWS)),
        "small": [float(i) / 3 for i in range(NUM_ROWS)],
        "some": [None if i % 4 == 1 else i for i in range(NUM_ROWS)],
        "flag": [i % 3 == 0 for i in range(NUM_ROWS)],
        "text": ["é" * (i % 5) + "\0" * (i % 2) for i in range(NUM_ROWS)],
        "raw": [bytes([i]) * (i % 3) for i in range(NUM_ROWS)],
        "ragged": [[rng.random() for _ in range(i % 4)] for i in range(NUM_ROWS)],
        "even": [[i, i + 1] for i in range(NUM_ROWS)],
        "deep": [{"a": [{"b": i}] * (i % 3), "c": None if i % 2 else "c"} for i in range(NUM_ROWS)],
        "grid": [[[i, 1], [2, None if i == 5 else 3]] for i in range(NUM_ROWS)],
        "label": [i % 2 for i in range(NUM_ROWS)],
    }


FEATURES = {"small": datasets.Value("float32"), "label": datasets.ClassLabel(names=["no", "yes"])}


def in_memory():
    ds = datasets.Dataset.from_dict(columns())
    return ds.cast(datasets.Features({**ds.features, **FEATURES}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("hugging_face")
    in_memory().save_to_disk(path, num_shards=3)
    return path


def lengths_of(rows):
    return {
        "lengths": [len(text) for text in rows["text"]],
        "together": [len(rows["x"])] * len(rows["x"]),
    }


FORMATS = {
    "none": lambda ds: ds,
    "numpy": lambda ds: ds.with_format("numpy"),
    "numpy columns": lambda ds: ds.with_format("numpy", columns=["text", "small", "x"]),
    "numbers": lambda ds: ds.with_format("numpy", columns=["label", "x"]),
    "numpy dtype": lambda ds: ds.select_columns(["x", "even"]).with_format("numpy", dtype="int16"),
    "all columns": lambda ds: ds.with_format("numpy", columns=["x"], output_all_columns=True),
    "columns": lambda ds: ds.with_format(columns=["text", "ragged"]),
    "jax": lambda ds: ds.with_format("jax", columns=["x", "ragged"]),
    "arrow": lambda ds: ds.with_format("arrow"),
    "pandas": lambda ds: ds.with_format("pandas"),
    "transform": lambda ds: ds.with_transform(lengths_of),
    "grid": (
        lambda ds: ds.select_columns(["x"]).add_column(
            "g", [[[i]] for i in range(len(ds))], feature=GRID
        )
    ),
    "selected": lambda ds: ds.select([5, 3, 8, 1, 7]).with_format("numpy"),
    "shuffled": lambda ds: ds.shuffle(seed=1),
}
GRID = datasets.Array2D(shape=(1, 1), dtype="int32")


def plain(value):
    """``value`` with all its types, comparable by ``==``."""
    if isinstance(value, dict):
        return [(name, plain(item)) for name, item in value.items()]
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return type(value), value.dtype, value.shape, plain(value.tolist())
    if hasattr(value, "to_pylist"):
        return type(value), value.schema, repr(value.to_pylist())
    return type(value), getattr(value, "dtype", None), repr(value)


@pytest.mark.parametrize("chosen", FORMATS)
def test_rows_are_the_data_sets_own_in_every_format(chosen, folder):
    if chosen == "jax":
        pytest.importorskip("jax")
    for ds in (datasets.load_from_disk(folder), in_memory()):
        formatted = FORMATS[chosen](ds)
        source = HuggingFaceSource(formatted)
        expected = [plain(formatted[i]) for i in range(len(formatted))]
        assert [plain(source[i]) for i in range(len(source))] == expected
        rng = random.Random(2)
        for size in (0, 1, 2, 3, 7, 40):
            keys = [rng.randrange(len(formatted)) for _ in range(size)]
            assert [plain(row) for row in source.__getitems__(keys)] == [
                expected[key] for key in keys
            ]
            assert len(read_keys(source, [np.int32(key) for key in keys])) == size


def test_data_sets_without_rows():
    ds = datasets.Dataset.from_dict({"x": [1, 2, 3]})
    for empty in (HuggingFaceSource(ds.select([])), HuggingFaceSource(ds.remove_columns("x"))):
        assert len(empty) == 0 and "0 rows" in repr(empty) and empty.__getitems__([]) == []
        assert_raises(KeyRangeError, r"must be in \[0, 0\)", lambda empty=empty: empty[0])


def test_the_text_identifies_the_data_in_every_run_and_folder(folder, tmp_path):
    text = repr(HuggingFaceSource(datasets.load_from_disk(folder)))
    datasets.load_from_disk(folder).save_to_disk(tmp_path / "copy")
    assert repr(HuggingFaceSource(datasets.load_from_disk(tmp_path / "copy"))) == text
    assert repr(HuggingFaceSource(in_memory())) == text
    assert len(pickle.dumps(HuggingFaceSource(datasets.load_from_disk(folder)))) < 5000
    command = [sys.executable, Path(__file__).with_name("print_hugging_face.py"), folder]
    assert (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == text
    )
    seen = {text}
    for other in (
        in_memory().select(range(NUM_ROWS - 1)),
        in_memory().shuffle(seed=1),
        in_memory().rename_column("x", "y"),
        in_memory().with_format("numpy"),
        in_memory().with_format("numpy", columns=["x"]),
        in_memory().with_transform(lengths_of),
    ):
        assert repr(HuggingFaceSource(other)) not in seen
        seen.add(repr(HuggingFaceSource(other)))


NO_INDEX = "got IterableDataset: it has no random access: use HuggingFaceIterDataset"
WRONG = [
    (lambda ds: datasets.DatasetDict(test=ds), r"choose one of its splits.* dataset\['test'\]"),
    (lambda ds: ds.to_iterable_dataset(), NO_INDEX),
    (lambda ds: "imdb", r"got str: load it: datasets\.load_dataset"),
    (lambda ds: [1, 2], "got list: other sources need no wrapper"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_what_is_no_data_set_is_refused_with_a_remedy(wrong, message):
    text = f"dataset must be a datasets.Dataset, .*{message}"
    assert_raises(TypeError, text, HuggingFaceSource, wrong(in_memory()))


def test_errors_of_the_library_and_of_transforms_come_through(folder, tmp_path):
    def fail(rows):
        raise ValueError(f"row {rows['x']} is bad")

    source = HuggingFaceSource(in_memory().with_transform(fail))
    assert_raises(ValueError, r"row \[3\] is bad", source.__getitems__, [3, 4])
    datasets.load_from_disk(folder).save_to_disk(tmp_path / "gone")
    copied = pickle.dumps(HuggingFaceSource(datasets.load_from_disk(tmp_path / "gone")))
    for file in (tmp_path / "gone").glob("*.arrow"):
        file.unlink()
    assert_raises(FileNotFoundError, "gone", pickle.loads, copied)
