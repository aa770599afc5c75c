"""``python -m gristmill``: pipelines and checkpoints from a command line."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import math
import os
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TextIO, TypeAlias

from gristmill.diagnostics.attended import PipelineStalledError
from gristmill.diagnostics.cli import provenance, run, shuffle, state, verify
from gristmill.diagnostics.cli.target import CommandError

if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]

_PROG = "python -m gristmill"
RUN_AS_GRAIN = "run-as-grain"
_INTERRUPTED = 130

_PIPELINE = """\
PIPELINE is module:attribute or path/to/file.py:attribute. The attribute is a MapDataset, an
IterDataset or a DataLoader, or what makes one when it is called without arguments.
"""
_ABOUT = f"""\
Looks at pipelines and checkpoints.

{_PIPELINE}"""
_CODES = """\
exit codes:
  0    done
  1    the pipeline raised an error (its traceback is on stderr) or is stuck (where, is on stderr),
       or the checkpoint is damaged or does not fit the pipeline, or the pipeline is not
       deterministic
  2    there is no such pipeline, file or option, or a file cannot be written
  130  interrupted
"""
_EPILOG = f"""\
examples:
  {_PROG} inspect input_pipeline:train_ds
  {_PROG} head train.py:make_dataset -n 2
  {_PROG} diagnose train.py:make_dataset --consumer-ms 50 --html report.html
  {_PROG} bench train.py:make_dataset --seconds 3
  {_PROG} tune train.py:make_dataset
  {_PROG} verify train.py:make_dataset
  {_PROG} state checkpoints/1000 --pipeline train.py:make_dataset
  {_PROG} show train.py:make_dataset --step 12345
  {_PROG} view train.py:make_dataset
  {_PROG} write train.py:make_dataset prepared --workers 8
  {_PROG} diagnose --help

{_CODES}"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the code to exit with.

    Args:
        argv: the arguments, by default those of the process.

    Raises:
        SystemExit: the arguments are wrong, or help was requested.
    """
    try:
        try:
            return _run(_parser().parse_args(argv))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # the reader of the pipe has closed it; nothing must be written at exit either
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _INTERRUPTED


def _run(args: argparse.Namespace) -> int:
    with contextlib.closing(args.command(args)) as lines:
        while True:
            try:
                line = next(lines)
            except StopIteration as end:
                return int(end.value)
            except CommandError as error:
                _say(f"{_PROG}: {error}", sys.stderr)
                return error.code
            except PipelineStalledError as error:
                _say(f"{_PROG}: {error}", sys.stderr)
                return 1
            except Exception as error:
                traceback.print_exception(
                    type(error), error, _from_the_users_code(error.__traceback__)
                )
                return 1
            _say(line, sys.stdout)


def _say(text: str, stream: TextIO) -> None:
    """Prints any text on any terminal."""
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def _from_the_users_code(tb: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without the calls that led to the user's code; ``None`` if it has none of
    that.
    """
    ours = (Path(__file__).parent, Path(__file__).parent.parent, Path(importlib.__file__).parent)
    while tb is not None:
        file = tb.tb_frame.f_code.co_filename
        if Path(file).parent not in ours and not file.startswith("<frozen importlib"):
            return tb
        tb = tb.tb_next
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROG,
        description=_ABOUT,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (
        _add_inspect,
        _add_head,
        _add_diagnose,
        _add_bench,
        _add_tune,
        _add_shuffle,
        _add_verify,
        _add_state,
        _add_show,
        _add_trace,
        _add_view,
        _add_write,
        _add_run_as_grain,
    ):
        add(commands)
    return parser


def _add_inspect(commands: Commands) -> None:
    command = _command(
        commands,
        "inspect",
        "show the stages, the lengths and what elements look like",
        "Shows the stages of a pipeline, its length, and what its elements look like, if sources"
        " and\ntransformations declare it. Nothing is read without --run.",
        [
            "inspect input_pipeline:train_ds",
            "inspect train.py:make_dataset --run --output graph.svg",
        ],
    )
    command.set_defaults(command=run.inspect)
    _add_pipeline(command)
    command.add_argument(
        "--run", action="store_true", help="read the first element, to show what elements look like"
    )
    _add_stall_seconds(command)
    command.add_argument(
        "--output",
        metavar="FILE",
        help="write the graph there, too: .svg, .html, .dot, .json or .txt",
    )


