"""The commands that look at a pipeline or run it: ``inspect``, ``head``, ``diagnose``, ``bench``.

A command prints lines as they come, and returns the code to exit with.
"""

from __future__ import annotations

import json
import statistics
import time
from argparse import Namespace
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gristmill.core.options import ReadOptions
from gristmill.dataset.bases.iterator import snapshot
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.descriptions.display import length_text, stage_length
from gristmill.diagnostics.cli.elements import element_lines
from gristmill.diagnostics.cli.printing import say
from gristmill.diagnostics.cli.reader import (
    END,
    attended,
    ended_if_frozen,
    iterator_of,
    jumped,
    reading,
)
from gristmill.diagnostics.cli.target import CommandError, errors_of, load_pipeline
from gristmill.diagnostics.diagnosis.verdict import Diagnosis
from gristmill.diagnostics.files import write_text
from gristmill.diagnostics.graph.files import write_graph
from gristmill.diagnostics.graph.seen_specs import seen_specs
from gristmill.diagnostics.graph.spec_text import element_nbytes, spec_text
from gristmill.diagnostics.graph.stages import Graph, graph_of
from gristmill.diagnostics.graph.texts import stage_lines
from gristmill.diagnostics.runtime.summary import delays_text
from gristmill.diagnostics.units import digits_text
from gristmill.diagnostics.view import diagnose, observe, progress_of, run

_FROZEN_SECONDS = 30.0
_PERCENTS = (50, 95, 99)
_MAX_TRACE_SECONDS = 1.0
_NO_ELEMENTS = "the pipeline has no elements"


def inspect(args: Namespace) -> int:
    """Yields the graph, the lengths, and the specs of elements."""
    pipeline = load_pipeline(args.pipeline)
    graph = graph_of(pipeline)
    _draw(graph, args.output)
    spec = graph.stages[0].spec or "not known before the first one: --run reads it"
    if args.run:
        with reading(pipeline, args.stall_seconds) as (it, thread), observe(it) as view:
            first = thread.call(lambda: next(it, END))
            spec = "there is none" if first is END else spec_text(first)
            seen = {stage.id: "(not seen)" for stage in graph.stages if stage.spec is None}
            if first is not END:
                seen |= {**seen_specs(graph, view.summary()), 0: spec}
        graph = graph.with_specs(seen)
        _draw(graph, args.output)
    say(*stage_lines(graph))
    say("")
    say(f"length:   {length_text(stage_length(pipeline)) or 'not known before the end'}")
    say(f"element:  {spec}")
    return 0


def _draw(graph: Graph, path: str | None) -> None:
    if path is not None:
        with errors_of("--output"):
            write_graph(graph, path)


def head(args: Namespace) -> int:
    """Yields the first elements."""
    pipeline = load_pipeline(args.pipeline)
    if isinstance(pipeline, MapDataset):
        # Nothing is read that is not shown.
        pipeline = MapDataset.to_iter_dataset(pipeline, ReadOptions(num_threads=0))
    with reading(pipeline, args.stall_seconds) as (it, thread), observe(it):
        take = partial(thread.call, partial(next, it, END))
        if args.skip and not jumped(it, args.skip):
            for index in range(args.skip):
                if take() is END:
                    say(f"(the end: there are {index:,} elements)")
                    return 0
        for index in range(args.skip, args.skip + args.n):
            element = take()
            if element is END:
                say(f"(the end: there are {index:,} elements)")
                return 0
            if args.spec_only:
                say(f"{index}: {spec_text(element)}")
            else:
                say(*element_lines(element, f"{index}:"))
    return 0


def diagnosis(args: Namespace) -> int:
    """Prints the bottleneck of a pipeline."""
    pipeline = load_pipeline(args.pipeline)
    seconds = args.consumer_ms / 1000
    consumer = (lambda element: time.sleep(seconds)) if seconds else None
    with ended_if_frozen(args.stall_seconds if args.stall_seconds is not None else _FROZEN_SECONDS):
        found = diagnose(
            pipeline, args.seconds, consumer=consumer, stall_seconds=args.stall_seconds
        )
    text = f"{found}\n\n{found.snapshot.summary}"
    say(json.dumps(_as_data(found), indent=2) if args.json else text)
    if args.html is not None:
        from gristmill.diagnostics.report import report_html

        page = report_html(found)
        with errors_of("--html"):
            write_text(args.html, page)
    if args.trace is not None:
        trace_seconds = min(args.seconds, _MAX_TRACE_SECONDS)
        calls = _trace(pipeline, trace_seconds, consumer, args.stall_seconds)
        with errors_of("--trace"):
            write_text(args.trace, calls)
    return 0


