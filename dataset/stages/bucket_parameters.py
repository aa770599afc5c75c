"""The parameters of ``bucket_batch``, of map datasets and of streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from gristmill.core.errors import check_word
from gristmill.dataset.bases.parameters import Parameters, field
from gristmill.transforms.ragged import Padding, Rows

OnLong = Literal["raise", "truncate", "drop"]


def check_on_long(on_long: object) -> None:
    check_word("on_long", on_long, "raise", "truncate", "drop")


class BucketParameters(Parameters):
    """The parameters of both datasets; sizes are those of all shards together."""

    boundaries: tuple[int, ...]
    max_tokens: int | None = field(in_repr=False)
    batch_sizes: tuple[int, ...]
    pad_to: Any
    pad_value: Any = field(in_repr=False)
    drop_remainder: bool
    on_long: OnLong
    with_lengths: bool

    def __post_init__(self) -> None:
        self._replace(
            drop_remainder=bool(self.drop_remainder), with_lengths=bool(self.with_lengths)
        )
        check_on_long(self.on_long)

    @property
    def keeps_long(self) -> bool:
        """True if elements longer than the last boundary are in the last bucket."""
        return self.on_long == "truncate"

    def padding(self) -> Padding:
        """Returns the padding with which batches are made."""
        return Padding(self.pad_to, self.pad_value, self.with_lengths)

    def rows(
        self, bucket: int, num: int, num_real: int, lengths: Sequence[int], longest: int
    ) -> Rows:
        """Returns the rows of a batch of ``num``, ``num_real`` of which are real."""
        return Rows(
            num if self.with_lengths else num_real,
            num_real,
            lengths,
            self.boundaries[bucket],
            longest,
            self.boundaries[-1],
        )

    def spec(self, padding: Padding, spec: object, num_shards: int) -> Any:
        """Returns the spec of batches of elements with spec ``spec``."""
        sizes = {size // num_shards for size in self.batch_sizes}
        is_known = len(sizes) == 1 and (self.drop_remainder or self.with_lengths)
        return padding.spec(
            spec,
            sizes.pop() if is_known else None,
            self.boundaries[0] if len(self.boundaries) == 1 else None,
        )


class StreamBucketParameters(BucketParameters):
    length_fn: Callable[[Any], int] = field(is_function=True)
