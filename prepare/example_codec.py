"""``codec="example"``: ``tf.train.Example``, encoded by the protobuf library, without TensorFlow.

A feature is a list of bytes, floats or 64-bit integers. The first elements say what each feature
was: a value or an array, of which dtype and shape. The manifest has that, so that reading gives the
same again.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gristmill.core.errors import missing_package
from gristmill.core.state import shown
from gristmill.prepare.codecs import Codec, is_array
from gristmill.prepare.formats.columns import Columns

_DTYPES = {"float": np.float32, "int": np.int64}  # protobuf takes no truth values for integers
_LISTS = {"bytes": "bytes_list", "float": "float_list", "int": "int64_list"}


class ExampleCodec(Codec):
    """Dicts of texts, bytes, numbers and arrays of 32-bit floats or of integers.

    Args:
        features: of each feature, its type (see ``Columns``) and the list that has its values.
    """

    name = "example"

    def __init__(self, features: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        _message()
        self._features = {name: dict(feature) for name, feature in (features or {}).items()}
        self._columns = Columns(self._features)

    def __reduce__(self) -> Any:
        return type(self), (self._features,)

    def described(self) -> dict[str, Any]:
        return {**super().described(), **({"features": self._features} if self._features else {})}

    def restored(self, saved: Mapping[str, Any]) -> ExampleCodec:
        return type(self)(saved.get("features"))

    def fitted(self, elements: Sequence[Any]) -> ExampleCodec:
        types = Columns.of(elements).types
        firsts = {name: element[name] for element in reversed(elements) for name in element}
        return type(self)({name: {**types[name], **_list_of(name, firsts[name])} for name in types})

    def encode(self, element: Any) -> bytes:
        example = _message()()
        if not isinstance(element, dict) or element.keys() != self._features.keys():
            raise TypeError(
                f"it must be a dict with the features {shown([*self._features])}, as the first "
                f"elements, got {shown(element)}"
            )
        for name, value in element.items():
            feature = self._features[name]
            found = {**Columns.of([{name: value}]).types[name], **_list_of(name, value)}
            if found != feature:
                raise TypeError(
                    f"feature {name!r} is {shown(found)}, and {shown(feature)} in the first "
                    "elements: convert it by a map before"
                )
            if feature["kind"] == "plain":
                values = [value]
            else:
                values = np.ravel(value).astype(_DTYPES[feature["list"]]).tolist()
            values = [item.encode() if isinstance(item, str) else item for item in values]
            getattr(example.features.feature[name], _LISTS[feature["list"]]).value.extend(values)
        return example.SerializeToString(deterministic=True)

    def decode(self, record: bytes) -> dict[str, Any]:
        example = _message().FromString(record)
        features = example.features.feature
        return {name: self._value(features[name], kind) for name, kind in self._features.items()}

    def _value(self, feature: Any, kind: Mapping[str, Any]) -> Any:
        values = getattr(feature, _LISTS[kind["list"]]).value
        if kind["kind"] == "array":
            shape = () if kind["row_shape"] is None else (-1, *kind["row_shape"])
            return np.array(values, kind["dtype"]).reshape(shape)
        if kind["kind"] == "scalar":
            return np.dtype(kind["dtype"]).type(values[0])
        return values[0].decode() if kind["is_text"] else values[0]


def _list_of(name: str, value: Any) -> dict[str, Any]:
    """Returns which list holds a value, and whether it is a text."""
    if is_array(value) and 0 in value.shape[1:]:
        raise TypeError(
            f"feature {name!r} has rows without values, of shape {value.shape}, so that reading "
            "cannot tell how many: drop it by a map before, or choose codec='msgpack'"
        )
    if is_array(value):
        if value.dtype == np.float32 or (value.dtype.kind == "i" and value.dtype.itemsize <= 8):
            return {"list": "float" if value.dtype.kind == "f" else "int", "is_text": False}
        if value.dtype.kind in "bu" and value.dtype.itemsize < 8:
            return {"list": "int", "is_text": False}
    elif type(value) in (str, bytes):
        return {"list": "bytes", "is_text": type(value) is str}
    elif type(value) is int and -(1 << 63) <= value < 1 << 63:
        return {"list": "int", "is_text": False}
    raise TypeError(
        f"feature {name!r} must be bytes, a text, an integer, or an array or scalar of float32 or "
        "of "
        f"integers, got {shown(value)}: convert it by a map before, such as x.astype(np.float32)"
    )


@functools.cache
def _message() -> Any:
    """Returns the class of ``tf.train.Example``, made from its published definition."""
    try:
        pb2 = importlib.import_module("google.protobuf.descriptor_pb2")
        pool = importlib.import_module("google.protobuf.descriptor_pool").DescriptorPool()
        factory = importlib.import_module("google.protobuf.message_factory")
    except ImportError as error:
        raise missing_package("protobuf", "write", "codec='example'") from error
    file = pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    of = pb2.FieldDescriptorProto
    kinds = {"BytesList": of.TYPE_BYTES, "FloatList": of.TYPE_FLOAT, "Int64List": of.TYPE_INT64}
    for name, kind in kinds.items():
        message = file.message_type.add(name=name)
        message.field.add(name="value", number=1, type=kind, label=of.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (field, name) in enumerate(zip(_LISTS.values(), kinds, strict=True), 1):
        kind = f".tensorflow.{name}"
        feature.field.add(
            name=field, number=number, type=of.TYPE_MESSAGE, type_name=kind, oneof_index=0, label=1
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=of.TYPE_STRING, label=1)
    kind = ".tensorflow.Feature"
    entry.field.add(name="value", number=2, type=of.TYPE_MESSAGE, type_name=kind, label=1)
    kind = ".tensorflow.Features.FeatureEntry"
    features.field.add(name="feature", number=1, type=of.TYPE_MESSAGE, type_name=kind, label=3)
    example = file.message_type.add(name="Example")
    kind = ".tensorflow.Features"
    example.field.add(name="features", number=1, type=of.TYPE_MESSAGE, type_name=kind, label=1)
    pool.Add(file)
    return factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))