def _as_data(found: Diagnosis) -> dict[str, Any]:
    fields = {key: value for key, value in vars(found).items() if key != "snapshot"}
    return {
        **fields,
        "parts": [vars(part) for part in found.parts],
        "summary": found.snapshot.summary.to_dict(),
    }


def _trace(
    pipeline: Any,
    seconds: float,
    consumer: Callable[[Any], Any] | None,
    stall_seconds: float | None,
) -> str:
    """Returns the calls of another run: to record them takes time, which the diagnosis is not
    about.
    """
    from gristmill.diagnostics.runtime.trace import trace_json

    with reading(pipeline, stall_seconds) as (it, thread), observe(it, trace=True) as view:
        work = partial(run, it, seconds, consumer, thread)
        thread.call(work, progress=lambda: progress_of(view))
        return trace_json(view.snapshot())


def bench(args: Namespace) -> int:
    """Prints the throughput of a pipeline."""
    pipeline = load_pipeline(args.pipeline)
    rates: list[float] = []
    sizes: list[int] = []
    delays = array("q")
    elements = Endless(pipeline)
    with attended(lambda: elements.it, elements.close, args.stall_seconds) as thread:
        with observe(elements.it):  # for what there is to say if it is stuck; only until it is warm
            warm = partial(elements.take_sizes, args.warmup, sizes)
            thread.call(warm, progress=lambda: len(sizes))
        for _ in range(args.repeat):
            before = len(delays)
            run_once = partial(elements.time, args.seconds, delays)
            elapsed = thread.call(run_once, progress=lambda: len(delays))
            rates.append((len(delays) - before) / elapsed)
    rate, size = statistics.median(rates), statistics.mean(sizes)
    found = np.percentile(np.frombuffer(delays, np.int64), _PERCENTS).tolist()
    data: dict[str, Any] = {
        "elements_per_second": rate,
        "elements_per_second_of_runs": rates,
        "megabytes_per_second": rate * size / 1e6 if size else None,
        "bytes_per_element": size or None,
        "delay_ns": dict(zip(_PERCENTS, found, strict=True)),
        "num_elements": len(delays),
        "seconds": args.seconds,
    }
    if args.json:
        say(json.dumps(data, indent=2))
        return 0
    spread, megabytes = "", "-  (no arrays, texts or bytes)"
    if len(rates) > 1:
        spread = f"  ({digits_text(min(rates))} to {digits_text(max(rates))} in {len(rates)} runs)"
    if size:
        megabytes = f"{digits_text(rate * size / 1e6)}  ({size:,.0f} bytes an element)"
    say(f"elements/s  {digits_text(rate)}{spread}")
    say(f"MB/s        {megabytes}")
    say(f"delay       {delays_text(data['delay_ns'])}")
    return 0


class Endless:
    """The elements of a pipeline, which starts again whenever it has ended."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self.it = iterator_of(pipeline)
        self._start = snapshot(self.it)

    def close(self) -> None:
        self.it.close()

    def _begin(self) -> None:
        if self._start is not None:
            self.it.set_state(self._start)
        else:
            self.it.close()
            self.it = iterator_of(self._pipeline)

    def take_sizes(self, seconds: float, sizes: list[int]) -> None:
        """Takes elements for a time, at least one, and appends their sizes in bytes."""
        deadline = time.perf_counter() + seconds
        while not sizes or time.perf_counter() < deadline:
            element = next(self.it, END)
            if element is not END:
                sizes.append(element_nbytes(element))
            elif sizes:
                self._begin()
            else:
                raise CommandError(_NO_ELEMENTS, code=1)

    def time(self, seconds: float, delays: array[int]) -> float:
        """Takes elements for a time, at least one, appends how many nanoseconds each took, and
        returns the time in seconds.

        To start again counts as time, and as a part of the delay of the element after it.
        """
        clock, take, append = time.perf_counter_ns, self.it.__next__, delays.append
        start = before = clock()
        deadline = start + int(seconds * 1e9)
        num, num_at_end = len(delays), -1
        while before < deadline or len(delays) == num:
            try:
                take()
            except StopIteration:
                if num_at_end == len(delays):
                    again = " only once: it gives none when it starts again"
                    text = f"the pipeline has elements{again}" if delays else _NO_ELEMENTS
                    raise CommandError(text, code=1) from None
                num_at_end = len(delays)
                self._begin()
                take = self.it.__next__
                continue
            after = clock()
            append(after - before)
            before = after
        return (before - start) / 1e9
