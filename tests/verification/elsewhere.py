"""A module of a program, which its functions use by name or as a module."""

WORDS = {}


def numbered(x):
    return WORDS.setdefault(x, len(WORDS))
