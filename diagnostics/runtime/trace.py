"""Traces of single calls, in the format of Chrome and Perfetto.

Source: "Trace Event Format", Google 2016: complete events (``ph: X``) with times in microseconds,
and names of processes and threads as metadata (``ph: M``).
"""

from __future__ import annotations

import json
from typing import Any

from gristmill.diagnostics.runtime.summary import Snapshot


def trace_json(snapshot: Snapshot) -> str:
    """Returns the recorded calls of a snapshot: a row for each thread, stages that call one another
    nested.
    """
    events: list[dict[str, Any]] = []

    def note(kind: str, args: dict[str, Any], **place: int) -> None:
        events.append({"ph": "M", "name": kind, **place, "args": args})

    processes = dict.fromkeys([line.process for line in snapshot.threads])
    numbers = {name: i for i, name in enumerate(processes)}
    start = min([event[0] for line in snapshot.threads for event in line.events], default=0)
    for name, number in numbers.items():
        note("process_name", {"name": name}, pid=number)
        note("process_sort_index", {"sort_index": number}, pid=number)
    for thread, line in enumerate(snapshot.threads):
        pid = numbers[line.process]
        note("thread_name", {"name": line.thread}, pid=pid, tid=thread)
        for began, ended, stage, num in line.events:
            node = snapshot.summary[stage]
            events.append(
                {
                    "ph": "X",
                    "name": node.name.partition("(")[0],
                    "cat": node.category,
                    "pid": pid,
                    "tid": thread,
                    "ts": (began - start) / 1000,
                    "dur": (ended - began) / 1000,
                    "args": {"stage": node.name, "id": stage, "elements": num},
                }
            )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
