"""Code shared by the conformance checks: laws, the report of a broken one, and the laws of
everything that is only read.

Sources, samplers, map datasets and transformations follow one rule: a result depends on the
arguments alone, not on the number or the order of calls, the thread or the process.
"""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from gristmill.core.naming import without_addresses
from gristmill.core.options import MultiprocessingOptions, ReadOptions
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.descriptions.equality import are_equal

T = TypeVar("T")

_NUM_THREADS = 8


@dataclass(frozen=True)
class Law:
    """A requirement, and a hint on how to meet it."""

    text: str
    advice: str

    def broken(self, found: str) -> AssertionError:
        return AssertionError(f"broken law: {self.text}. Found: {found}. {self.advice}")

    def check(self, holds: bool, found: str) -> None:
        if not holds:
            raise self.broken(found)

    def run(self, what: str, fn: Callable[..., T], *args: Any) -> T:
        """Returns ``fn(*args)``, which must not raise."""
        try:
            return fn(*args)
        except Exception as error:
            raise self.broken(f"{what} raised {type(error).__name__}: {error!s:.500}") from error

    def refuses(
        self, what: str, errors: tuple[type[Exception], ...], fn: Callable[..., Any], *args: Any
    ) -> None:
        """Checks that ``fn(*args)`` raises one of ``errors``."""
        try:
            got = self.run(what, fn, *args)
        except AssertionError as error:
            if isinstance(error.__cause__, errors):
                return
            raise
        raise self.broken(f"{what} gave {got!r:.200}")

    def equal(self, what: str, expected: Any, got: Any) -> None:
        self.check(are_equal(expected, got), f"{what} must be {expected!r:.300}, got {got!r:.300}")


READABLE = Law(
    "all that may be asked for is there",
    "A pipeline asks for it sooner or later: try exactly this by itself.",
)
REPEATABLE = Law(
    "what comes back depends on what is asked for alone, not on what was asked for before",
    "Draw no random numbers but from a generator that is handed in, keep no position in the object,"
    " do not hand out memory that the next read fills again, and do not change what is stored.",
)
BLOCKS = Law(
    "a vectored read gives the same as single reads, in the order of the keys",
    "Return one entry for each key, also for repeated and unsorted ones, or do not define the"
    " vectored read.",
)
THREADS = Law(
    "several threads may read at the same time",
    "Do not share a file position, a buffer or a connection among threads: use os.pread,"
    " threading.local or a lock.",
)
PICKLES = Law(
    "a copy made by cloudpickle is equal",
    "Worker processes get such a copy: leave open files, locks and the like out of __getstate__ and"
    " make them again at the first use.",
)
WORKERS = Law(
    "in a worker process everything is the same",
    "Use no global variables that are changed while the program runs, no open files of this"
    " process, no hash() of strings, and return elements that can be pickled.",
)
TEXT = Law(
    "the repr is the same in every run",
    "States carry it to notice that they are restored with other data: define __repr__ with what"
    " identifies the data (a path, a length, a version).",
)


