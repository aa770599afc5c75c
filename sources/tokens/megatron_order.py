"""The order of Megatron's ``GPTDataset``, computed as it computes it."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gristmill.sources.tokens.megatron_index import MegatronIndex

PARTS = ("train", "valid", "test")
_SEPARATE_BELOW = 0.80  # of an epoch: a last epoch of which less is needed is shuffled by itself


class SampleOrder(NamedTuple):
    """The parameters of the order: the documents, how often all of them are used, and how samples
    are cut and shuffled.

    Fields:
        sequences: the documents of the part.
        num_tokens: in these.
        num_epochs: how often each document is used.
        num_inputs: the tokens of a sample but the last, which is a label only.
        num_samples: asked for; ``None`` if one epoch is.
        seed: as Megatron's.
    """

    sequences: range
    num_tokens: int
    num_epochs: int
    num_inputs: int
    num_samples: int | None
    seed: int

    @property
    def length(self) -> int:
        """The number of samples, which may be more than requested: as many as the epochs have."""
        return self._samples_of(self.num_epochs)

    def _samples_of(self, num_epochs: int) -> int:
        return max(0, (num_epochs * self.num_tokens - 1) // self.num_inputs)

    def _num_together(self) -> int:
        """Returns the number of epochs that are shuffled as one; the last, if it is not among them,
        is shuffled by itself.
        """
        if self.num_epochs == 1 or self.num_samples is None:
            return self.num_epochs
        num_last = self.num_samples - self._samples_of(self.num_epochs - 1)
        is_separate = num_last < int(_SEPARATE_BELOW * self._samples_of(1))
        return self.num_epochs - is_separate

    def tables(self, index: MegatronIndex) -> tuple[NDArray[np.int32], NDArray[Any], NDArray[Any]]:
        """Returns ``document_index`` [epochs * documents], ``sample_index`` [samples + 1, 2] and
        ``shuffle_index`` [samples].
        """
        rng = np.random.RandomState(self.seed)
        num_together = self._num_together()
        epochs = [num_together] if num_together == self.num_epochs else [num_together, 1]
        documents = np.concatenate([self._shuffled_documents(number, rng) for number in epochs])
        samples = self._sample_index(documents, index)
        ends = [self.length] if len(epochs) == 1 else [self._samples_of(num_together), self.length]
        numbers = []
        for start, end in zip([0, *ends], ends, strict=False):
            numbers.append(
                np.arange(start, end, dtype=np.uint32 if self.length < 2**32 - 2 else np.int64)
            )
            rng.shuffle(numbers[-1])
        return documents, samples, np.concatenate(numbers)

    def _shuffled_documents(self, num_epochs: int, rng: np.random.RandomState) -> NDArray[np.int32]:
        documents = np.tile(
            np.arange(self.sequences.start, self.sequences.stop, dtype=np.int32), num_epochs
        )
        rng.shuffle(documents)
        return documents

    def _sample_index(self, documents: NDArray[np.int32], index: MegatronIndex) -> NDArray[Any]:
        lengths = index.lengths(self.sequences.start, self.sequences.stop)[
            documents - self.sequences.start
        ]
        ends = np.cumsum(lengths, dtype=np.int64)  # [epochs * documents], in tokens
        starts = np.arange(self.length + 1, dtype=np.int64) * self.num_inputs
        places = np.searchsorted(ends, starts, side="right")
        found = np.stack([places, starts - ends[places] + lengths[places]], axis=1)
        found[0] = 0  # also where the first document is empty
        # offsets fit: lengths are int32
        return found.astype(np.int32 if len(documents) < 2**31 else np.int64)


def needed_epochs(num_tokens: int, num_inputs: int, num_samples: int | None) -> int:
    """Returns the number of epochs with ``num_samples`` samples of ``num_inputs + 1`` tokens that
    overlap by one.
    """
    return 1 if num_samples is None else max(1, -(-(num_samples * num_inputs + 1) // num_tokens))


def documents_of_part(split: str, part: str, num_documents: int) -> range:
    """Returns the documents of a part, as Megatron divides them.

    Args:
        split: the weights of the parts, as ``"969,30,1"``.
        part: one of ``PARTS``.
        num_documents: how many there are.

    Raises:
        TypeError, ValueError: ``split`` is something else, or leaves nothing for ``part``.

    Example:
        >>> documents_of_part("969,30,1", "valid", 1000)
        range(969, 999)
    """
    if not isinstance(split, str):
        raise TypeError(f"split must be a text such as '969,30,1', got {split!r:.200}")
    weights = [float(weight) for weight in re.findall(r"[.0-9]+", split)]
    if not 1 <= len(weights) <= len(PARTS) or not sum(weights):
        raise ValueError(
            "split must have the weights of train, valid and test, such as '969,30,1', got"
            f" {split!r}"
        )
    shares = (np.array(weights) / np.sum(weights)).tolist() + [0.0] * (len(PARTS) - len(weights))
    number = PARTS.index(part)
    ends = [0.0]
    for share in shares:
        ends.append(ends[-1] + share)
    start, stop = (round(end * float(num_documents)) for end in ends[number : number + 2])
    if start >= stop:
        raise ValueError(
            f"split must leave documents for part={part!r}: {split!r} leaves none of"
            f" {num_documents}"
        )
    return range(start, stop)