def _add_shuffle(commands: Commands) -> None:
    command = _command(
        commands,
        "shuffle",
        "show how well elements are mixed",
        "Shows how far batches are from the whole, what neighbours have in common, and how many"
        " blocks of storage\na batch touches. Reads up to --max-batches batches.",
        [
            "shuffle train.py:ds --key label",
            "shuffle train.py:make_dataset --batch-size 512 --output shuffle.svg",
        ],
    )
    command.set_defaults(command=shuffle.shuffle)
    _add_pipeline(command)
    command.add_argument(
        "--key",
        metavar="NAME",
        help="the entry of elements that is their class (default: the position in the source)",
    )
    for option, text in (
        ("--batch-size", "elements of a batch"),
        ("--block-size", "records of a block of storage"),
        ("--max-batches", "the most batches to look at"),
    ):
        help_text = f"{text} (default: 256)"
        command.add_argument(option, type=int, default=256, metavar="N", help=help_text)
    _add_json(command, "print the figures as JSON")
    command.add_argument("--output", metavar="FILE", help="write a picture there, as SVG")


def _add_head(commands: Commands) -> None:
    command = _command(
        commands,
        "head",
        "show the first elements",
        "Shows the first elements: containers indented, arrays with dtype, shape and a few values.",
        [
            "head input_pipeline:train_ds",
            "head train.py:make_dataset -n 1 --skip 1000",
            "head train.py:loader --spec-only",
        ],
    )
    command.set_defaults(command=run.head)
    _add_pipeline(command)
    command.add_argument(
        "-n", dest="num", metavar="N", type=_count, default=5, help="how many (default: 5)"
    )
    command.add_argument(
        "--skip",
        metavar="N",
        type=_count,
        default=0,
        help="leave out the first N, unread where possible",
    )
    _add_stall_seconds(command)
    command.add_argument(
        "--spec-only", action="store_true", help="show what they look like, without values"
    )


def _add_diagnose(commands: Commands) -> None:
    command = _command(
        commands,
        "diagnose",
        "say what makes a pipeline slow, and what to do about it",
        "Runs a pipeline for a while and says whether it is bound by reading, by a transformation,"
        " by\ntransport between processes or by the consumer, what to change, and where the time"
        " went.",
        [
            "diagnose train.py:make_dataset",
            "diagnose train.py:loader --consumer-ms 50 --html report.html --trace trace.json",
        ],
    )
    command.set_defaults(command=run.diagnosis)
    _add_pipeline(command)
    _add_seconds(command, "how long to run it", 5.0)
    command.add_argument(
        "--consumer-ms",
        metavar="MS",
        type=_seconds,
        default=0.0,
        help="wait this many milliseconds after each element",
    )
    _add_stall_seconds(command, "20 for the first one, 5 for others, not less than --seconds")
    command.add_argument(
        "--html", metavar="FILE", help="write a report with pictures, for a browser"
    )
    command.add_argument(
        "--trace",
        metavar="FILE",
        help="run it for a second more, and write all calls for ui.perfetto.dev",
    )
    _add_json(command)


def _add_bench(commands: Commands) -> None:
    command = _command(
        commands,
        "bench",
        "measure how fast a pipeline is",
        "Measures elements and bytes per second, the median of some runs in a row, and how long the"
        " consumer\nwaits for an element. The pipeline runs as in a program, unobserved; a short"
        " one starts again at its end.",
        [
            "bench train.py:make_dataset",
            "bench train.py:make_dataset --seconds 2 --repeat 5 --json",
        ],
    )
    command.set_defaults(command=run.bench)
    _add_pipeline(command)
    _add_seconds(command, "how long each run takes", 5.0)
    command.add_argument(
        "--warmup",
        metavar="S",
        type=_seconds,
        default=1.0,
        help="how long before the first one (default: 1)",
    )
    command.add_argument(
        "--repeat", metavar="N", type=_at_least_one, default=3, help="how many runs (default: 3)"
    )
    _add_stall_seconds(command)
    _add_json(command)


