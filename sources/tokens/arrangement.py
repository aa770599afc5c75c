"""The arguments of a source of tokens, checked, but for the files."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from gristmill.core.errors import as_int
from gristmill.core.state import shown
from gristmill.sources.tokens.megatron_order import PARTS

FORMATS = ("megatron", "npy", "raw")
ORDERS = ("megatron", "olmo", None)
_MAX_SEED = 2**32 - 1  # of NumPy's RandomState
_ONLY_MEGATRON = "for order='megatron' only: another part of the elements is a slice of the dataset"


@dataclass(frozen=True)
class Arrangement:
    """The elements that are requested. The arguments are those of ``TokenSource``."""

    format: str
    dtype: Any
    documents: bool | None
    window: int | None
    order: str | None
    seed: int | None
    num_samples: int | None
    split: str | None
    part: str | None
    index: str | None

    def __post_init__(self) -> None:
        for name, allowed in (("format", FORMATS), ("order", ORDERS), ("part", (*PARTS, None))):
            value = getattr(self, name)
            if not isinstance(value, str | None) or value not in allowed:
                raise ValueError(
                    f"{name} must be one of {', '.join(map(repr, allowed))}, got {shown(value)}"
                )
        self._set("dtype", _as_dtype(self.dtype))
        self._check_elements()
        self._check_order()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_elements(self) -> None:
        if not isinstance(self.documents, bool | None):
            raise TypeError(
                f"documents must be True, or window be given, got documents={shown(self.documents)}"
            )
        if self.window is not None:
            if self.documents:
                raise ValueError(
                    "documents and window must not both be given: elements are documents or windows"
                )
            self._set(
                "window", as_int("window", self.window, minimum=1 if self.order == "olmo" else 2)
            )
            self._set("documents", False)
            return
        self._set("documents", self.documents is not False)
        if self.order is not None:
            raise ValueError(
                f"window must be given with order={self.order!r}: the number of tokens of an"
                " element"
            )
        if self.documents and self.format == "megatron":
            return
        reason = (
            f": format={self.format!r} does not say where documents begin"
            if self.documents
            else " if documents are not"
        )
        raise ValueError(
            f"window must be given{reason}. window=L + 1 has L inputs and their labels"
        )

    def _check_order(self) -> None:
        for name, maximum in (("seed", _MAX_SEED), ("num_samples", None)):
            value = getattr(self, name)
            if value is not None:
                self._set(
                    name, as_int(name, value, minimum=0 if name == "seed" else 1, maximum=maximum)
                )
        if self.index is not None:
            if not isinstance(self.index, str | os.PathLike):
                raise TypeError(f"index must be a path, got {shown(self.index)}")
            self._set("index", os.fspath(self.index))
        if self.order == "megatron":
            self._check_megatron()
            return
        self._refuse(("num_samples", "split", "part"), _ONLY_MEGATRON)
        if self.order is None:
            self._refuse(
                ("seed", "index"),
                "with order='megatron' or order='olmo'; otherwise shuffle the dataset",
            )
        elif self.index is not None:
            self._refuse(("seed",), "without index, which has the order already")

    def _check_megatron(self) -> None:
        if self.format != "megatron":
            raise ValueError(
                "order='megatron' must be with format='megatron', which has documents, got"
                f" format={self.format!r}"
            )
        if self.index is not None:
            self._refuse(
                ("seed", "num_samples", "split", "part"),
                "without index, which has the order already",
            )
        elif self.seed is None:
            raise ValueError(
                "seed must be given with order='megatron': Megatron's --seed, which is 1234 if it"
                " is not given there"
            )
        if self.part is not None and self.split is None:
            raise ValueError(
                "split must be given with part: the weights of train, valid and test, such as"
                " '969,30,1'"
            )

    def _refuse(self, names: tuple[str, ...], when: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} may be given {when}; got {name}={shown(getattr(self, name))}"
                )

    def __str__(self) -> str:
        """Returns the parameters that change the elements, for a ``repr``; without the folder of
        the files.
        """
        values = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("format", "dtype", "index")
        }
        given = [
            f"{name}={value!r}"
            for name, value in values.items()
            if value is not None and value is not False
        ]
        return ", ".join([self.format, *given, *["stored index"] * (self.index is not None)])


def _as_dtype(dtype: Any) -> np.dtype[Any] | None:
    if dtype is None:
        return None
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        raise TypeError(
            f"dtype must be a NumPy dtype such as numpy.uint16, got {shown(dtype)}"
        ) from None
    if found.kind not in "iu":
        raise ValueError(f"dtype must be of integers, got {found}")
    return found
