"""A source, a sampler and a stage of one's own, checked, and used in one pipeline that is stopped
in the middle and resumed.

The source reads lines of text, the sampler takes short ones first, and the stage cuts them into
frames of equal length, across their ends. To run it: python examples/custom_parts.py --file
book.txt
"""

import argparse
import copy
import json
from pathlib import Path

import numpy as np

import gristmill as grain


class Lines:
    """The lines of a file as bytes. It is opened for every block: threads share nothing, and copies
    need nothing but the path.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ends = np.flatnonzero(np.fromfile(path, np.uint8) == ord("\n")) + 1
        self.lengths = np.diff(self._ends, prepend=0)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, key: int) -> np.ndarray:
        return self.__getitems__([key])[0]  # an IndexError beyond the last line

    def __getitems__(self, keys: list[int]) -> list[np.ndarray]:
        text = np.memmap(self._path, np.uint8, "r")
        return [
            np.array(text[end - length : end])
            for end, length in zip(self._ends[keys], self.lengths[keys], strict=True)
        ]

    def __repr__(self) -> str:
        return f"Lines({self._path.name!r}, {len(self)} lines, {self._ends[-1]} bytes)"


class ShortFirst:
    """A curriculum: from the shortest record to the longest."""

    def __init__(self, lengths: np.ndarray) -> None:
        self._keys = np.argsort(lengths, kind="stable").tolist()

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        return grain.RecordMetadata(index=index, record_key=self._keys[index])

    def __repr__(self) -> str:
        return f"ShortFirst({len(self)})"


class Frames(grain.IterDataset):
    """All bytes of the parent's lines in frames of ``size``; what is left at the end is dropped."""

    def __init__(self, parent: grain.IterDataset, size: int) -> None:
        super().__init__(parent)
        self._size = size

    def __iter__(self) -> grain.DatasetIterator:
        return FrameIterator(iter(self._parent), self._size)


class FrameIterator(grain.DatasetIterator):
    """Its position: the parent's before the oldest line in the buffer, and how much of that one is
    delivered.
    """

    def __init__(self, parent: grain.DatasetIterator, size: int) -> None:
        super().__init__(parent)
        self._size, self._delivered = size, 0
        # lines, each with the parent's state before it
        self._buffer: list[tuple[dict, np.ndarray]] = []

    def __next__(self) -> np.ndarray:
        end = self._delivered + self._size
        # an error here loses nothing: the buffer stays
        while sum([len(line) for _, line in self._buffer]) < end:
            self._buffer.append((self._parent.get_state(), next(self._parent)))
        frame = np.concatenate([line for _, line in self._buffer])[self._delivered : end]
        while self._buffer and end >= len(self._buffer[0][1]):
            end -= len(self._buffer.pop(0)[1])
        self._delivered = end
        return frame

    def get_state(self) -> dict:
        parent = copy.deepcopy(self._buffer[0][0]) if self._buffer else self._parent.get_state()
        return {"parent": parent, "delivered": self._delivered}

    def set_state(self, state: dict) -> None:
        delivered = int(state["delivered"])
        # refuses what does not fit before anything has changed
        self._parent.set_state(state["parent"])
        self._buffer, self._delivered = [], delivered


def make_pipeline(path: Path) -> grain.IterDataset:
    lines = Lines(path)
    keys = grain.MapDataset.source(ShortFirst(lines.lengths)).map(
        lambda metadata: metadata.record_key
    )
    return Frames(grain.MapDataset.source(lines).slice(keys).repeat(2).to_iter_dataset(), 64).batch(
        8
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, default=Path(__file__))
    path = parser.parse_args().file
    lines, ds = Lines(path), make_pipeline(path)
    grain.testing.assert_source_conforms(lines)
    grain.testing.assert_sampler_conforms(ShortFirst(lines.lengths), len(lines))
    grain.testing.assert_iter_dataset_conforms(ds)
    print(f"{lines}: source, sampler and stage conform")
    batches, it = list(ds), iter(ds)
    half = [next(it) for _ in range(len(batches) // 2)]
    saved = json.dumps(it.get_state())
    print(f"after {len(half)} of {len(batches)} batches the state is {saved}")
    (it := iter(make_pipeline(path))).set_state(json.loads(saved))  # as a new process would
    same = [x.tobytes() for x in [*half, *it]] == [x.tobytes() for x in batches]
    print("resumed in the middle:", "bit-identical" if same else "DIFFERENT")


if __name__ == "__main__":
    main()