def _add_tune(commands: Commands) -> None:
    command = _command(
        commands,
        "tune",
        "find the best numbers of workers and threads",
        "Measures a pipeline with fixed numbers of workers (processes and threads) and of reading"
        " threads, in\nturn, and prints a table and the best setting as Python code. CPUs is the"
        " CPU time per second, and memory\nthat of all processes. No setting changes the stream of"
        ' num_lanes, or of order="stream".',
        [
            "tune train.py:make_dataset",
            "tune train.py:loader --seconds 5 --max-workers 8 --json",
        ],
    )
    command.set_defaults(command=partial(_imported, "tune"))
    _add_pipeline(command)
    _add_seconds(command, "how long each setting is measured, after half of it to warm up", 2.0)
    command.add_argument(
        "--max-workers",
        metavar="N",
        type=_count,
        help="the largest number of workers (default: 2 for each CPU)",
    )
    _add_stall_seconds(command)
    _add_json(command)


def _add_verify(commands: Commands) -> None:
    command = _command(
        commands,
        "verify",
        "say whether a pipeline is deterministic",
        "Runs a pipeline again and again: in a fresh process with another PYTHONHASHSEED, by"
        " threads and\nworkers, in other blocks, restored at random steps. At the first difference"
        " it names the step, the\nstage and, where it can be determined, the reason, and exits"
        " with 1.",
        [
            "verify input_pipeline:train_ds",
            "verify train.py:make_dataset --steps 1000 --seconds 300 --json",
        ],
    )
    command.set_defaults(command=verify.verify)
    _add_pipeline(command)
    command.add_argument(
        "--steps",
        metavar="N",
        type=_at_least_one,
        default=200,
        help="how many outputs (default: 200)",
    )
    _add_seconds(command, "how long it may take", 60.0)
    _add_json(command)


def _add_view(commands: Commands) -> None:
    command = _command(
        commands,
        "view",
        "look at what a pipeline gives, in a browser",
        "Serves pages that show what a pipeline gives: pictures, sounds to play, texts, tables, the"
        " ranges of\narrays; step by step, back and forth, with what became of a record at every"
        " transformation. It prints\nthe address, which answers this machine alone: `ssh -L"
        " 8765:127.0.0.1:8765 HOST` brings it to another.",
        [
            "view train.py:make_dataset",
            "view train.py:ds --decoder train.py:tokenizer.decode",
            "view train.py:ds --as audio:22050=clip",
        ],
    )
    command.set_defaults(command=partial(_imported, "view"))
    _add_pipeline(command)
    command.add_argument(
        "--port",
        metavar="N",
        type=_port,
        help="of 127.0.0.1 (default: 8765, or any if that is taken; 0: any)",
    )
    start = command.add_mutually_exclusive_group()
    start.add_argument("--step", metavar="N", type=_count, help="begin there (default: 0)")
    start.add_argument("--state", metavar="CHECKPOINT", help="begin with what follows a checkpoint")
    command.add_argument(
        "--decoder",
        metavar="FUNCTION",
        help="module:function or file.py:function that makes text of a list of token ids",
    )
    command.add_argument(
        "--as",
        dest="show_as",
        metavar="KIND=NAME",
        action="append",
        default=[],
        help=(
            "show values of that name, as x.frame or *.frame, as image, tokens, array, audio or"
            " audio:RATE (may be repeated)"
        ),
    )