def check_answers(
    subject: Any,
    questions: Sequence[Any],
    answers: Callable[[Any, list[Any]], list[Any]],
    name: Callable[[Any], str],
    *,
    with_repr: bool = False,
    in_worker: bool = False,
) -> list[Any]:
    """Returns the answer to each question, if those laws hold that everything which is only read
    obeys.

    Args:
        subject: what is asked.
        questions: what to ask.
        answers: ``answers(subject, questions)`` asks one question, or many in one go.
        name: the text of a question in a message.
        with_repr: whether the ``repr`` has to be the same in every run, too.
        in_worker: whether to ask in a worker process, too.
    """
    text = _stable_text(subject) if with_repr else ""
    unused = copied(subject)
    expected = [kept(READABLE.run(name(q), answers, subject, [q])[0]) for q in questions]
    backwards = list(range(len(questions)))[::-1]
    again = [
        REPEATABLE.run(name(questions[i]), answers, subject, [questions[i]])[0] for i in backwards
    ]
    for i, x in zip(backwards, again, strict=True):
        REPEATABLE.equal(name(questions[i]), expected[i], x)
    for order in (backwards, backwards * 2, sorted(backwards * 2)) if questions else ():
        block = [questions[i] for i in order]
        got = BLOCKS.run(f"a read of {block!r:.200} at once", answers, subject, block)
        BLOCKS.check(
            len(got) == len(block),
            f"a read of {block!r:.200} at once gave {len(got)} instead of {len(block)}",
        )
        for i, x in zip(order, got, strict=True):
            BLOCKS.equal(f"{name(questions[i])}, read with {len(order) - 1} others", expected[i], x)
    _check_threads(lambda q: answers(subject, [q])[0], questions, expected, name)
    for which, other in (
        ("a copy made before the first read", unused),
        ("a copy made after reads", copied(subject)),
    ):
        if with_repr:
            TEXT.equal(f"repr of {which}", text, repr(other))
        for q, x in zip(questions, expected, strict=True):
            what = f"{name(q)} of {which}"
            PICKLES.equal(what, x, PICKLES.run(what, answers, other, [q])[0])
    if with_repr:
        TEXT.equal("repr after reads", text, repr(subject))
    if in_worker:
        repr_there, found = _run_in_worker(
            lambda: (
                repr(subject) if with_repr else "",
                [answers(subject, [q])[0] for q in questions],
            )
        )
        TEXT.equal("repr in a worker process", text, repr_there)
        for q, x, y in zip(questions, expected, found, strict=True):
            WORKERS.equal(f"{name(q)} in a worker process", x, y)
    return expected


def kept(value: T) -> T:
    """Returns a copy of ``value`` that stays as it is when ``value`` is changed; itself if it
    cannot be copied.
    """
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def spread(length: int, count: int) -> list[int]:
    """Returns at most ``count`` of the integers below ``length``: all, or some that are spread
    evenly, the last one among them.

    Example:
        >>> spread(3, 10), spread(1000, 4)
        ([0, 1, 2], [0, 333, 666, 999])
    """
    count = min(length, count)
    return [i * (length - 1) // max(1, count - 1) for i in range(count)]


def in_threads(fn: Callable[[int], T]) -> list[T]:
    """Returns ``fn(i)`` for each of eight threads that run at the same time and interrupt one
    another often.
    """
    start = threading.Barrier(_NUM_THREADS)

    def run(i: int) -> T:
        start.wait()
        return fn(i)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            return list(pool.map(run, range(_NUM_THREADS)))
    finally:
        sys.setswitchinterval(interval)


def _check_threads(
    answer: Callable[[Any], Any],
    questions: Sequence[Any],
    expected: list[Any],
    name: Callable[[Any], str],
) -> None:
    def ask(thread: int) -> None:
        # each begins somewhere else, and goes around
        first = thread * len(questions) // _NUM_THREADS
        for i in [*range(first, len(questions)), *range(first)]:
            what = f"{name(questions[i])} in one of {_NUM_THREADS} threads"
            THREADS.equal(what, expected[i], THREADS.run(what, answer, questions[i]))

    in_threads(ask)


def copied(subject: T) -> T:
    from gristmill.workers.pickling import dumps

    return PICKLES.run(f"copying {type(subject).__name__}", lambda: pickle.loads(dumps(subject)))


def _stable_text(subject: Any) -> str:
    text = TEXT.run("repr", repr, subject)
    TEXT.check(without_addresses(text) == text, f"{text!r:.300} has a memory address")
    return text


def _run_in_worker(fn: Callable[[], T]) -> T:
    from gristmill.workers.pickling import dumps

    ds = (
        MapDataset.source([fn])
        .map(lambda fn: dumps(fn()))
        .to_iter_dataset(ReadOptions(num_threads=0))
    )
    with iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=1, executor="processes"))) as it:
        return pickle.loads(WORKERS.run("a worker process", next, it))
