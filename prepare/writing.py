"""``write``: a pipeline, written to files."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, cast

from gristmill.core.errors import as_int
from gristmill.core.options import MultiprocessingOptions, ReadOptions
from gristmill.core.ray_options import RayOptions
from gristmill.core.sharding import NoSharding, ShardOptions
from gristmill.core.state import shown
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.length import Exact, dataset_length
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.descriptions.code import described_pipeline, pipeline_difference
from gristmill.prepare.codecs import codec_of
from gristmill.prepare.files import (
    FileWriter,
    Finished,
    Folder,
    full_disk_explained,
    number_of,
    stop_explained,
)
from gristmill.prepare.formats import described_format, format_of
from gristmill.prepare.formats.base import Format
from gristmill.prepare.manifest import NAME, Manifest, ManifestError, WrittenPart
from gristmill.prepare.planning import WritePlan, num_files_of, planned
from gristmill.prepare.ranges import NO_FAULTS, RangeJob, Ranges, added_faults
from gristmill.prepare.reading import folder_at, manifest_in, note_codec, verify_manifest
from gristmill.prepare.report import ProgressBar, WriteReport, is_shown
from gristmill.prepare.stream import StreamJob

_log = logging.getLogger("gristmill")

_REMEDY = "Use another folder, or overwrite=True to remove what is there"
_REMEDY_OF_APPEND = (
    "An append is not finished: wait for it or, if it was interrupted, repeat it with append=True "
    "and its pipeline and arguments; or give it up by overwrite=True with append=True, which "
    "leaves files of before"
)


def write(
    ds: Any,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    records_per_file: int | None = None,
    bytes_per_file: int | None = None,
    codec: Any = None,
    workers: int | MultiprocessingOptions | RayOptions | None = None,
    shard: ShardOptions | None = None,
    compression: str | None = None,
    overwrite: bool = False,
    append: bool = False,
    progress: bool | None = None,
    **format_options: Any,
) -> WriteReport:
    """Write the elements of a pipeline to files, and return what was written.

    The bytes follow from the pipeline and the arguments, not from workers, hosts or interruptions.
    An interrupted call continues when it is repeated. Files get their names when they are whole.
    The guide "Prepare data once" says what each format holds, and where files end.

    Args:
        ds: a ``MapDataset`` or ``IterDataset`` that ends.
        path: a folder, or its URL in an object store (extra ``remote``).
        format: ``"array_record"`` (the default), ``"parquet"``, ``"jsonl"``, ``"tar"``,
            ``"megatron"``, ``"npy"``, ``"tfrecord"`` or ``"bagz"``.
        records_per_file: positions of a map dataset, or elements of a stream, of one file.
        bytes_per_file: about how many bytes a file has before compression. By default 256 MiB,
            and at most 2**20 records.
        codec: for records of bytes: ``"msgpack"`` (the default for elements that are no bytes),
            ``"json"``, ``"example"``, or a pair of functions ``(encode, decode)``.
        workers: the number of worker processes, or their options; 0, as ``None``, is this process.
        shard: which of the files this host writes. The manifest is complete when all hosts have
            written theirs. Of a stream that packs or batches, each host computes all elements.
        compression: the format's own; ``None`` for its default.
        overwrite: remove what was written there first, also by an earlier call that is repeated;
            with ``append`` only what an append has written that was not finished. No other call may
            write there.
        append: write after the records of a complete folder, a pipeline only once in a row.
        progress: show a progress bar, and the report as the last line, on stderr; by default if
            that is a terminal.
        format_options: such as ``group_size`` of ArrayRecord and ``row_group_size`` of Parquet.

    Raises:
        TypeError, ValueError: an argument is wrong; the dataset does not end.
        ManifestError: the folder is of another pipeline or was changed (a ``ValueError``).
        ElementError: the format cannot hold an element; names it (a ``ValueError``).
        OSError: the disk is full, or the folder cannot be written.
        RuntimeError: a worker process was killed.

    Example:
        >>> import tempfile, gristmill
        >>> ds = gristmill.MapDataset.range(10).map(lambda i: {"id": i})
        >>> report = gristmill.write(ds, tempfile.mkdtemp(), format="jsonl", records_per_file=4)
        >>> [(file.name, file.records) for file in report.files][2], gristmill.read(report.path)[9]
        (('part-000002.jsonl', 2), {'id': 9})
    """
    options = format_options | ({} if compression is None else {"compression": compression})
    files = (records_per_file, bytes_per_file)
    call = _WriteCall(ds, path, format, files, codec, shard, append, options)
    call.check_flags(overwrite, progress)
    return call.run(_worker_options(workers), overwrite, progress)


class _WriteCall:
    """One call of ``write``, with checked arguments."""

    def __init__(
        self,
        ds: Any,
        path: Any,
        format: Any,
        files: tuple[Any, Any],
        codec: Any,
        shard: Any,
        append: bool,
        format_options: Mapping[str, Any],
    ) -> None:
        if not isinstance(ds, MapDataset | IterDataset):
            raise TypeError(
                f"ds must be a MapDataset or an IterDataset, got {shown(ds)} of type "
                f"{type(ds).__name__}: make one by MapDataset.source, from records by position, or "
                "pass the dataset that a loader reads"
            )
        if not isinstance(shard, ShardOptions | None):
            raise TypeError(
                f"shard must be a ShardOptions, such as ShardByJaxProcess(), got {shown(shard)}"
            )
        sizes = dict(zip(("records_per_file", "bytes_per_file"), files, strict=True))
        if None not in files:
            raise ValueError(
                "records_per_file and bytes_per_file cannot be given together: each says where a "
                "file ends"
            )
        for name, value in sizes.items():
            sizes[name] = None if value is None else as_int(name, value, minimum=1)
        self.ds, self.append = ds, append
        # Before a function of the user is called, which may keep what it has computed.
        self.pipeline = described_pipeline(ds)
        self.shard = shard or NoSharding()
        self.codec = None if codec is None else codec_of(codec)
        self.format = format_of(format, format_options, self.codec)
        self.folder = folder_at(path)
        if self.format.is_cut_at_commas and "," in str(self.folder):
            raise ValueError(
                f"path must have no comma for format={self.format.name!r}, whose library takes it "
                f"for several files, got {str(self.folder)!r}: use another folder"
            )
        self.request = {
            "format": self.format.name,
            "options": self.format.options,
            "codec": None if self.codec is None else self.codec.described(),
            **sizes,
        }
        self.has_ranges = Ranges.has_ranges(ds)
        if self.codec is not None and self.codec.name == "functions":
            note_codec(self.folder, self.codec)

    def check_flags(self, overwrite: Any, progress: Any) -> None:
        """Refuses flags that are no flags, or exclude each other."""
        flags = {"overwrite": overwrite, "append": self.append, "progress": progress}
        for name, value in flags.items():
            if not isinstance(value, bool) and (value is not None or name != "progress"):
                allowed = "True, False or None" if name == "progress" else "True or False"
                raise TypeError(f"{name} must be {allowed}, got {shown(value)}")
        if overwrite and self.shard.shard_count > 1:
            raise ValueError(
                "overwrite must be False with shard, since a host would remove what another one "
                f"has just written: remove {self.folder} before the hosts start"
            )

    def run(self, workers: Any, overwrite: bool, progress: bool | None) -> WriteReport:
        with full_disk_explained(self.folder), stop_explained(self.folder):
            return self._run(workers, overwrite, progress)

    def _run(self, workers: Any, overwrite: bool, progress: bool | None) -> WriteReport:
        start = time.monotonic()
        if overwrite:
            _remove_written(self.folder, only_append=self.append)
        manifest = self._manifest()
        part = manifest.parts[-1]
        writer = FileWriter(self.folder, described_format(manifest.format, self._functions()))
        if manifest.complete:
            self.folder.remove_unfinished()
            verify_manifest(self.folder, manifest)
            new = []
        else:
            written = self._written_ranges if self.has_ranges else self._written_stream
            new = written(writer, part, workers, progress)
            manifest = self._completed(writer, manifest)
        report = self._report(writer.format, manifest, new, time.monotonic() - start)
        if is_shown(progress):
            print(report, file=sys.stderr)
        return report

    def _functions(self) -> Any:
        return self.codec if self.codec is not None and self.codec.name == "functions" else None

    def _manifest(self) -> Manifest:
        """Returns the manifest of the folder, with this call as its last part; created if
        missing.
        """
        found = manifest_in(self.folder)
        if found is None:
            plan = planned(self.ds, self.format, self.request)
            part = self._part(plan, 0)
            new = Manifest(False, plan.format.described(), [part], [])
            if self.folder.create(NAME, new.to_bytes()):
                return new
            found = cast("Manifest", manifest_in(self.folder))
        if not self.append or not found.complete:
            return self._checked(found)
        try:
            self._check_part(found, found.parts[-1])
        except ManifestError:
            return self._extended(found)
        _log.warning(
            "%s: this pipeline was written there last, and is not appended again", self.folder
        )
        return found

    def _checked(self, found: Manifest) -> Manifest:
        if len(found.parts) > 1 and not self.append and not found.complete:
            raise ManifestError(f"{self.folder} is not complete. {_REMEDY_OF_APPEND}")
        self._check_part(found, found.parts[-1 if self.append else 0])
        return found

    def _check_part(self, found: Manifest, part: WrittenPart) -> None:
        is_of_append = self.append and part is not found.parts[0] and not found.complete
        remedy = _REMEDY_OF_APPEND if is_of_append else _REMEDY
        for name, now in self.request.items():
            if part.request.get(name) != now:
                raise ManifestError(
                    f"{self.folder} was written with other arguments: {name} was "
                    f"{shown(part.request.get(name))}, and is {shown(now)} here. {remedy}"
                )
        difference = pipeline_difference(part.pipeline, self.pipeline)
        if difference is not None:
            raise ManifestError(f"{self.folder} is of another pipeline: {difference}. {remedy}")

    def _extended(self, found: Manifest) -> Manifest:
        """Returns the manifest with another part."""
        text = self.folder.read(NAME)
        if text is None or Manifest.from_bytes(text, str(self.folder)) != found:
            return self._manifest()  # another process has begun to append
        verify_manifest(self.folder, found, checksums=False)
        last = found.parts[-1]
        for name in ("format", "options", "codec"):
            if last.request.get(name) != self.request[name]:
                raise ManifestError(
                    f"append=True needs the {name} that the folder was written with, "
                    f"{shown(last.request.get(name))}, got {shown(self.request[name])}"
                )
        is_fitted = bool(found.files)
        format = described_format(found.format, self._functions()) if is_fitted else self.format
        plan = planned(self.ds, format, self.request, is_fitted=is_fitted)
        first = 1 + max([number_of(file.name) for file in found.files], default=-1)
        parts = [*found.parts, self._part(plan, first)]
        fit = found.format if is_fitted else plan.format.described()
        new = found.replaced(complete=False, format=fit, parts=parts)
        is_first = self.folder.exchange(NAME, text, new.to_bytes())
        return new if is_first else self._manifest()

    def _part(self, plan: WritePlan, first_file: int) -> WrittenPart:
        sizes = (plan.records_per_file, round(plan.record_bytes))
        return WrittenPart(
            self.pipeline, self.request, *sizes, first_file, plan.num_files, NO_FAULTS
        )

    def _written_stream(
        self, writer: FileWriter, part: WrittenPart, workers: Any, progress: bool | None
    ) -> list[Finished]:
        """Writes the files of a stream. Returns those that this call has written."""
        ds = _in_stream_order(self.ds, workers)
        length = dataset_length(self.ds)
        num_files = -(-length.num // part.records_per_file) if isinstance(length, Exact) else None
        job = self._stream_job(writer, part)
        num_done = len(job.finished())
        with ProgressBar(progress, self.folder, part, num_files, num_done) as bar:
            return job.write(ds, bar.add)

    def _stream_job(self, writer: FileWriter, part: WrittenPart) -> StreamJob:
        return StreamJob(writer, part.first_file, part.records_per_file, self.shard)

    def _written_ranges(
        self, writer: FileWriter, part: WrittenPart, workers: Any, progress: bool | None
    ) -> list[Finished]:
        """Writes this host's files. Returns those that this call has written."""
        units = [unit for unit in self._units(part) if writer.finished(unit[0]) is None]
        num_all = len([*self._units(part)])
        job = RangeJob(writer, Ranges(self.ds), part.record_bytes)
        with (
            ProgressBar(progress, self.folder, part, num_all, num_all - len(units)) as bar,
            _computed(job, units, workers) as results,
        ):
            new = []
            for _, is_new, file in results:
                bar.add(file)
                new += [file] if is_new else []
            return new

    def _units(self, part: WrittenPart) -> Iterator[tuple[int, int, int]]:
        """Yields the number, first position and end of each file of this host."""
        num, size = len(Ranges(self.ds)), part.records_per_file
        for k in range(
            self.shard.shard_index, num_files_of(self.ds, size) or 0, self.shard.shard_count
        ):
            yield part.first_file + k, k * size, min((k + 1) * size, num)

    def _completed(self, writer: FileWriter, manifest: Manifest) -> Manifest:
        """Returns the manifest with all files that are finished; stored, if these are all."""
        part = manifest.parts[-1]
        if part.num_files is None:
            done: list[Finished | None] = [*self._stream_job(writer, part).finished()]
            is_complete = bool(done) and cast("Finished", done[-1]).is_last
            faults = done[-1].faults if done and done[-1] is not None else NO_FAULTS
        else:
            done = [writer.finished(part.first_file + k) for k in range(part.num_files)]
            is_complete = None not in done
            faults = added_faults([file.faults for file in done if file is not None])
        now = manifest_in(self.folder)
        if now is not None and now.complete:
            # Another process has completed it, and may have removed what was read above.
            self.folder.remove_unfinished()
            return now
        files = [*manifest.files, *[file for one in done if one is not None for file in one.files]]
        whole = manifest.replaced(
            complete=is_complete,
            parts=[*manifest.parts[:-1], part.replaced(faults=faults)],
            files=files,
        )
        if is_complete:
            self.folder.replace(NAME, whole.to_bytes())
            self.folder.remove_unfinished()
        return whole

    def _report(
        self, format: Format, manifest: Manifest, new: list[Finished], seconds: float
    ) -> WriteReport:
        codec = getattr(format, "codec", None)
        files = [file for one in new for file in one.files]
        return WriteReport(
            str(self.folder),
            format.name,
            None if codec is None else codec.name,
            manifest.complete,
            manifest.num_records,
            manifest.num_bytes,
            manifest.files,
            sum([file.records for file in files]),
            sum([file.bytes for file in files]),
            len(files),
            seconds,
            manifest.parts[-1].faults,
        )


