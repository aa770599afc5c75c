"""Traces of single calls, in the format of Chrome and Perfetto.

Source: "Trace Event Format", Google 2016: complete events (``ph: X``) with times in microseconds,
and names of processes and threads as metadata (``ph: M``).
"""

from __future__ import annotations

import json
from typing import Any

from gristmill.diagnostics.summary import Snapshot


def trace_json(snapshot: Snapshot) -> str:
    """Returns the recorded calls of a snapshot: a row for each thread, stages that call one another
    nested.
    """
    events: list[dict[str, Any]] = []
    processes = dict.fromkeys([line.process for line in snapshot.threads])
    numbers = {name: i for i, name in enumerate(processes)}
    begins = [event[0] for line in snapshot.threads for event in line.events]
    start = min(begins, default=0)
    for name, number in numbers.items():
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}})
        events.append(
            {"ph": "M", "name": "process_sort_index", "pid": number, "args": {"sort_index": number}}
        )
    for thread, line in enumerate(snapshot.threads):
        pid = numbers[line.process]
        events.append(
            {
                "ph": "M",
                "name": "thread_name",
                "pid": pid,
                "tid": thread,
                "args": {"name": line.thread},
            }
        )
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
