"""How elements look in words, and how large they are."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from operations import operation

from gristmill.core.element_spec import ShapeDtypeStruct
from gristmill.core.record import Record, RecordMetadata
from gristmill.dataset import MapDataset
from gristmill.diagnostics.spec_text import element_nbytes, spec_text, static_spec_text
from gristmill.experimental import get_element_spec
from gristmill.transforms import Map

Pair = namedtuple("Pair", "a b")


@dataclass
class Example:
    image: object
    label: int


class Broken:  # an object of the user's that answers no question
    def __getattr__(self, name):
        raise RuntimeError(name)


ENDLESS = []
ENDLESS.append(ENDLESS)

# Where Grain 0.2.18 says something else, a comment has it.
LOOKS = [
    *((5, "int[]", 0), (1.5, "float[]", 0), (True, "bool[]", 0), (None, "None", 0), ("äb", "str[]", 2), (b"abc", "bytes[]", 3)),
    (bytearray(4), "bytearray[]", 4),  # bytearray[4]
    *((len, "builtin_function_or_method[]", 0), (int, "type[]", 0), ({1, 2}, "set[]", 0)),
    *((np.zeros((2, 3), np.float32), "float32[2, 3]", 24), (np.int32(3), "int32[]", 4), (np.array(["ab", "c"]), "<U2[2]", 16)),
    (np.zeros(2, [("x", "i4"), ("y", "f8")]), "[('x', '<i4'), ('y', '<f8')][2]", 24),
    (np.zeros(2, "datetime64[s]"), "datetime64[s][2]", 16),
    (jnp.zeros((2, 3), jnp.bfloat16), "bfloat16[2, 3]", 12),  # ArrayImpl[2, 3]
    *(([1, 2], "list<int>[2]", 0), ((1, 2), "tuple<int>[2]", 0), (["a", "bc"], "list<str>[2]", 3)),
    *(([None], "list<NoneType>[1]", 0), ([], "list<>[0]", 0), ((), "tuple<>[0]", 0), ({}, "{}", 0)),
    *(([1] * 1000, "list<int>[1000]", 0), ((1, "a"), "('int[]', 'str[]')", 1), ([1, 2.0], "['int[]', 'float[]']", 0)),
    ([np.zeros(3), np.ones(3)], "list<float64[3]>[2]", 48),  # list<ndarray>[2, 3]
    ((np.zeros(3), np.ones(4)), "('float64[3]', 'float64[4]')", 56),
    *(([np.zeros(i) for i in range(100)], "list<ndarray>[100]", 8 * 4950), ([[1, 2], [3, 4]], "list<list<int>[2]>[2]", 0)),
    ([{"a": 1}, {"a": 2}], "list<{'a': 'int[]'}>[2]", 0),
    ({"a": np.zeros(2, np.int64), "b": [1, 2], "c": "s"}, "{'a': 'int64[2]', 'b': 'list<int>[2]', 'c': 'str[]'}", 17),
    ({"a": {"b": (1, 2.0)}, "c": None}, "{'a': {'b': ('int[]', 'float[]')}, 'c': None}", 0),
    ({"a": np.zeros(1, [("x", "i4")])}, "{'a': \"[('x', '<i4')][1]\"}", 4),
    *((OrderedDict(b=1, a=2), "{'b': 'int[]', 'a': 'int[]'}", 0), (Pair(1, np.zeros(2)), "Pair(a='int[]', b='float64[2]')", 16)),
    (Example(np.zeros(2), 1), "Example(image='float64[2]', label='int[]')", 16),
    (
        Record(RecordMetadata(1, 2), np.zeros(3)),
        "Record(metadata=RecordMetadata(index='int[]', record_key='int[]', rng=None), data='float64[3]')",
        24,
    ),
    *((Broken(), "Broken[]", 0), (ENDLESS, "list[]", 0)),
]


def test_looks_sizes_and_specs():
    for element, text, nbytes in LOOKS:
        assert (spec_text(element), element_nbytes(element)) == (text, nbytes)
    assert element_nbytes([np.zeros(2), object()]) == 16  # one part that answers nothing does not hide the others
    wide = {f"feature {i}": np.zeros(i) for i in range(10_000)}
    assert spec_text(wide).endswith(", … 9968 more}") and "'feature 31': 'float64[31]'" in spec_text(wide)
    assert spec_text([1, "a"] * 5000).endswith("'str[]', … 9968 more]") and len(spec_text([[wide, wide, 1]] * 9)) < 2100
    failing = operation(Map, "map", len, output_spec=lambda self, input_spec: 1 // 0)
    ds = MapDataset.source(np.zeros((10, 28), np.float32)).batch(4, drop_remainder=True)
    assert spec_text(get_element_spec(ds)) == spec_text(ds[0]) == static_spec_text(ds) == "float32[4, 28]"
    assert spec_text({"a": ShapeDtypeStruct((None, 3), np.int8)}) == "{'a': 'int8[?, 3]'}"
    for unknown in (MapDataset.source([1]), MapDataset.range(3).map(len), MapDataset.range(3).map(failing)):
        assert static_spec_text(unknown) is None
