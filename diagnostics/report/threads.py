"""The time of every thread of a pipeline, by stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gristmill.diagnostics.runtime.remote import ThreadTimeline
from gristmill.diagnostics.runtime.summary import ExecutionSummary, StageSummary

# The colour of stages whose elements others compute: their time is that of waiting.
WAITING = "waiting"
_OTHERS = "c0"  # the colour that the stages with little time share
_MAX_THREADS = 60


@dataclass
class ThreadTime:
    """The shares that a thread spent of its time, or several threads together.

    Args:
        name: of its process and of it.
        is_first: whether it is the first one of its process.
        shares: by colour, in [0, 1]; less than 1 together if it also did something else.
    """

    name: str
    is_first: bool = True
    shares: dict[str, float] = field(default_factory=dict)

    @property
    def working(self) -> float:
        return min(1.0, sum([x for colour, x in self.shares.items() if colour != WAITING]))

    @property
    def waiting(self) -> float:
        return min(1.0, self.shares.get(WAITING, 0.0))


def thread_times(
    threads: Sequence[ThreadTimeline],
    summary: ExecutionSummary,
    colours: Mapping[int, str],
) -> list[ThreadTime]:
    """Returns the times of all threads, those of one process together, the main one first; where
    there are very many, one entry has the mean of those that are not shown.

    Args:
        threads: what each has done.
        summary: the stages.
        colours: of the stages.
    """
    threads = _in_order(threads)
    names = Counter([(thread.process, thread.thread) for thread in threads])
    numbers: Counter[tuple[str, str]] = Counter()
    in_process: Counter[str] = Counter()
    times, places = [], []
    for thread in threads:
        key = thread.process, thread.thread
        numbers[key] += 1
        name = f"{thread.process}: {thread.thread}"
        name += f" {numbers[key]}" if names[key] > 1 else ""
        place = in_process[thread.process]
        times.append(ThreadTime(name, not place, _shares(thread, summary, colours)))
        places.append(place)
        in_process[thread.process] += 1
    if len(times) <= _MAX_THREADS:
        return times
    # The first threads of every process, then the second ones, and so on, while there is room.
    shown = {*sorted(range(len(times)), key=lambda i: (places[i], i))[: _MAX_THREADS - 1]}
    others = [one for i, one in enumerate(times) if i not in shown]
    mean = {
        colour: sum([one.shares.get(colour, 0.0) for one in others]) / len(others)
        for colour in dict.fromkeys([colour for one in others for colour in one.shares])
    }
    together = ThreadTime(f"… and {len(others)} more threads", shares=mean)
    return [*[one for i, one in enumerate(times) if i in shown], together]


def legend(
    times: Sequence[ThreadTime], stages: Mapping[int, StageSummary], colours: Mapping[int, str]
) -> list[tuple[str, str]]:
    """Returns the colours of ``times`` with what each means."""
    used = {colour for one in times for colour in one.shares}
    names = [
        (colours[i], f"{i} {short_name(stages[i])}")
        for i in sorted(stages, reverse=True)
        if colours[i] in used - {_OTHERS, WAITING}
    ]
    names += [(_OTHERS, "other stages")] if _OTHERS in used else []
    waits = "waiting for what other threads and processes compute"
    names += [(WAITING, waits)] if WAITING in used else []
    return [*names, ("idle", "anything else: no work, or the consumer's own")]


def _in_order(threads: Sequence[ThreadTimeline]) -> list[ThreadTimeline]:
    """Sorts the main process first, then the workers by number; the thread that takes the elements
    first of all.
    """
    processes = sorted({thread.process for thread in threads}, key=_process_order)
    order = {name: i for i, name in enumerate(processes)}
    return sorted(threads, key=lambda thread: (order[thread.process], not _takes_elements(thread)))


def _process_order(process: str) -> tuple[bool, int, str]:
    number = process.rpartition(" ")[2]
    return process != "main", int(number) if number.isdecimal() else 0, process


def _takes_elements(thread: ThreadTimeline) -> bool:
    return bool(thread.process == "main" and thread.own_ns.get(0))


def _shares(
    thread: ThreadTimeline, summary: ExecutionSummary, colours: Mapping[int, str]
) -> dict[str, float]:
    own, whole = thread.own_ns, max(thread.seen_ns, 1)
    spent: Counter[str] = Counter()
    for i in own:
        if i in summary:
            spent[colours[i]] += _waited(i, own, summary) if colours[i] == WAITING else own[i]
    order = sorted(spent, key=lambda colour: (colour == WAITING, colour == _OTHERS, colour))
    return {colour: spent[colour] / whole for colour in order if spent[colour]}


def _waited(stage: int, own: Mapping[int, int], summary: ExecutionSummary) -> int:
    """Returns the time that a prefetching stage has waited in this thread, which may also compute
    its input.
    """
    upstream = summary.upstream([stage], past_prefetch=False)
    return max(0, own[stage] - sum([own.get(x.id, 0) for x in upstream]))


def short_name(stage: StageSummary) -> str:
    """Returns its class, and the function if it has one."""
    kind, _, rest = stage.name.partition("(")
    function = (
        rest.removeprefix("transform=").partition(" @")[0] if rest.startswith("transform=") else ""
    )
    return f"{kind[:60]} {function[:60]}".strip()
