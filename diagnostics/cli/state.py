"""The command ``state``: what a checkpoint says, and whether it fits a pipeline.

A checkpoint may come from an untrusted place: what it says is neither believed (a number of
processes, of digits) nor printed as it is.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
import sys
import zlib
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.core.errors import StateMismatchError
from gristmill.core.naming import one_line
from gristmill.core.state import process_file_name, shown, state_from_text
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.descriptions.display import joined
from gristmill.dataset.descriptions.pipeline import check_description, describe
from gristmill.diagnostics.cli.position import position_lines
from gristmill.diagnostics.cli.printing import say
from gristmill.diagnostics.cli.reader import iterator_of
from gristmill.diagnostics.cli.target import CommandError, load_pipeline

_PROCESS_FILE = re.compile(r"process_([0-9]+)-of-([0-9]+)\.json")
_DATASET_FILE = re.compile(r"shard_state_([0-9]+)\.json")  # of an ElasticIterator of Grain
_STEP = re.compile(r"(?:.*_)?\d+")
_MAX_STAGE = 120  # a stage is shown on one line if it is not longer
_MAX_LINE = 1000
_MAX_VALUE = 500  # of a parameter
_NUM_MISSING = 8  # files that are named
_PARAMETERS = {"num_shards": "num_lanes"}  # names in descriptions, and those in programs


@dataclass(frozen=True)
class _Saved:
    """The contents of the files of one process.

    Args:
        path: of the state.
        text: the state.
        library: what wrote it; ``None`` if nothing says so.
        description: of the pipeline, if there is one.
        problem: what is wrong with the files, if something is.
    """

    path: Path
    text: bytes
    library: str | None = None
    description: Any = None
    problem: str | None = None


def state(args: Namespace) -> int:
    """Prints the position in a checkpoint. No line is longer than a terminal can show, and no
    control characters are printed.
    """
    pipeline = None if args.pipeline is None else load_pipeline(args.pipeline)
    code = 0
    for i, item in enumerate(_items(args.path)):
        if i:
            _say("")
        code = max(code, _heading(item))
        for k, saved in enumerate(item):
            _say("")
            is_new = saved.description not in [None, *[other.description for other in item[:k]]]
            code = max(code, _process(saved, is_new))
        if pipeline is not None:
            _say("")
            code = max(code, _verdict(item, args.pipeline, pipeline))
    return code


def state_text(path: str) -> bytes:
    """Returns the state of this process in a checkpoint, as it is saved.

    Raises:
        CommandError: there is no state, or there are several.
    """
    saved = [one for item in _items(path) for one in item]
    own = [one for one in saved if one.path.name == process_file_name()]
    found = own if len(own) == 1 else saved
    if len(found) != 1:
        names = ", ".join([str(one.path) for one in found[:_NUM_MISSING]])
        raise CommandError(
            f"--state must be a checkpoint with one state, got {path} with {len(found)}: {names}."
            " Name one of them"
        )
    if found[0].problem is not None:
        raise CommandError(found[0].problem, 1)
    return found[0].text


def _say(*lines: str) -> None:
    say(*[one_line(line, _MAX_LINE) for line in lines])


def _heading(item: list[_Saved]) -> int:
    path = item[0].path
    found = _PROCESS_FILE.fullmatch(path.name)
    _say(f"checkpoint  {path if found is None and len(item) == 1 else path.parent}")
    unknown = "not noted: Grain, or a state by itself"
    _say(f"written by  {', '.join(dict.fromkeys([saved.library or unknown for saved in item]))}")
    if found is None:
        return 0
    missing = _missing(path.parent, found[2])
    _say(f"processes   {found[2]}{', MISSING: ' if missing else ''}{', '.join(missing)}")
    return int(bool(missing))


def _missing(directory: Path, count: str) -> list[str]:
    """Returns the first files of processes that are not there, of as many as ``count`` says."""
    files = [_PROCESS_FILE.fullmatch(path.name) for path in directory.iterdir()]
    numbers = {found[1] for found in files if found and found[2] == count}
    num_missing = int(count) - len([number for number in numbers if int(number) < int(count)])
    missing = (f"process_{k}-of-{count}.json" for k in itertools.count() if str(k) not in numbers)
    names = list(itertools.islice(missing, min(num_missing, _NUM_MISSING)))
    more = num_missing - _NUM_MISSING
    return [*names, f"… and {more} more"] if more > 0 else names


def _process(saved: _Saved, shows_pipeline: bool) -> int:
    damaged = "" if saved.problem is None else "  DAMAGED"
    _say(f"{saved.path.name}  {len(saved.text):,} bytes{damaged}")
    if saved.problem is not None:
        _say(f"  {saved.problem}")
    try:
        state = state_from_text(saved.text, saved.path.name)
        _say(*["  " + line for line in position_lines(state, saved.description)])
        if shows_pipeline:
            _say("  of the pipeline")
            _say(*["    " + line for line in _stage_lines(saved.description)])
    except (ValueError, RecursionError) as error:  # no JSON, or nested without end
        _say(f"  {_message(error)}")
        return 1
    return int(saved.problem is not None)


def _verdict(item: list[_Saved], name: str, pipeline: Any) -> int:
    """Says if a pipeline, built by a single process, could be restored from one of the files, or
    from all together.
    """
    differences = [_difference(pipeline, functools.partial(_restore, saved)) for saved in item]
    for saved, difference in zip(item, differences, strict=True):
        where = f" from {saved.path.name}" if len(item) > 1 else ""
        if difference is None:
            _say(f"{name} would continue{where}")
        else:
            _say(f"{name} would refuse to continue{where}: {difference}")
    if None in differences:
        return 0
    if len(item) > 1 and _difference(pipeline, functools.partial(_merge, item)) is None:
        _say(f"{name} would continue from all of them together")
        return 0
    return 1


def _difference(pipeline: Any, restore: Callable[[Any], None]) -> str | None:
    """Why a state cannot be restored in a new iterator; ``None`` if it can."""
    with contextlib.closing(iterator_of(pipeline)) as it:
        try:
            restore(it)
        except Exception as error:
            return _message(error)
    return None


def _restore(saved: _Saved, it: Any) -> None:
    own = describe(it) if isinstance(it, DatasetIterator) else it._gm_describe()
    if saved.description is not None and own is not None:
        check_description(saved.description, own)
    if saved.problem is not None:
        raise StateMismatchError(saved.problem)
    it.set_state(state_from_text(saved.text, it))


def _merge(item: list[_Saved], it: Any) -> None:
    """Restores a checkpoint of another number of processes."""
    states = [state_from_text(saved.text, it) for saved in item]
    numbers = [_DATASET_FILE.fullmatch(saved.path.name) for saved in item]
    by_number = {found[1]: x for found, x in zip(numbers, states, strict=True) if found}
    it.set_state(it._gm_merged_state(by_number or states))


def restore_checkpoint(path: str, it: Any) -> None:
    """Sets an iterator to the position of a checkpoint: the first item that fits; of several
    processes all together, or the first.

    Raises:
        CommandError: there is no checkpoint.
        ValueError: it does not fit the pipeline.
    """
    problem: Exception | None = None
    for item in _items(path):
        merging = [functools.partial(_merge, item)] if len(item) > 1 else []
        for restore in (*merging, functools.partial(_restore, item[0])):
            try:
                return restore(it)
            except Exception as error:
                problem = error
    raise CommandError(
        f"{path} does not fit this pipeline: {_message(problem or ValueError('it is empty'))}",
        code=1,
    ) from problem


def _items(path: str) -> list[list[_Saved]]:
    """Returns the states of each item in a checkpoint, one for each process."""
    try:
        return [[_read(file) for file in files] for files in _files(Path(path))]
    except OSError as error:
        raise CommandError(_message(error)) from error


def _files(path: Path) -> Iterator[list[Path]]:
    """Yields the files with states of each item in a checkpoint."""
    if path.is_file():
        is_description = path.name.startswith("pipeline_")
        state_file = path.with_name(path.name.replace("pipeline_", "process_", 1))
        yield [state_file if is_description and state_file.is_file() else path]
        return
    if not path.is_dir():
        raise CommandError(f"there is no file or directory {path}")
    directories = [path]
    for _ in range(3):  # the item itself, a step with items, or a run with steps
        found = [files for files in map(_states_in, directories) if files]
        if found:
            yield from found
            return
        below = sorted(x for directory in directories for x in directory.iterdir() if x.is_dir())
        named = [x for x in below if _STEP.fullmatch(x.name)]
        steps = [x for x in named if x.name.isdecimal() or (x / "_CHECKPOINT_METADATA").exists()]
        directories = [max(steps, key=_number_at_end)] if steps else below
    raise CommandError(
        f"there is no process_<i>-of-<n>.json in {path}, in its items or in those of its last step"
    )


def _states_in(directory: Path) -> list[Path]:
    for form in (_PROCESS_FILE, _DATASET_FILE):
        files = [path for path in directory.iterdir() if form.fullmatch(path.name)]
        if files:
            return sorted(files, key=lambda path: [*map(int, re.findall(r"\d+", path.name))][::-1])
    return []


def _number_at_end(path: Path) -> int:
    return int(re.findall(r"\d+", path.name)[-1])


def _read(path: Path) -> _Saved:
    text = path.read_bytes()
    pipeline_file = path.with_name(path.name.replace("process_", "pipeline_", 1))
    if pipeline_file == path or not pipeline_file.exists():
        return _Saved(path, text)
    try:
        noted = json.loads(pipeline_file.read_bytes())
        library, crc32, description = noted["library"], noted["state_crc32"], noted["pipeline"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        return _Saved(path, text, problem=f"{pipeline_file.name} cannot be read: {shown(error)}")
    problem = None
    if crc32 != zlib.crc32(text):
        problem = f"its checksum is {zlib.crc32(text)}, {pipeline_file.name} says {shown(crc32)}"
    library = library if isinstance(library, str) else shown(library)
    return _Saved(path, text, library, description, problem)


def _stage_lines(description: Any) -> list[str]:
    """Returns the stages of a description, the sources first, with what is noted of them."""
    if not isinstance(description, dict):
        return [shown(description)]
    above = description.get("components", description.get("parents", []))
    parts = above.values() if isinstance(above, dict) else above if isinstance(above, list) else []
    branches = [_stage_lines(part) for part in parts]
    name = _plain_text(description.get("stage"))
    parameters = [
        f"{_PARAMETERS.get(key) or _plain_text(key)}={_parameter_text(key, value)}"
        for key, value in description.items()
        if key not in ("stage", "parents", "components")
    ]
    text = f"{name}({', '.join(parameters)})"
    lines = [text] if len(text) <= _MAX_STAGE else [name, *["  " + text for text in parameters]]
    return [*(branches[0] if len(branches) == 1 else joined(branches)), *lines]


def _parameter_text(key: str, value: Any) -> str:
    is_endless = key == "length" and type(value) is int and value >= sys.maxsize
    return "endless" if is_endless else _plain_text(value)


def _plain_text(value: Any) -> str:
    return one_line(value, _MAX_VALUE) if isinstance(value, str) else shown(value, _MAX_VALUE)


def _message(error: BaseException) -> str:
    return one_line(str(error) or type(error).__name__, _MAX_LINE)
