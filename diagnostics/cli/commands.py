"""The commands and their arguments, with the texts of their help.

A line of the arguments of a command has three columns, with two spaces between them: its name and
what its value is called; its kind and perhaps its default; its help, which continues in indented
lines. ``or`` before a name says that it excludes the one above it.
"""

from __future__ import annotations

import argparse
import importlib
import math
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
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


_KINDS: dict[str, dict[str, Any]] = {
    "flag": {"action": "store_true"},
    "text": {},
    "required": {"required": True},
    "texts": {"action": "append", "default": []},
    "rest": {"nargs": "*"},
    "int": {"type": int},
    "count": {"type": _count},
    "from-1": {"type": _at_least_one},
    "port": {"type": _port},
    "time": {"type": _time},
    "positive": {"type": _positive},
}
_NAMED = "module:attribute or path/to/file.py:attribute"
_PIPELINE = f"pipeline PIPELINE  text  {_NAMED}"
_JSON = "--json  flag  print JSON"


def _stall_seconds(default: str) -> str:
    help_text = "end, and say where it hangs, if an element takes longer"
    return f"--stall-seconds S  time  {help_text} (default: {default}; 0: never)"


_STALL_SECONDS = _stall_seconds("30")


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
        arguments: those that it takes, one to a line.
    """

    name: str
    run: Callable[[argparse.Namespace], int] | None
    title: str
    about: str
    examples: str
    arguments: str

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
        lines = re.sub(r"\n {4,}(?=\S)", " ", textwrap.dedent(self.arguments)).strip().splitlines()
        for line, following in zip_longest(lines, lines[1:], fillvalue=""):
            if not line.startswith("or "):
                is_choice = following.startswith("or ")
                group = parser.add_mutually_exclusive_group() if is_choice else parser
            _add_argument(group, line.removeprefix("or "))


def _add_argument(parser: Any, line: str) -> None:
    """Adds the argument that a line describes."""
    names, kind, text = line.split("  ", 2)
    name, _, metavar = names.partition(" ")
    kind, _, default = kind.partition(" ")
    settings = {**_KINDS[kind], "help": text}
    if metavar:
        settings["metavar"] = metavar
    if default:
        settings["default"] = settings["type"](default)
        settings["help"] += f" (default: {default})" if settings["default"] else ""
    parser.add_argument(name, **settings)


def _imported(name: str, args: argparse.Namespace) -> int:
    """Runs a command whose module is imported only for it."""
    module = importlib.import_module(f"gristmill.diagnostics.cli.{name}")
    code: int = getattr(module, name)(args)
    return code


COMMANDS = (
    Command(
        "inspect",
        run.inspect,
        "show the stages, the lengths and what elements look like",
        "Shows the stages of a pipeline, its length, and what its elements look like, if sources"
        " and transformations declare it. Nothing is read without --run.",
        """input_pipeline:train_ds
        train.py:make_dataset --run --output graph.svg""",
        f"""
        {_PIPELINE}
        --run  flag  read the first element, to show what elements look like
        {_STALL_SECONDS}
        --output FILE  text  write the graph there, too: .svg, .html, .dot, .json or .txt
        """,
    ),
    Command(
        "head",
        run.head,
        "show the first elements",
        "Shows the first elements: containers indented, arrays with dtype, shape and a few values.",
        """input_pipeline:train_ds
        train.py:make_dataset -n 1 --skip 1000
        train.py:loader --spec-only""",
        f"""
        {_PIPELINE}
        -n N  count 5  how many
        --skip N  count 0  leave out the first N, unread where possible
        {_STALL_SECONDS}
        --spec-only  flag  show what they look like, without values
        """,
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
        f"""
        {_PIPELINE}
        --seconds S  positive 5  how long to run it
        --consumer-ms MS  time 0  wait this many milliseconds after each element
        {_stall_seconds("20 for the first one, 5 for others, not less than --seconds")}
        --html FILE  text  write a report with pictures, for a browser
        --trace FILE  text  run it for a second more, and write all calls for ui.perfetto.dev
        {_JSON}
        """,
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
        f"""
        {_PIPELINE}
        --seconds S  positive 5  how long each run takes
        --warmup S  time 1  how long before the first one
        --repeat N  from-1 3  how many runs
        {_STALL_SECONDS}
        {_JSON}
        """,
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
        f"""
        {_PIPELINE}
        --seconds S  positive 2  how long each setting is measured, after half of it to warm up
        --max-workers N  count  the largest number of workers (default: 2 for each CPU)
        {_STALL_SECONDS}
        {_JSON}
        """,
    ),
    Command(
        "shuffle",
        shuffle.shuffle,
        "show how well elements are mixed",
        "Shows how far batches are from the whole, what neighbours have in common, and how many"
        " blocks of storage a batch touches. Reads up to --max-batches batches.",
        """train.py:ds --key label
        train.py:make_dataset --batch-size 512 --output shuffle.svg""",
        f"""
        {_PIPELINE}
        --key NAME  text  the entry of elements that is their class (default: the position in the
            source)
        --batch-size N  int 256  elements of a batch
        --block-size N  int 256  records of a block of storage
        --max-batches N  int 256  the most batches to look at
        --json  flag  print the figures as JSON
        --output FILE  text  write a picture there, as SVG
        """,
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
        f"""
        {_PIPELINE}
        --steps N  from-1 200  how many outputs
        --seconds S  positive 60  how long it may take
        {_JSON}
        """,
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
        f"""
        path PATH  text  a checkpoint, or a file of one
        --pipeline PIPELINE  text  {_NAMED}
        """,
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
        f"""
        {_PIPELINE}
        --step N  count  output number N, from 0 on; of a MapDataset element N
        --state CHECKPOINT  text  the output that follows a checkpoint or a file with a state
        --ledger FILE  text  a ledger of the run, with which N may be any of its steps
        --field NAME  text  show this field of the output, too; of nested ones outer.inner
        """,
    ),
    Command(
        "trace",
        provenance.trace,
        "say which outputs a record was used for",
        "Goes through the outputs of a pipeline and says which of them a record was used for."
        " Records are read, and functions called, only where they decide which outputs there are.",
        """train.py:make_dataset --record 8190
        train.py:loader --record 17 --steps 1000""",
        f"""
        {_PIPELINE}
        --record KEY  required  the key of the record in its source, as show prints it
        --source TEXT  text  only records of sources with this in their name
        --steps N  from-1  look at the first N outputs (default: 1,000,000)
        """,
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
        f"""
        {_PIPELINE}
        --port N  port  of 127.0.0.1 (default: 8765, or any if that is taken; 0: any)
        --step N  count  begin there (default: 0)
        or --state CHECKPOINT  text  begin with what follows a checkpoint
        --decoder FUNCTION  text  module:function or file.py:function that makes text of a list of
            token ids
        --as KIND=NAME  texts  show values of that name, as x.frame or *.frame, as image, tokens,
            array, audio or audio:RATE (may be repeated)
        """,
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
        """
        pipeline INPUT  text  module:attribute, path/to/file.py:attribute, files or a folder
        output OUT  text  a folder, or its URL in an object store
        --map FUNCTION  texts  apply it to each element (may be repeated)
        --format F  text  array_record (default), parquet, jsonl, tar, megatron, npy, tfrecord, bagz
        --records-per-file N  from-1  positions or elements of one file
        or --bytes-per-file N  from-1  about how large a file is (default: 256 MiB)
        --codec C  text  msgpack (default), json or example, for array_record, tfrecord and bagz
        --compression C  text  of the format, such as zstd:9
        --option NAME=VALUE  texts  of the format, as group_size=4
        --workers N  count  worker processes (default: one for each CPU; 0: none)
        --shard I/N  text  write the files of host I of N only
        --overwrite  flag  remove what was written to OUT before; with --append an unfinished append
            only
        --append  flag  write after the records of OUT
        --dry-run  flag  write a sample, and say how large, how long, how many files
        --quiet  flag  show no progress bar
        """,
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
        """
        program SCRIPT | -m MODULE  text  what to run
        arguments ARGS  rest  its arguments
        """,
    ),
)