def _add_state(commands: Commands) -> None:
    command = _command(
        commands,
        "state",
        "say where a checkpoint stands, and whether it fits a pipeline",
        "Says which library wrote a checkpoint, of which pipeline, and where that stands. PATH is"
        " the\ndirectory of an iterator's checkpoint, one of Orbax with such an item, a"
        " file\nprocess_<i>-of-<n>.json, or any file with a state. With --pipeline: whether that"
        " would continue from\nthere, and the first difference otherwise; a new iterator is"
        " restored for it, and nothing is read.",
        ["state checkpoints/1000", "state checkpoints/1000/data --pipeline train.py:make_dataset"],
    )
    command.set_defaults(command=state.state)
    command.add_argument("path", metavar="PATH", help="a checkpoint, or a file of one")
    command.add_argument(
        "--pipeline", metavar="PIPELINE", help="module:attribute or path/to/file.py:attribute"
    )


def _add_show(commands: Commands) -> None:
    command = _command(
        commands,
        "show",
        "say which records made an output",
        "Says which records made an output: source and key, epoch, component of a mixture, random"
        " stream,\nand in packed rows the cells of each. With --field, the value of a field of it,"
        " images as pictures.",
        [
            "show train.py:make_dataset --step 12345",
            "show train.py:loader --state checkpoints/1000 --field image",
        ],
    )
    command.set_defaults(command=provenance.show)
    _add_pipeline(command)
    command.add_argument(
        "--step",
        metavar="N",
        type=_count,
        help="output number N, from 0 on; of a MapDataset element N",
    )
    command.add_argument(
        "--state",
        metavar="CHECKPOINT",
        help="the output that follows a checkpoint or a file with a state",
    )
    command.add_argument(
        "--ledger", metavar="FILE", help="a ledger of the run, with which N may be any of its steps"
    )
    command.add_argument(
        "--field",
        metavar="NAME",
        help="show this field of the output, too; of nested ones outer.inner",
    )


def _add_trace(commands: Commands) -> None:
    command = _command(
        commands,
        "trace",
        "say which outputs a record was used for",
        "Goes through the outputs of a pipeline and says which of them a record was used for."
        " Records are\nread, and functions called, only where they decide which outputs there are.",
        [
            "trace train.py:make_dataset --record 8190",
            "trace train.py:loader --record 17 --steps 1000",
        ],
    )
    command.set_defaults(command=provenance.trace)
    _add_pipeline(command)
    command.add_argument(
        "--record",
        metavar="KEY",
        required=True,
        help="the key of the record in its source, as show prints it",
    )
    command.add_argument(
        "--source", metavar="TEXT", help="only records of sources with this in their name"
    )
    command.add_argument(
        "--steps",
        metavar="N",
        type=_at_least_one,
        help="look at the first N outputs (default: 1,000,000)",
    )


def _add_files_to_write(command: argparse.ArgumentParser) -> None:
    """Add the options that say how the files of ``write`` look."""
    command.add_argument(
        "--format",
        metavar="F",
        help="array_record (default), parquet, jsonl, tar, megatron, npy, tfrecord, bagz",
    )
    size = command.add_mutually_exclusive_group()
    size.add_argument(
        "--records-per-file",
        type=_at_least_one,
        metavar="N",
        help="positions or elements of one file",
    )
    size.add_argument(
        "--bytes-per-file",
        type=_at_least_one,
        metavar="N",
        help="about how large a file is (default: 256 MiB)",
    )
    command.add_argument(
        "--codec",
        metavar="C",
        help="msgpack (default), json or example, for array_record, tfrecord and bagz",
    )
    command.add_argument("--compression", metavar="C", help="of the format, such as zstd:9")
    command.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="of the format, as group_size=4",
    )


