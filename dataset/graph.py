"""The graph of datasets and iterators: parents, and the seed that follows from a position in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def as_parents(parents: Any, *kinds: type) -> tuple[Any, ...]:
    """``parents`` as a tuple: one object of one of ``kinds``, or an iterable of such."""
    found = (parents,) if isinstance(parents, kinds) else tuple(parents) if isinstance(parents, Iterable) else None
    if found is None or not all([isinstance(p, kinds) for p in found]):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"parents must be a {names} or a sequence of them, got {parents!r:.200}")
    return found


def only_parent(node: Any) -> Any:
    if len(node._parents) != 1:
        raise ValueError(f"{type(node).__name__} must have exactly one parent here, it has {len(node._parents)}")
    return node._parents[0]


def seed_entropy(dataset: Any) -> list[int]:
    """The seeds nearest upstream and how many steps away each is: ``[seed, steps, seed, steps, …]``.

    Breadth first from ``dataset`` (0 steps), parents in order. Nothing above a seed counts.
    """
    entropy: list[int] = []
    level, steps = [dataset], 0
    while level:
        above = []
        for node in level:
            if node._seed_point is None:
                above.extend(node._parents)
            else:
                entropy += [node._seed_point, steps]
        level, steps = above, steps + 1
    return entropy


def random_seed(stage: Any, seed: int | None, name: str) -> int:
    """The seed of a random stage: the one given, or the default seed."""
    if seed is not None:
        return seed
    default = stage._default_seed
    if default is None:
        raise ValueError(f"{name} needs a seed: pass seed=..., or call ds.seed(seed) before it")
    return int(default)
