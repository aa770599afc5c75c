"""The commands and their arguments, with the texts of their help."""

from __future__ import annotations

import argparse
import importlib
import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from gristmill.diagnostics.cli import provenance, run, shuffle, state, verify

PROG = "python -m gristmill"
RUN_AS_GRAIN = "run-as-grain"
CODES = """\
exit codes:
  0    done
  1    the pipeline raised an error (its traceback is on stderr) or is stuck (where, is on stderr),
       or the checkpoint is damaged or does not fit the pipeline, or the pipeline is not
       deterministic
  2    there is no such pipeline, file or option, or a file cannot be written
  130  interrupted
"""
_WIDTH = 100  # of the texts in the help


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


def _time(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number from 0 on, got {text!r}")
    return number


def _positive(text: str) -> float:
    if not _time(text):
        raise argparse.ArgumentTypeError("must be more than 0")
    return float(text)


class Argument:
    """An argument of a command, as ``add_argument`` takes it.

    Args:
        names: of an option with hyphens, of an argument by position without.
        text: the help, to which a default other than 0 is added.
        settings: further parameters of ``add_argument``.
    """

    def __init__(self, *names: str, text: str, **settings: Any) -> None:
        default = settings.get("default")
        self.names = names
        self.settings = {"help": f"{text} (default: {default:g})" if default else text, **settings}


def _flag(name: str, text: str) -> Argument:
    return Argument(name, text=text, action="store_true")


def _text(name: str, metavar: str, text: str) -> Argument:
    return Argument(name, text=text, metavar=metavar)


def _texts(name: str, metavar: str, text: str) -> Argument:
    return Argument(name, text=text, metavar=metavar, action="append", default=[])


def _number(
    name: str,
    text: str,
    default: float | None = None,
    kind: Callable[[str], float] = _count,
    metavar: str = "N",
) -> Argument:
    return Argument(name, text=text, default=default, type=kind, metavar=metavar)


def _seconds(text: str, default: float) -> Argument:
    return _number("--seconds", text, default, _positive, "S")


def _stall_seconds(default: str = "30") -> Argument:
    text = f"end, and say where it hangs, if an element takes longer (default: {default}; 0: never)"
    return _number("--stall-seconds", text, None, _time, "S")


_PIPELINE = _text("pipeline", "PIPELINE", "module:attribute or path/to/file.py:attribute")
_JSON = _flag("--json", "print JSON")


@dataclass(frozen=True)
class Command:
    """A command.

    Args:
        name: its name.
        run: the function that runs it; ``None`` for one of the same name in the module of that
            name, which is imported when it is needed.
        title: what it does, on one line.
        about: the same at length.
        examples: its arguments, one example to a line.
        arguments: those that it takes; of a list, one at most may be given.
    """

    name: str
    run: Callable[[argparse.Namespace], run.Lines] | None
    title: str
    about: str
    examples: str
    arguments: list[Argument | list[Argument]]

    def add_to(self, commands: Any) -> None:
        """Adds its parser to those of the program."""
        examples = [f"  {PROG} {self.name} {x.strip()}" for x in self.examples.splitlines()]
        parser = commands.add_parser(
            self.name,
            help=self.title,
            description=textwrap.fill(self.about, _WIDTH),
            epilog="\n".join(["examples:", *examples, "", CODES]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parser.set_defaults(command=self.run or partial(_imported, self.name))
        for argument in self.arguments:
            if isinstance(argument, Argument):
                parser.add_argument(*argument.names, **argument.settings)
            else:
                group = parser.add_mutually_exclusive_group()
                for one in argument:
                    group.add_argument(*one.names, **one.settings)


def _imported(name: str, args: argparse.Namespace) -> run.Lines:
    """Runs a command whose module is imported only for it."""
    module = importlib.import_module(f"gristmill.diagnostics.cli.{name}")
    lines: run.Lines = getattr(module, name)(args)
    return lines


COMMANDS = (
    Command(
        "inspect",
        run.inspect,
        "show the stages, the lengths and what elements look like",
        "Shows the stages of a pipeline, its length, and what its elements look like, if sources"
        " and transformations declare it. Nothing is read without --run.",
        """input_pipeline:train_ds
        train.py:make_dataset --run --output graph.svg""",
        [
            _PIPELINE,
            _flag("--run", "read the first element, to show what elements look like"),
            _stall_seconds(),
            _text(
                "--output",
                "FILE",
                "write the graph there, too: .svg, .html, .dot, .json or .txt",
            ),
        ],
    ),
    Command(
        "head",
        run.head,
        "show the first elements",
        "Shows the first elements: containers indented, arrays with dtype, shape and a few values.",
        """input_pipeline:train_ds
        train.py:make_dataset -n 1 --skip 1000
        train.py:loader --spec-only""",
        [
            _PIPELINE,
            Argument("-n", text="how many", dest="num", metavar="N", type=_count, default=5),
            _number("--skip", "leave out the first N, unread where possible", 0),
            _stall_seconds(),
            _flag("--spec-only", "show what they look like, without values"),
        ],
    ),
    Command(
        "diagnose",
        run.diagnosis,
        "say what makes a pipeline slow, and what to do about it",
        "Runs a pipeline for a while and says whether it is bound by reading, by a transformation,"
        " by transport between processes or by the consumer, what to change, and where the time"
        " went.",
        """train.py:make_dataset
        train.py:loader --consumer-ms 50 --html report.html --trace trace.json""",
        [
            _PIPELINE,
            _seconds("how long to run it", 5.0),
            _number(
                "--consumer-ms", "wait this many milliseconds after each element", 0, _time, "MS"
            ),
            _stall_seconds("20 for the first one, 5 for others, not less than --seconds"),
            _text("--html", "FILE", "write a report with pictures, for a browser"),
            _text(
                "--trace",
                "FILE",
                "run it for a second more, and write all calls for ui.perfetto.dev",
            ),
            _JSON,
        ],
    ),
    Command(
        "bench",
        run.bench,
        "measure how fast a pipeline is",
        "Measures elements and bytes per second, the median of some runs in a row, and how long the"
        " consumer waits for an element. The pipeline runs as in a program, unobserved; a short"
        " one starts again at its end.",
        """train.py:make_dataset
        train.py:make_dataset --seconds 2 --repeat 5 --json""",
        [
            _PIPELINE,
            _seconds("how long each run takes", 5.0),
            _number("--warmup", "how long before the first one", 1.0, _time, "S"),
            _number("--repeat", "how many runs", 3, _at_least_one),
            _stall_seconds(),
            _JSON,
        ],
    ),
    Command(
        "tune",
        None,
        "find the best numbers of workers and threads",
        "Measures a pipeline with fixed numbers of workers (processes and threads) and of reading"
        " threads, in turn, and prints a table and the best setting as Python code. CPUs is the"
        " CPU time per second, and memory that of all processes. No setting changes the stream of"
        ' num_lanes, or of order="stream".',
        """train.py:make_dataset
        train.py:loader --seconds 5 --max-workers 8 --json""",
        [
            _PIPELINE,
            _seconds("how long each setting is measured, after half of it to warm up", 2.0),
            _number("--max-workers", "the largest number of workers (default: 2 for each CPU)"),
            _stall_seconds(),
            _JSON,
        ],
    ),
    Command(
        "shuffle",
        shuffle.shuffle,
        "show how well elements are mixed",
        "Shows how far batches are from the whole, what neighbours have in common, and how many"
        " blocks of storage a batch touches. Reads up to --max-batches batches.",
        """train.py:ds --key label
        train.py:make_dataset --batch-size 512 --output shuffle.svg""",
        [
            _PIPELINE,
            _text(
                "--key",
                "NAME",
                "the entry of elements that is their class (default: the position in the source)",
            ),
            _number("--batch-size", "elements of a batch", 256, int),
            _number("--block-size", "records of a block of storage", 256, int),
            _number("--max-batches", "the most batches to look at", 256, int),
            _flag("--json", "print the figures as JSON"),
            _text("--output", "FILE", "write a picture there, as SVG"),
        ],
    ),
    Command(
        "verify",
        verify.verify,
        "say whether a pipeline is deterministic",
        "Runs a pipeline again and again: in a fresh process with another PYTHONHASHSEED, by"
        " threads and workers, in other blocks, restored at random steps. At the first difference"
        " it names the step, the stage and, where it can be determined, the reason, and exits"
        " with 1.",
        """input_pipeline:train_ds
        train.py:make_dataset --steps 1000 --seconds 300 --json""",
        [
            _PIPELINE,
            _number("--steps", "how many outputs", 200, _at_least_one),
            _seconds("how long it may take", 60.0),
            _JSON,
        ],
    ),
    Command(
        "state",
        state.state,
        "say where a checkpoint stands, and whether it fits a pipeline",
        "Says which library wrote a checkpoint, of which pipeline, and where that stands. PATH is"
        " the directory of an iterator's checkpoint, one of Orbax with such an item, a file"
        " process_<i>-of-<n>.json, or any file with a state. With --pipeline: whether that would"
        " continue from there, and the first difference otherwise; a new iterator is restored for"
        " it, and nothing is read.",
        """checkpoints/1000
        checkpoints/1000/data --pipeline train.py:make_dataset""",
        [
            _text("path", "PATH", "a checkpoint, or a file of one"),
            _text("--pipeline", "PIPELINE", "module:attribute or path/to/file.py:attribute"),
        ],
    ),
    Command(
        "show",
        provenance.show,
        "say which records made an output",
        "Says which records made an output: source and key, epoch, component of a mixture, random"
        " stream, and in packed rows the cells of each. With --field, the value of a field of it,"
        " images as pictures.",
        """train.py:make_dataset --step 12345
        train.py:loader --state checkpoints/1000 --field image""",
        [
            _PIPELINE,
            _number("--step", "output number N, from 0 on; of a MapDataset element N"),
            _text(
                "--state",
                "CHECKPOINT",
                "the output that follows a checkpoint or a file with a state",
            ),
            _text("--ledger", "FILE", "a ledger of the run, with which N may be any of its steps"),
            _text(
                "--field", "NAME", "show this field of the output, too; of nested ones outer.inner"
            ),
        ],
    ),
    Command(
        "trace",
        provenance.trace,
        "say which outputs a record was used for",
        "Goes through the outputs of a pipeline and says which of them a record was used for."
        " Records are read, and functions called, only where they decide which outputs there are.",
        """train.py:make_dataset --record 8190
        train.py:loader --record 17 --steps 1000""",
        [
            _PIPELINE,
            Argument(
                "--record",
                text="the key of the record in its source, as show prints it",
                metavar="KEY",
                required=True,
            ),
            _text("--source", "TEXT", "only records of sources with this in their name"),
            _number(
                "--steps", "look at the first N outputs (default: 1,000,000)", None, _at_least_one
            ),
        ],
    ),
    Command(
        "view",
        None,
        "look at what a pipeline gives, in a browser",
        "Serves pages that show what a pipeline gives: pictures, sounds to play, texts, tables, the"
        " ranges of arrays; step by step, back and forth, with what became of a record at every"
        " transformation. It prints the address, which answers this machine alone: `ssh -L"
        " 8765:127.0.0.1:8765 HOST` brings it to another.",
        """train.py:make_dataset
        train.py:ds --decoder train.py:tokenizer.decode
        train.py:ds --as audio:22050=clip""",
        [
            _PIPELINE,
            _number(
                "--port",
                "of 127.0.0.1 (default: 8765, or any if that is taken; 0: any)",
                None,
                _port,
            ),
            [
                _number("--step", "begin there (default: 0)"),
                _text("--state", "CHECKPOINT", "begin with what follows a checkpoint"),
            ],
            _text(
                "--decoder",
                "FUNCTION",
                "module:function or file.py:function that makes text of a list of token ids",
            ),
            Argument(
                "--as",
                text="show values of that name, as x.frame or *.frame, as image, tokens, array,"
                " audio or audio:RATE (may be repeated)",
                dest="show_as",
                metavar="KIND=NAME",
                action="append",
                default=[],
            ),
        ],
    ),
    Command(
        "write",
        None,
        "write what a pipeline gives to files",
        "Writes the elements of a pipeline to files in OUT, a folder or its URL. The files do not"
        " depend on the number of workers or hosts. If it is interrupted, the same command"
        " continues. INPUT is a pipeline, or files (*.parquet, *.jsonl, *.jsonl.gz, *.jsonl.zst,"
        " *.tar, *.array_record, *.bagz, *.tfrecord), a folder or .zip with pictures in a folder"
        " for each class, a folder that was written before, or hf://NAME:SPLIT.",
        """'train-*.parquet' prepared
        'docs/*.jsonl' tokens --map tokenize.py:encode --format megatron
        pictures shards --format tar --records-per-file 1000
        train.py:make_dataset s3://bucket/prepared --workers 16 --shard 0/4
        train.py:make_dataset prepared --dry-run""",
        [
            _text(
                "pipeline",
                "INPUT",
                "module:attribute, path/to/file.py:attribute, files or a folder",
            ),
            _text("output", "OUT", "a folder, or its URL in an object store"),
            _texts("--map", "FUNCTION", "apply it to each element (may be repeated)"),
            _text(
                "--format",
                "F",
                "array_record (default), parquet, jsonl, tar, megatron, npy, tfrecord, bagz",
            ),
            [
                _number(
                    "--records-per-file", "positions or elements of one file", None, _at_least_one
                ),
                _number(
                    "--bytes-per-file",
                    "about how large a file is (default: 256 MiB)",
                    None,
                    _at_least_one,
                ),
            ],
            _text(
                "--codec",
                "C",
                "msgpack (default), json or example, for array_record, tfrecord and bagz",
            ),
            _text("--compression", "C", "of the format, such as zstd:9"),
            _texts("--option", "NAME=VALUE", "of the format, as group_size=4"),
            _number("--workers", "worker processes (default: one for each CPU; 0: none)"),
            _text("--shard", "I/N", "write the files of host I of N only"),
            _flag(
                "--overwrite",
                "remove what was written to OUT before; with --append an unfinished append only",
            ),
            _flag("--append", "write after the records of OUT"),
            _flag("--dry-run", "write a sample, and say how large, how long, how many files"),
            _flag("--quiet", "show no progress bar"),
        ],
    ),
    # Here for the help only: the options are parsed by the code that runs the program.
    Command(
        RUN_AS_GRAIN,
        None,
        "run a program that imports Grain on gristmill",
        "Runs a program, or a module with -m, that gets gristmill where it imports Grain: for"
        " programs that one cannot edit.",
        """train.py --steps 100
        -m trainer.main --steps 100""",
        [
            _text("program", "SCRIPT | -m MODULE", "what to run"),
            Argument("arguments", text="its arguments", metavar="ARGS", nargs="*"),
        ],
    ),
)
