"""Elements that were computed and wait for their consumer."""

from __future__ import annotations

from typing import Any, NamedTuple


class Ready(NamedTuple):
    """Elements that were computed, the error that follows them, and the bytes that they take."""

    elements: list[Any]
    error: BaseException | None
    num_bytes: int


class ReadyBlocks:
    """Blocks by the index of their first element. All but ``num_from`` is called under the lock of
    the reader.

    Args:
        start: the first index.
    """

    def __init__(self, start: int) -> None:
        self._blocks: dict[int, Ready] = {}
        self._missing_from = start  # those before it are ready, or were taken

    def __contains__(self, start: int) -> bool:
        return start in self._blocks

    def put(self, start: int, block: Ready) -> None:
        self._blocks[start] = block

    def num_from(self, start: int) -> int:
        """Return the number of elements that are ready without a gap, up to an error."""
        num, blocks = 0, self._blocks
        while (block := blocks.get(start + num)) is not None and block.elements:
            num += len(block.elements)
        return num

    def has(self, start: int, num: int, *, is_all: bool) -> bool:
        """Return true if ``num`` elements from ``start`` on are ready, or those before an error.

        Args:
            start: the first index.
            num: the number of elements.
            is_all: nothing else is being computed: true if any of them is ready.
        """
        self._missing_from = max(self._missing_from, start)
        while self._missing_from < start + num:
            block = self._blocks.get(self._missing_from)
            if block is None:
                return is_all and self._missing_from > start
            if block.error is not None:
                return True
            self._missing_from += len(block.elements)
        return True

    def take(self, start: int, num: int) -> Ready | None:
        """Take out the blocks of ``num`` elements from ``start`` on, or those that are ready."""
        block = self._blocks.pop(start, None)
        if block is None:
            return None
        elements, error, num_bytes = block
        while error is None and len(elements) < num:
            block = self._blocks.pop(start + len(elements), None)
            if block is None:
                break
            elements += block.elements
            error, num_bytes = block.error, num_bytes + block.num_bytes
        return Ready(elements, error, num_bytes)
