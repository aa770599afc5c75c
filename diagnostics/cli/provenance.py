"""The commands ``show`` and ``trace``: which records made an output, and which outputs a record
made.
"""

from __future__ import annotations

import contextlib
import itertools
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gristmill.core.errors import StateMismatchError
from gristmill.core.naming import one_line
from gristmill.core.state import state_from_text
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.next_index import set_next_index
from gristmill.diagnostics.cli.elements import element_lines
from gristmill.diagnostics.cli.printing import say
from gristmill.diagnostics.cli.reader import iterator_of
from gristmill.diagnostics.cli.state import state_text
from gristmill.diagnostics.cli.target import CommandError, load_pipeline
from gristmill.diagnostics.cli.words import in_options
from gristmill.diagnostics.provenance import Ledger, Record, explain
from gristmill.diagnostics.provenance.explaining import NoOutputError, each_output
from gristmill.diagnostics.provenance.ledger import as_ledger
from gristmill.loader import DataLoader

_SAID = (NotImplementedError, IndexError, FileNotFoundError, NoOutputError, StateMismatchError)
_MAX_LINE = 1000
_MAX_PICTURES = 4  # of a batch
_MAX_WIDTH = 64  # characters
_SHADES = " .:-=+*#%@"
_MAX_OUTPUTS = 1_000_000  # that are looked at, if nothing else is said


def show(args: Namespace) -> int:
    """Prints the records that made an output, optionally with the values of a field."""
    if (args.step is None) == (args.state is None):
        raise CommandError("give --step N or --state CHECKPOINT: which output is to be shown")
    pipeline = load_pipeline(args.pipeline)
    with _said_of_the_pipeline():
        ledger = None if args.ledger is None else as_ledger(args.ledger)
        state = None if args.state is None else _state_for(pipeline, args.state)
        provenance = explain(pipeline, state=state, step=args.step, ledger=ledger)
    for line in str(provenance).splitlines():
        say(one_line(line, _MAX_LINE))
    if args.field is not None:
        value = _field(_output(pipeline, state, args.step, ledger), args.field)
        say("")
        say(*element_lines(value, f"{args.field}:"))
        say(*_pictures(value))
    return 0


def trace(args: Namespace) -> int:
    """Yields the outputs that a record made."""
    pipeline = load_pipeline(args.pipeline)
    limit = args.steps or _MAX_OUTPUTS
    num = num_found = 0
    with _said_of_the_pipeline():
        for provenance in itertools.islice(each_output(pipeline), limit):
            num += 1
            for i, row in enumerate(provenance.rows):
                for record in row.records:
                    is_of_source = (args.source or "") in record.source
                    if str(record.record_key) == args.record and is_of_source:
                        num_found += 1
                        text = f"step {provenance.step}, row {i}: {_words(record)}"
                        say(one_line(text, _MAX_LINE))
    times = f"{num_found} time{'s' * (num_found != 1)}"
    more = ", and there are more of them (see --steps)" if num == limit else ""
    say(f"record {one_line(args.record, 100)}: used {times} in {num:,} outputs{more}")
    return 0


@contextlib.contextmanager
def _said_of_the_pipeline() -> Iterator[None]:
    try:
        yield
    except _SAID as error:
        text = in_options(str(error))
        if isinstance(error, StateMismatchError):
            text += ". `python -m gristmill state CHECKPOINT --pipeline PIPELINE` compares the two"
        raise CommandError(text, 1) from error


def _words(record: Record) -> str:
    parts = [f"epoch {record.epoch}", f"index {record.index}", record.source]
    if record.components:
        parts.append(f"component {'/'.join(map(str, record.components))}")
    if record.seed is not None:
        parts.append(f"random stream {record.seed[1]} of seed {record.seed[0]}")
    if record.span is not None:
        parts.append(f"cells {record.span[0]} to {record.span[1] - 1}")
    return ", ".join(parts)


def _state_for(pipeline: Any, path: str) -> Any:
    text = state_text(path)
    return text if isinstance(pipeline, DataLoader) else state_from_text(text, pipeline)


def _output(pipeline: Any, state: Any, step: int | None, ledger: Ledger | None) -> Any:
    if isinstance(pipeline, MapDataset) and step is not None:
        return pipeline[step]
    it = iterator_of(pipeline)
    try:
        num = 0
        if step is not None and ledger is not None:
            found, state = ledger.state_before(step)
            num = step - found
        elif step is not None:
            set_next_index(it, step)
        if state is not None:
            it.set_state(state)
        return next(itertools.islice(it, num, None))
    finally:
        it.close()


def _field(element: Any, name: str) -> Any:
    for part in name.split("."):
        if isinstance(element, list | tuple) and part.isdecimal() and int(part) < len(element):
            element = element[int(part)]
        elif isinstance(element, Mapping) and part in element:
            element = element[part]
        else:
            names = list(element) if isinstance(element, Mapping) else type(element).__name__
            raise CommandError(f"there is no field {part!r} in the output; there is {names!s:.500}")
    return element


def _pictures(value: Any) -> Iterator[str]:
    """Images in characters: of ``uint8`` [height, width], with 1, 3 or 4 colours [height, width,
    colour], or batches of these.
    """
    image = np.asarray(value)
    if image.dtype != np.uint8 or 0 in image.shape:
        return
    has_colours = image.ndim > 2 and image.shape[-1] in (1, 3, 4)
    if image.ndim == 3 + has_colours:
        for i, one in enumerate(image[:_MAX_PICTURES]):
            yield f"row {i}:"
            yield from _picture(one, has_colours)
    elif image.ndim == 2 + has_colours:
        yield from _picture(image, has_colours)


def _picture(image: Any, has_colours: bool) -> Iterator[str]:
    grey = image[..., :3].mean(-1) if has_colours else image.astype(float)
    height, width = grey.shape
    num_columns = min(width * 2, _MAX_WIDTH)  # a character is twice as high as it is wide
    num_lines = max(1, round(height * num_columns / width / 2))
    lines = np.linspace(0, height, num_lines, endpoint=False).astype(int)
    columns = np.linspace(0, width, num_columns, endpoint=False).astype(int)
    for line in (grey[lines][:, columns] * len(_SHADES) / 256).astype(int):
        yield "".join([_SHADES[shade] for shade in line])