def _add_write(commands: Commands) -> None:
    command = _command(
        commands,
        "write",
        "write what a pipeline gives to files",
        "Writes the elements of a pipeline to files in OUT, a folder or its URL. The files do not"
        " depend on the\nnumber of workers or hosts. If it is interrupted, the same command"
        " continues. INPUT is a pipeline, or files\n(*.parquet, *.jsonl, *.jsonl.gz, *.jsonl.zst,"
        " *.tar, *.array_record, *.bagz, *.tfrecord), a folder or\n.zip with pictures in a folder"
        " for each class, a folder that was written before, or hf://NAME:SPLIT.",
        [
            "write 'train-*.parquet' prepared",
            "write 'docs/*.jsonl' tokens --map tokenize.py:encode --format megatron",
            "write pictures shards --format tar --records-per-file 1000",
            "write train.py:make_dataset s3://bucket/prepared --workers 16 --shard 0/4",
            "write train.py:make_dataset prepared --dry-run",
        ],
    )
    command.set_defaults(command=partial(_imported, "write"))
    command.add_argument(
        "pipeline",
        metavar="INPUT",
        help="module:attribute, path/to/file.py:attribute, files or a folder",
    )
    command.add_argument("output", metavar="OUT", help="a folder, or its URL in an object store")
    command.add_argument(
        "--map",
        metavar="FUNCTION",
        action="append",
        default=[],
        help="apply it to each element (may be repeated)",
    )
    _add_files_to_write(command)
    command.add_argument(
        "--workers",
        type=_count,
        metavar="N",
        help="worker processes (default: one for each CPU; 0: none)",
    )
    command.add_argument("--shard", metavar="I/N", help="write the files of host I of N only")
    command.add_argument(
        "--overwrite",
        action="store_true",
        help="remove what was written to OUT before; with --append an unfinished append only",
    )
    command.add_argument("--append", action="store_true", help="write after the records of OUT")
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="write a sample, and say how large, how long, how many files",
    )
    command.add_argument("--quiet", action="store_true", help="show no progress bar")


def _add_run_as_grain(commands: Commands) -> None:
    """Adds the command to the help: the code that runs the program parses its options elsewhere."""
    command = _command(
        commands,
        RUN_AS_GRAIN,
        "run a program that imports Grain on gristmill",
        "Runs a program, or a module with -m, that gets gristmill where it imports Grain: for"
        " programs that\none cannot edit.",
        ["run-as-grain train.py --steps 100", "run-as-grain -m trainer.main --steps 100"],
    )
    command.add_argument("program", metavar="SCRIPT | -m MODULE", help="what to run")
    command.add_argument("arguments", metavar="ARGS", nargs="*", help="its arguments")


def _command(
    commands: Commands, name: str, title: str, about: str, examples: list[str]
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=title,
        description=about,
        epilog="\n".join(
            ["examples:", *[f"  {_PROG} {example}" for example in examples], "", _CODES]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _imported(name: str, args: argparse.Namespace) -> run.Lines:
    """Runs a command whose module is imported only for it."""
    module = importlib.import_module(f"gristmill.diagnostics.cli.{name}")
    lines: run.Lines = getattr(module, name)(args)
    return lines


def _add_pipeline(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "pipeline", metavar="PIPELINE", help="module:attribute or path/to/file.py:attribute"
    )


def _add_json(command: argparse.ArgumentParser, text: str = "print JSON") -> None:
    command.add_argument("--json", action="store_true", help=text)


def _add_seconds(command: argparse.ArgumentParser, text: str, default: float) -> None:
    text = f"{text} (default: {default:g})"
    command.add_argument("--seconds", metavar="S", type=_positive, default=default, help=text)


def _add_stall_seconds(command: argparse.ArgumentParser, default: str = "30") -> None:
    text = f"end, and say where it hangs, if an element takes longer (default: {default}; 0: never)"
    command.add_argument("--stall-seconds", metavar="S", type=_seconds, help=text)


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() else -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be a number from 0 on, got {text!r}")
    return number


def _port(text: str) -> int:
    if not _count(text) < 1 << 16:
        raise argparse.ArgumentTypeError(f"must be from 0 to 65535, got {text}")
    return int(text)


def _at_least_one(text: str) -> int:
    if not _count(text):
        raise argparse.ArgumentTypeError("must be at least 1, got 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number from 0 on, got {text!r}")
    return number


def _positive(text: str) -> float:
    if not _seconds(text):
        raise argparse.ArgumentTypeError("must be more than 0")
    return float(text)
