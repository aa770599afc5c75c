"""Types of Arrow, and the differences between them that values in NumPy and Python show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any


def is_text(arrow_type: Any) -> bool:
    """Return true for types whose values are ``str`` or ``bytes``."""
    from pyarrow import types

    return bool(
        types.is_string(arrow_type)
        or types.is_large_string(arrow_type)
        or types.is_string_view(arrow_type)
        or _is_bytes(arrow_type)
    )


def _is_bytes(arrow_type: Any) -> bool:
    from pyarrow import types

    return bool(
        types.is_binary(arrow_type)
        or types.is_large_binary(arrow_type)
        or types.is_binary_view(arrow_type)
        or types.is_fixed_size_binary(arrow_type)
    )


def is_list(arrow_type: Any) -> bool:
    """Return true for all types of lists."""
    from pyarrow import types

    return bool(
        types.is_list(arrow_type)
        or types.is_large_list(arrow_type)
        or types.is_fixed_size_list(arrow_type)
        or types.is_list_view(arrow_type)
        or types.is_large_list_view(arrow_type)
    )


def stored_type(arrow_type: Any) -> Any:
    """Return the type of the stored values of dictionaries and extension types."""
    import pyarrow
    from pyarrow import types

    if types.is_dictionary(arrow_type):
        return stored_type(arrow_type.value_type)
    is_extension = isinstance(arrow_type, pyarrow.BaseExtensionType)
    return stored_type(arrow_type.storage_type) if is_extension else arrow_type


def type_of_values(arrow_type: Any) -> Any:
    """Return one type for all types whose values are equal in rows, however Arrow holds them.

    The size of offsets, the width of decimals, nullability, and the order of the fields of a struct
    change no value.
    """
    import pyarrow
    from pyarrow import types

    arrow_type = stored_type(arrow_type)
    if is_text(arrow_type):
        return pyarrow.binary() if _is_bytes(arrow_type) else pyarrow.string()
    if types.is_decimal(arrow_type):
        return pyarrow.decimal256(76, arrow_type.scale)
    if types.is_time(arrow_type):
        return pyarrow.time64("us")
    if types.is_struct(arrow_type):
        fields = {field.name: type_of_values(field.type) for field in arrow_type}
        return pyarrow.struct(sorted(fields.items()))
    if types.is_map(arrow_type):
        return pyarrow.map_(
            type_of_values(arrow_type.key_type), type_of_values(arrow_type.item_type)
        )
    return (
        pyarrow.list_(type_of_values(arrow_type.value_type)) if is_list(arrow_type) else arrow_type
    )


def common_type(first: Any, second: Any) -> Any:
    """Return the common type of two results of ``type_of_values``; ``None`` if they differ.

    The type ``null``, of columns without any value, agrees with every other.
    """
    import pyarrow
    from pyarrow import types

    if first == second or types.is_null(second):
        return first
    if types.is_null(first):
        return second
    pairs: list[tuple[Any, Any]] = []
    if types.is_list(first) and types.is_list(second):
        pairs = [(first.value_type, second.value_type)]
    elif types.is_map(first) and types.is_map(second):
        pairs = [(first.key_type, second.key_type), (first.item_type, second.item_type)]
    elif types.is_struct(first) and types.is_struct(second) and _names(first) == _names(second):
        pairs = [(one.type, other.type) for one, other in zip(first, second, strict=True)]
    parts = [common_type(*pair) for pair in pairs]
    if not parts or None in parts:
        return None
    if types.is_list(first):
        return pyarrow.list_(*parts)
    if types.is_map(first):
        return pyarrow.map_(*parts)
    return pyarrow.struct(list(zip(_names(first), parts, strict=True)))


def _names(struct: Any) -> list[str]:
    return [field.name for field in struct]


def check_names_differ(path: str, schema: Any, columns: Sequence[str]) -> None:
    """Refuse a file with columns of one name, or fields of one name in a struct, among ``columns``.

    Raises:
        ValueError: there are such names; it names the column.
    """
    remedy = "Write the file with other names, or leave the column out with columns=[...]"
    counts = Counter(schema.names)
    for name in columns:
        if counts[name] > 1:
            raise ValueError(
                f"{path} has {counts[name]} columns {name!r}, of which a row can hold one only."
                f" {remedy}"
            )
        if field := _repeated_field(schema.field(name).type):
            raise ValueError(
                f"column {name!r} of {path} has several fields {field!r} in one struct, of which a"
                f" row can hold one only. {remedy}"
            )


def _repeated_field(arrow_type: Any) -> str | None:
    """Return the name of a field that a struct has twice, at any depth."""
    from pyarrow import types

    arrow_type = stored_type(arrow_type)
    if types.is_struct(arrow_type):
        repeated = [name for name, count in Counter(_names(arrow_type)).items() if count > 1]
        if repeated:
            return repeated[0]
    for number in range(arrow_type.num_fields):
        if found := _repeated_field(arrow_type.field(number).type):
            return found
    return None
