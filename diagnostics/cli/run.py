"""The commands that look at a pipeline or run it: ``inspect``, ``head``, ``diagnose``, ``bench``.

A command gives the lines that it prints, as they come, and returns the code to exit with.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from argparse import Namespace
from array import array
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeAlias

import numpy as np

from gristmill.core.options import ReadOptions
from gristmill.dataset.display import abbreviated, length_text, stage_length
from gristmill.dataset.iterator import iterate, snapshot
from gristmill.dataset.map_dataset import MapDataset
from gristmill.dataset.next_index import set_next_index
from gristmill.diagnostics.cli.elements import element_lines
from gristmill.diagnostics.cli.target import CommandError, load_pipeline
from gristmill.diagnostics.files import write_text
from gristmill.diagnostics.graph import graph_of, visualize
from gristmill.diagnostics.graph_texts import graph_text
from gristmill.diagnostics.spec_text import element_nbytes, spec_text
from gristmill.diagnostics.summary import time_text
from gristmill.diagnostics.verdict import Diagnosis, run
from gristmill.diagnostics.view import dataset_iterator, diagnose, observe
from gristmill.loader import DataLoader

Lines: TypeAlias = Generator[str, None, int]

_END = object()
_MAX_SOURCES = 8
_MAX_TRACE_SECONDS = 1.0


def inspect(args: Namespace) -> Lines:
    """The graph, the lengths, and what elements look like."""
    pipeline = load_pipeline(args.pipeline)
    if args.output is not None:
        try:
            visualize(pipeline, args.output)
        except (OSError, ValueError) as error:
            raise CommandError(f"--output: {error}") from error
    graph = graph_of(pipeline)
    spec, seen = graph.stages[0].spec or "not known before the first one: --run reads it", {}
    if args.run:
        with opened(pipeline) as it:
            first = next(it, _END)
        spec = "there is none" if first is _END else spec_text(first)
        seen = {} if first is _END else {0: spec}
    yield graph_text(graph, seen)
    yield ""
    yield f"length:   {length_text(stage_length(pipeline)) or 'not known before the end'}"
    sources = [f"{stage.name}  {length_text(stage.length)}".rstrip() for stage in graph.stages if not stage.inputs]
    for text in abbreviated(sources, _MAX_SOURCES, lambda num: f"… {num} more …"):
        yield f"source:   {text}"
    yield f"element:  {spec}"
    return 0


def head(args: Namespace) -> Lines:
    """The first elements."""
    pipeline = load_pipeline(args.pipeline)
    if isinstance(pipeline, MapDataset):
        pipeline = pipeline.to_iter_dataset(ReadOptions(num_threads=0))  # nothing that is not shown
    with opened(pipeline) as it:
        if args.skip and not _jumped(it, args.skip):
            for index in range(args.skip):
                if next(it, _END) is _END:
                    yield f"(the end: there are {index:,} elements)"
                    return 0
        for index in range(args.skip, args.skip + args.num):
            element = next(it, _END)
            if element is _END:
                yield f"(the end: there are {index:,} elements)"
                return 0
            if args.spec_only:
                yield f"{index}: {spec_text(element)}"
            else:
                yield from element_lines(element, f"{index}:")
    return 0


def _jumped(it: Any, index: int) -> bool:
    """Whether ``it`` could go on at an index without what comes before; where elements are left out, one has to count."""
    if dataset_iterator(it)._has_gaps():
        return False
    try:
        set_next_index(it, index)
    except (NotImplementedError, ValueError):  # it cannot, or there are fewer, which are counted then
        return False
    return True


def diagnosis(args: Namespace) -> Lines:
    """What binds a pipeline."""
    pipeline = load_pipeline(args.pipeline)
    seconds = args.consumer_ms / 1000
    consumer = (lambda element: time.sleep(seconds)) if seconds else None
    found = diagnose(pipeline, args.seconds, consumer=consumer)
    yield json.dumps(_as_data(found), indent=2) if args.json else f"{found}\n\n{found.snapshot.summary}"
    if args.html is not None:
        from gristmill.diagnostics.report import report_html

        _write("--html", args.html, report_html(found))
    if args.trace is not None:
        _write("--trace", args.trace, _trace(pipeline, min(args.seconds, _MAX_TRACE_SECONDS), consumer))
    return 0


def _as_data(found: Diagnosis) -> dict[str, Any]:
    fields = {key: value for key, value in vars(found).items() if key != "snapshot"}
    return {**fields, "summary": found.snapshot.summary.to_dict()}


def _trace(pipeline: Any, seconds: float, consumer: Callable[[Any], Any] | None) -> str:
    """The calls of another run: to record them takes time, which the diagnosis is not about."""
    from gristmill.diagnostics.trace import trace_json

    with opened(pipeline) as it, observe(it, trace=True) as view:
        run(it, seconds, consumer, time.perf_counter)
        return trace_json(view.snapshot())


def _write(option: str, path: str, text: str) -> None:
    try:
        write_text(path, text)
    except OSError as error:
        raise CommandError(f"{option}: {error}") from error


def bench(args: Namespace) -> Lines:
    """How fast a pipeline is."""
    pipeline = load_pipeline(args.pipeline)
    rates, delays = [], array("q")
    with contextlib.closing(_Endless(pipeline)) as elements:
        sizes = elements.sizes(args.warmup)
        for _ in range(args.repeat):
            before = len(delays)
            elapsed = elements.time(args.seconds, delays)
            rates.append((len(delays) - before) / elapsed)
    rate, size = statistics.median(rates), statistics.mean(sizes)
    percentiles = dict(zip((50, 95, 99), np.percentile(np.frombuffer(delays, np.int64), (50, 95, 99)).tolist(), strict=True))
    if args.json:
        yield json.dumps(
            {
                "elements_per_second": rate,
                "elements_per_second_of_runs": rates,
                "megabytes_per_second": rate * size / 1e6 if size else None,
                "bytes_per_element": size or None,
                "delay_ns": percentiles,
                "num_elements": len(delays),
                "seconds": args.seconds,
            },
            indent=2,
        )
        return 0
    spread = f"  ({_rate(min(rates))} to {_rate(max(rates))} in {len(rates)} runs)" if len(rates) > 1 else ""
    yield f"elements/s  {_rate(rate)}{spread}"
    megabytes = f"{_rate(rate * size / 1e6)}  ({size:,.0f} bytes an element)" if size else "-  (no arrays, texts or bytes)"
    yield f"MB/s        {megabytes}"
    yield f"delay       {', '.join([f'p{percent} {time_text(delay)}' for percent, delay in percentiles.items()])}"
    return 0


class _Endless:
    """The elements of a pipeline, which begins anew whenever it has ended."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._it = _iterator(pipeline)
        self._start = snapshot(self._it)

    def close(self) -> None:
        self._it.close()

    def _begin(self) -> None:
        if self._start is not None:
            self._it.set_state(self._start)
        else:
            self._it.close()
            self._it = _iterator(self._pipeline)

    def sizes(self, seconds: float) -> list[int]:
        """Takes elements for a time, at least one, and returns their sizes in bytes."""
        sizes: list[int] = []
        deadline = time.perf_counter() + seconds
        while not sizes or time.perf_counter() < deadline:
            element = next(self._it, _END)
            if element is not _END:
                sizes.append(element_nbytes(element))
            elif sizes:
                self._begin()
            else:
                raise CommandError("the pipeline has no elements", code=1)
        return sizes

    def time(self, seconds: float, delays: array[int]) -> float:
        """Takes elements for a time, at least one, appends how many nanoseconds each took, and returns the time in seconds.

        To begin anew counts as time, and as a part of the delay of the element after it.
        """
        clock, take, append = time.perf_counter_ns, self._it.__next__, delays.append
        start = before = clock()
        deadline = start + int(seconds * 1e9)
        num, num_at_end = len(delays), -1
        while before < deadline or len(delays) == num:
            try:
                take()
            except StopIteration:
                if num_at_end == len(delays):
                    raise CommandError("the pipeline has elements only once: it gives none when it begins anew", code=1) from None
                num_at_end = len(delays)
                self._begin()
                take = self._it.__next__
                continue
            after = clock()
            append(after - before)
            before = after
        return (before - start) / 1e9


def _rate(per_second: float) -> str:
    return f"{per_second:,.{0 if per_second >= 100 else 1 if per_second >= 10 else 3}f}"


def _iterator(pipeline: Any) -> Any:
    return iter(pipeline) if isinstance(pipeline, DataLoader) else iterate(pipeline)


@contextlib.contextmanager
def opened(pipeline: Any) -> Iterator[Any]:
    """A new iterator of a dataset or a ``DataLoader``, which is closed afterwards."""
    with contextlib.closing(_iterator(pipeline)) as it:
        yield it