@contextlib.contextmanager
def _computed(
    job: RangeJob, units: list[tuple[int, int, int]], options: Any
) -> Iterator[Iterator[Any]]:
    """Yields the results of ``job`` for all units, computed here or by workers."""
    if not options.num_workers or not units:
        yield map(job, units)
        return
    ds = (
        MapDataset.source(units)
        .map(job)
        .to_iter_dataset(ReadOptions(num_threads=0, prefetch_buffer_size=0))
    )
    with contextlib.closing(iter(ds.mp_prefetch(options))) as it:
        yield it


def _in_stream_order(ds: Any, options: Any) -> Any:
    """Returns ``ds``, computed by workers, if that is possible."""
    if not options.num_workers:
        return ds
    try:
        return IterDataset.mp_prefetch(ds, options, order="stream")
    except ValueError as error:
        _log.info("write: this process computes all of the stream: %s", error)
        return ds


def _worker_options(workers: Any) -> Any:
    if isinstance(workers, MultiprocessingOptions | RayOptions):
        if workers.num_lanes is not None:
            raise ValueError(
                f"workers must have no num_lanes: the files do not depend on it, got {workers!r}"
            )
        return workers
    return MultiprocessingOptions(
        num_workers=0 if workers is None else as_int("workers", workers, minimum=0)
    )


def _remove_written(folder: Folder, *, only_append: bool) -> None:
    """Removes what was written to a folder before, the manifest last.

    Args:
        folder: the folder.
        only_append: leave files of parts that are complete.
    """
    found = manifest_in(folder)
    if found is None or (only_append and found.complete):
        return
    texts = [folder.read(name) for name in folder.unfinished_names() if name.endswith(".json")]
    unfinished = [
        file for text in texts if text is not None for file in Finished.from_bytes(text).files
    ]
    kept = found.files if only_append else ()
    for file in [*found.files, *unfinished]:
        if file not in kept:
            folder.remove(file.name)
    folder.remove_unfinished()
    if only_append and len(found.parts) > 1:
        folder.replace(NAME, found.replaced(complete=True, parts=found.parts[:-1]).to_bytes())
    else:
        folder.remove(NAME)
