"""Files that are not what they should be."""

from __future__ import annotations


class DamagedFileError(ValueError):
    """A file does not hold what its format or its index says: the text names the file, the byte and
    what to do.

    Example:
        >>> print(
        ...     damaged("a.jsonl", 120, "the line is not valid JSON", "Repair or remove the line")
        ... )
        a.jsonl is damaged at byte 120: the line is not valid JSON. Repair or remove the line
    """


class ChangedFileError(DamagedFileError):
    """A file is no longer the one that the source was made of. Data must not change while they are
    read.
    """


def damaged(path: str, offset: int, what: str, remedy: str) -> DamagedFileError:
    """Returns the error for bytes at ``offset`` of ``path`` that cannot be right."""
    return DamagedFileError(f"{path} is damaged at byte {offset}: {what}. {remedy}")


def changed(path: str, what: str) -> ChangedFileError:
    """Returns the error for a file that has changed since its source was made."""
    return ChangedFileError(
        f"{path} has changed since this source was made: {what}. Make the source again; its states"
        " fit no longer"
    )
