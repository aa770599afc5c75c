"""The command ``write``: a pipeline, or files of a known kind, into files."""

from __future__ import annotations

import re
import sys
import traceback
from argparse import Namespace
from pathlib import Path
from typing import Any

from gristmill.core.cgroup import usable_cpus
from gristmill.core.sharding import ShardOptions
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.map import MapDataset
from gristmill.diagnostics.cli.printing import say
from gristmill.diagnostics.cli.target import CommandError, load_function, load_pipeline
from gristmill.diagnostics.cli.words import in_options
from gristmill.loader import DataLoader
from gristmill.prepare.files import ElementError

_SOURCES = {
    ".parquet": "ParquetSource",
    ".jsonl": "JsonlSource",
    ".jsonl.gz": "JsonlSource",
    ".jsonl.zst": "JsonlSource",
    ".tar": "TarSource",
    ".array_record": "ArrayRecordDataSource",
    ".bagz": "BagDataSource",
    ".bag": "BagDataSource",
}
_HUB = "hf://"
_OF_FILES = ("format", "codec", "compression", "records_per_file", "bytes_per_file")
_OPTIONS = (*_OF_FILES, "workers", "shard", "overwrite", "append")


def write(args: Namespace) -> int:
    """Writes what a pipeline gives."""
    from gristmill.prepare.estimate import estimate
    from gristmill.prepare.writing import write as write_files

    ds = _pipeline(args.pipeline, args.format)
    kind: Any = MapDataset if isinstance(ds, MapDataset) else IterDataset
    for name in args.map:
        ds = kind.map(ds, load_function(name, "--map", "an element"))
    given: dict[str, Any] = {name: getattr(args, name) for name in _OF_FILES}
    given |= dict(map(_option, args.option))
    workers = usable_cpus() if args.workers is None else args.workers
    try:
        if args.dry_run:
            found = estimate(ds, **given)
            say(str(found))
            if found.seconds is not None:
                say(f"with {workers} workers: at best {found.seconds / max(workers, 1):,.1f} s")
            return 0
        report = write_files(
            ds,
            args.output,
            workers=workers,
            shard=_shard(args.shard),
            overwrite=args.overwrite,
            append=args.append,
            progress=False if args.quiet else None,
            **given,
        )
    except (TypeError, ValueError, ImportError, OSError) as error:
        if _is_of_arguments(error):
            raise CommandError(in_options(str(error), *_OPTIONS)) from error
        raise
    if args.quiet or not (sys.stderr.isatty() and sys.stdout.isatty()):  # else it is there
        say(str(report))
    return 0


def _is_of_arguments(error: Exception) -> bool:
    """Returns True for what is wrong with the arguments, the folder or an element, not in the code
    of the user.
    """
    if isinstance(error, ElementError):  # which workers raise, too
        return True
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__", "")).startswith("gristmill.")


def _pipeline(name: str, format: str | None) -> Any:
    """Returns a pipeline by its name, or the records of files, of a folder, or of the Hub."""
    if name.startswith(_HUB):
        return MapDataset.source(_of_the_hub(name.removeprefix(_HUB)))
    suffix = next((suffix for suffix in _SOURCES if name.endswith(suffix)), None)
    if suffix is not None:
        from gristmill import sources

        return _as_source(getattr(sources, _SOURCES[suffix]), name)
    if name.endswith(".tfrecord"):
        from gristmill.dataset.stages.tfrecord import TFRecordIterDataset

        return TFRecordIterDataset(name)
    if Path(name).is_dir() or name.endswith(".zip"):
        from gristmill.prepare.manifest import NAME
        from gristmill.prepare.reading import read

        if Path(name, NAME).exists():
            return read(name)
        from gristmill.sources import ImageFolderSource

        pictures = _as_source(ImageFolderSource, name)
        return pictures.map(_sample_of_picture) if format == "tar" else pictures
    if ":" not in name and not name.endswith(".py"):
        what = "of a kind that is not known" if Path(name).exists() else "not there"
        raise CommandError(
            f"INPUT must be a folder of pictures or of gristmill.write, files that end with"
            f" {', '.join(_SOURCES)}, .tfrecord or .zip, {_HUB}ORGANISATION/NAME, or a pipeline,"
            f" module:attribute or path/to/file.py:attribute; {name} is {what}"
        )
    ds = load_pipeline(name)
    if isinstance(ds, DataLoader):
        raise CommandError(
            f"{name} must be a MapDataset or an IterDataset to be written, it is a DataLoader"
        )
    return ds


def _sample_of_picture(element: dict[str, Any]) -> dict[str, Any]:
    """Returns a picture and its class under the names that WebDataset has for their files."""
    stem, _, extension = element["path"].rpartition(".")
    return {
        "__key__": stem.replace(".", "_"),
        extension.lower(): element["image"],
        "cls": element["label"],
    }


def _as_source(kind: Any, name: str) -> Any:
    try:
        return MapDataset.source(kind(name))
    except (OSError, ValueError, ImportError) as error:
        raise CommandError(str(error)) from error


def _of_the_hub(name: str) -> Any:
    """Returns the source of ``ORGANISATION/NAME`` followed by ``:SPLIT``, ``train`` by default."""
    from gristmill.core.errors import missing_package
    from gristmill.sources import HuggingFaceSource

    try:
        import datasets
    except ImportError as error:
        raise missing_package("datasets", "huggingface", f"reading {_HUB}{name}") from error
    path, _, split = name.partition(":")
    try:
        return HuggingFaceSource(datasets.load_dataset(path, split=split or "train"))
    except (OSError, ValueError) as error:
        raise CommandError(f"{_HUB}{name} cannot be loaded: {error}") from error


def _option(text: str) -> tuple[str, Any]:
    """Parses ``NAME=VALUE``, the value a number if it looks like one."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise CommandError(f"--option must be NAME=VALUE, such as group_size=1, got {text!r}")
    return name, int(value) if re.fullmatch(r"\d+", value) else value


def _shard(text: str | None) -> ShardOptions | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise CommandError(
            f"--shard must be INDEX/COUNT, such as 0/4 for the first of four hosts, got {text!r}"
        )
    return ShardOptions(int(match[1]), int(match[2]))
