"""Code shared by the tests of golden states."""

import contextlib
import itertools
import json
from pathlib import Path

from golden_pipelines import own_pipelines, pipelines, plain

import gristmill

GOLDEN = Path(__file__).parent / "golden"
PROCESS, PIPELINE = "process_0-of-1.json", "pipeline_0-of-1.json"

GRAINS_PIPELINES, OWN_PIPELINES = pipelines(gristmill), own_pipelines(gristmill)
PIPELINES = GRAINS_PIPELINES | OWN_PIPELINES


def written_by(library):
    paths = {path.stem: path for path in GOLDEN.glob(f"{library}_*.json")}
    releases = sorted(paths, key=lambda name: [int(part) for part in name.split("_")[1].split(".")])
    return {release: json.loads(paths[release].read_text()) for release in releases}


@contextlib.contextmanager
def made(name):
    """The pipeline, where the files are that some read."""
    with contextlib.chdir(GOLDEN):
        built = PIPELINES[name]()
        yield built
    source = getattr(built, "_gm_source", None)
    if isinstance(source, gristmill.sources.SharedMemoryDataSource):
        source.unlink()
        source.close()


def following(it, name, expected):
    """The rest, of an endless pipeline as many elements as are expected."""
    return [
        plain(element)
        for element in itertools.islice(it, len(expected) if "endless" in name else None)
    ]
