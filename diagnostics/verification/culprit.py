"""Which stage a difference comes from, and why."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from gristmill.dataset.descriptions.display import stage_name
from gristmill.diagnostics.verification.comparing import Comparison, base_of, compare, compared
from gristmill.diagnostics.verification.conditions import Again, Condition, Fresh
from gristmill.diagnostics.verification.fresh import ColdCopies, Surroundings
from gristmill.diagnostics.verification.outcomes import Clock, first_difference, recorded
from gristmill.diagnostics.verification.probes import Address, Witness, watched
from gristmill.diagnostics.verification.subject import (
    Subject,
    SubPipeline,
    addresses,
    inputs_of,
    stage_at,
)

_REASONS = {
    "in place": "an element is changed in place",
    "random": "global random state is used",
    "generator": "a generator is kept",
    "iterator": "an iterator is kept",
    "state": "state is kept between calls",
    "cache": (
        "results are kept between calls (functools.cache), and depend on more than the arguments"
    ),
    "entropy": "random numbers without a seed are used",
    "clock": "the clock is read",
    "thread": "the thread is asked for",
    "process": "the process is asked for",
    "environment": "the environment is asked for",
    "files": "the order of files in a directory is used, which is the file system's",
    "hash": "hash() is used, which differs in every process",
    "address": "the address of an object is used (id), which differs in every run",
    "sets": "a set is iterated, or hash() used, which depend on PYTHONHASHSEED",
    "locale": "the locale is used",
}
# Kinds of evidence that may be the reason of a difference, the likeliest first: if unused copies
# give the same, and if they do not.
_HELD, _MOVING = ("generator", "iterator"), ("entropy", "clock", "address")
_SAME_COPIES = ("in place", *_HELD, "state", "random", *_MOVING, "thread", "cache")
_OTHER_COPIES = ("random", *_HELD, *_MOVING, "state", "thread", "in place", "files", "cache")
# And if a second run was the same.
_KEPT = ("in place", *_HELD, "state", "thread", "cache")
_THREADS = ("thread", *_HELD, "in place", "state", "cache")
_ASKED = ("process", "environment", "hash", "address", "thread", "files")
_PROCESSES = (*_ASKED, *_HELD, "state", "in place", "cache")


class Search:
    """Looks for the stage that makes a difference.

    Args:
        pipeline: a dataset or a ``DataLoader``.
        copies: run functions on unused copies of it.
        condition: under which something was different.
        num: how many outputs it was run for.
        clock: when to stop.
    """

    def __init__(
        self, pipeline: Any, copies: ColdCopies, condition: Condition, num: int, clock: Clock
    ) -> None:
        self._pipeline = pipeline
        self._copies = copies
        self._condition = condition
        self._clock = clock
        self._num = num
        self._witness = Witness()
        self._stages = addresses(pipeline)

    def find(self) -> tuple[str, str]:
        """Returns the text of the stage, and the reason."""
        self._watch(self._condition.part)
        address = self._first_to_differ(self._condition.part.address)
        # of a pipeline that another one opens
        if address not in self._witness.counts.keys() | self._witness.indices.keys():
            self._watch(self._part(address))
        reason, address = self._reason(address)
        stage = self._stages.get(address) or stage_at(self._pipeline, address)
        return stage_name(stage), reason

    def _part(self, address: Address) -> SubPipeline:
        indices = tuple(self._witness.indices.get(address, ())) or None
        return SubPipeline(address, indices, self._witness.counts.get(address) or None)

    def _num_of(self, part: SubPipeline) -> int:
        return len(part.indices) if part.indices is not None else part.num or self._num

    def _watch(self, part: SubPipeline) -> None:
        """Adds the evidence of a copy that is watched."""
        clock = self._clock.part(0.4)
        with contextlib.suppress(Exception):  # the process may have died
            found = self._copies.call(partial(watched, part, self._num, clock.left), clock)
            self._witness.include(*found)

    def _first_to_differ(self, address: Address) -> Address:
        """Returns the stage nearest the source that differs, of those that lead to ``address``,
        which does.
        """
        chain = [address]
        while len(inputs := inputs_of(stage_at(self._pipeline, chain[-1]))) == 1:
            chain.append((*chain[-1], 0))
        low, high = 0, len(chain)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._differs(chain[middle]) else (low, middle)
        if low == len(chain) - 1:
            for i in range(len(inputs)):
                if self._differs((*chain[low], i)):
                    return self._first_to_differ((*chain[low], i))
        return chain[low]

    def _differs(self, address: Address) -> bool:
        if self._clock.is_over:
            return False
        condition, part, clock = self._condition, self._part(address), self._clock.part(0.3)
        num = self._num_of(part) + 1
        try:
            if isinstance(condition, Again):
                return self._copies.call(partial(_runs_differ, part, num, clock.left / 2), clock)
            base = self._copies.call(partial(base_of, condition, part, num, clock.left / 2), clock)
            if condition.process is None:  # it starts processes by itself
                found: Any = compare(condition, Subject(self._pipeline, part), base, clock)
            else:
                compares = partial(compared, condition, part, base, clock.left)
                found = self._copies.call(compares, clock)
        except Exception:  # it cannot be run alone
            return False
        return isinstance(found, Comparison) and found.difference is not None

    def _reason(self, address: Address) -> tuple[str, Address]:
        """Why the stage at ``address`` differs, and which it is: one before it may change elements
        that come again.
        """
        if isinstance(self._condition, Fresh):
            factor = self._factor(address)
            if factor is not None:
                return self._said(factor, address), address
        kinds = self._kinds(address)
        begins = self._starts_workers(address)  # and the reason is what they run
        upstream = [other for other in self._stages if other[: len(address)] == address]
        for other in sorted(upstream, key=len):
            for kind in kinds if begins or other == address else ("in place",):
                if any([x.kind == kind for x in self._witness.evidence.get(other, ())]):
                    return self._said(kind, other), other
        return self._condition.otherwise, address

    def _said(self, kind: str, address: Address) -> str:
        texts = [x.text for x in self._witness.evidence.get(address, ()) if x.kind == kind]
        return f"{_REASONS[kind]}{f': {texts[0]}' if texts else ''}"

    def _kinds(self, address: Address) -> Sequence[str]:
        """Returns the possible reasons, the likeliest first."""
        if self._condition.is_about == "threads":
            return _THREADS
        if self._condition.is_about == "processes" or self._starts_workers(address):
            return _PROCESSES
        if not isinstance(self._condition, Again):
            return _KEPT
        return _SAME_COPIES if self._copies_agree(address) else _OTHER_COPIES

    def _starts_workers(self, address: Address) -> bool:
        """True if a stage itself has worker processes, not one before it."""
        above = [(*address, i) for i in range(len(inputs_of(stage_at(self._pipeline, address))))]
        has, *before = [
            Subject(self._pipeline, SubPipeline(x)).has_own_workers for x in (address, *above)
        ]
        return has and not any(before)

    def _copies_agree(self, address: Address) -> bool:
        """Returns true if unused copies give the same, so that the stage must keep something."""
        part, clock = self._part(address), self._clock.part(0.4)
        record = partial(base_of, self._condition, part, self._num_of(part), clock.left / 2)
        try:
            runs = [self._copies.call(record, clock) for _ in range(2)]
        except Exception:
            return True
        return all([first_difference(0, x, y) is None for x, y in zip(*runs, strict=False)])

    def _factor(self, address: Address) -> str | None:
        """Returns the property of the environment of a process that makes the difference, if a
        single one does.
        """
        assert isinstance(self._condition, Fresh)
        part = self._part(address)
        num = self._num_of(part)
        base: Any = None
        for factor, surroundings in _FACTORS.items():
            if self._clock.is_over:
                return None
            try:
                clock = self._clock.part(0.3)
                found = self._condition.outcomes(part, num + 1, clock, surroundings)
            except Exception:
                return None
            if base is None:
                base = found
            elif len(base) != len(found) or any(
                [first_difference(0, x, y) is not None for x, y in zip(base, found, strict=True)]
            ):
                return None if factor == "none" else factor
        return None


def _runs_differ(part: SubPipeline, num: int, seconds: float, pipeline: Any) -> bool:
    """Returns true if a second run of a pipeline differs from the first."""
    subject = Subject(pipeline, part)
    base = recorded(subject.open, num, Clock(seconds))
    return compare(Again(), subject, base, Clock(seconds)).difference is not None


_FACTORS = {
    "": Surroundings(),
    "none": Surroundings(number=1),
    "sets": Surroundings(number=2, hash_seed=2),
    "files": Surroundings(number=3, lists_backwards=True),
    "locale": Surroundings(number=4, has_other_locale=True),
}
