"""Formulas of the specification, as it words them."""

import functools
import itertools

import numpy as np

from gristmill.core import permutation

index_shuffle = functools.cache(permutation.index_shuffle)  # of few records it takes milliseconds


def stream(seed, index):
    """The random generator of an element, straight from its definition."""
    key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    return np.random.Generator(
        np.random.Philox(counter=np.array([0, 0, 0, index % 2**64], np.uint64), key=key)
    )


def shuffled(i, length, seed):
    """The index in the parent of what is at ``i``."""
    epoch, position = divmod(i, length)
    return index_shuffle(position, length - 1, (seed + epoch) % 2**32, 4) + epoch * length


def window_shuffled(i, length, size, seed):
    """The index in the parent of what is at ``i``: a window ends with the epoch."""
    epoch, position = divmod(i, length)
    q = position // size
    m = min(size, length - q * size)
    number = seed + epoch * -(-length // size) + q
    return epoch * length + q * size + index_shuffle(position - q * size, m - 1, number % 2**32, 4)


def window_order(size, seed):
    """The order in which a stream delivers a window."""
    return [index_shuffle(i, size - 1, seed % 2**32, 4) for i in range(size)][::-1]


def chosen(proportions, k):
    """The component of a mixture at ``k``, and the index in it."""
    a, b, total = k, k + 1, sum(proportions)
    for j, weight in enumerate(proportions):
        rest = total - weight
        c, d = a * rest // total, b * rest // total
        if a - c != b - d:
            return j, b - d - 1
        a, b, total = c, d, rest
    raise AssertionError


def bucket_batches(epoch, lengths, boundaries, sizes, window, seed, drop=False):
    """The batches of an epoch, one window after the other: the bucket of each, and the positions in
    the epoch of its elements.

    ``lengths`` are those of the elements in the order of the epoch; longer ones than the last
    boundary are dropped.
    """
    held, batches = [[] for _ in boundaries], []
    num_windows = -(-len(lengths) // window)
    for w in range(num_windows):
        for position in range(w * window, min((w + 1) * window, len(lengths))):
            bucket = next(
                (b for b, boundary in enumerate(boundaries) if lengths[position] <= boundary), None
            )
            if bucket is not None:
                held[bucket].append(position)
        ready = []
        for b, size in enumerate(sizes):
            while len(held[b]) >= size or (held[b] and w + 1 == num_windows and not drop):
                ready.append((b, held[b][:size]))
                held[b] = held[b][size:]
        batches += [
            ready[i] for i in window_order(len(ready), seed + epoch * num_windows + w)[::-1]
        ]
    return batches


def block_shuffled(i, length, block_size, group_size, seed):
    """The index in the parent of what is at ``i``, by making a list of the whole epoch."""
    epoch = i // length
    return (
        epoch * length
        + block_shuffled_epoch(epoch, length, block_size, group_size, seed)[i - epoch * length]
    )


@functools.cache
def block_shuffled_epoch(epoch, length, block_size, group_size, seed):
    blocks = [
        list(range(start, min(start + block_size, length)))
        for start in range(0, length, block_size)
    ]
    whole = [block for block in blocks if len(block) == block_size]
    order = [whole[shuffled(i, len(whole), seed + epoch) % len(whole)] for i in range(len(whole))]
    if len(whole) < len(blocks):
        order.insert(mixed(epoch, mixed(2, seed)) % len(blocks), blocks[-1])
    groups = [
        [*itertools.chain(*order[start : start + group_size])]
        for start in range(0, len(order), group_size)
    ]
    found = []
    for g, group in enumerate(groups):
        group_seed = (mixed(1, seed) & 0xFFFFFFFF) + epoch * len(groups) + g
        found += [
            group[shuffled(i, len(group), group_seed) % len(group)] for i in range(len(group))
        ]
    return found


def mixed(value, seed):
    """SplitMix64, finalised from a value and a seed."""
    z = (value * 0x9E3779B97F4A7C15 % 2**64) ^ seed
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31
