"""Batching by the vectors. Run as a program it does so without JAX in the process; as a module, with what is imported."""

import sys
from typing import Any

import numpy as np
from vector_data import load

from gristmill import MapDataset


def _array(values: Any, dtype: Any = None, shape: Any = None) -> Any:
    """``array(...)`` as NumPy's ``repr`` writes it: empty arrays show their shape."""
    array = np.array(values, dtype)
    return array if shape is None else array.reshape(shape)


_NAMES = {
    "np": np,
    "array": _array,
    **{name: getattr(np, name) for name in ("float32", "float64", "uint8", "int8")},
}


def described(batch: Any) -> Any:
    """``batch`` as the vectors write it down."""
    if batch is None:
        return None
    if type(batch) is dict:
        return {"dict": {key: described(value) for key, value in batch.items()}, "type": "dict"}
    if type(batch) in (list, tuple):
        return {type(batch).__name__: [described(value) for value in batch]}
    assert type(batch) is np.ndarray and batch.flags.c_contiguous
    dtype = "object" if batch.dtype == object else batch.dtype.str
    return {"dtype": dtype, "shape": list(batch.shape), "values": [repr(x) for x in batch.ravel().tolist()]}


def ordered(described_batch: Any) -> Any:
    """The same with dictionaries as lists of pairs, so that the order of keys counts."""
    if isinstance(described_batch, dict):
        return [(key, ordered(value)) for key, value in described_batch.items()]
    return [ordered(x) for x in described_batch] if isinstance(described_batch, list) else described_batch


def check() -> int:
    """Checks every case; returns how many there were."""
    vectors = load("ds_batch")
    for case in vectors["cases"]:
        elements = eval(case["elements"], dict(_NAMES))
        ds = MapDataset.source(elements)
        for batch in (ds.batch(len(elements))[0], next(iter(ds.to_iter_dataset().batch(len(elements))))):
            assert ordered(described(batch)) == ordered(case["batch"]), case["case"]
    # What Grain batches silently into an array of objects is an error here (10 §11.4, DECISIONS 1).
    for case in vectors["errors"] + vectors["grain_silent"]:
        elements = eval(case["elements"], dict(_NAMES))
        ds = MapDataset.source(elements).batch(len(elements))
        try:
            ds[0]
        except ValueError as error:
            assert "same structure" in str(error), case["case"]
        else:
            raise AssertionError(f"no error: {case['case']}")
    return sum(len(vectors[name]) for name in ("cases", "errors", "grain_silent"))


if __name__ == "__main__":
    num_cases = check()
    assert "jax" not in sys.modules
    print(num_cases)
