"""Iterators in several threads share datasets and sources; each thread gets all elements.

On a free-threaded build this tests what no GIL protects. With a GIL, threads take turns as often as
they can.
"""

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from computing_ahead import quick_switches  # noqa: F401
from new_seed import SEED
from waiting import PATIENCE_SECONDS

import gristmill as gm
from gristmill import IterDataset, MapDataset, ReadOptions
from gristmill.experimental import InterleaveIterDataset, WithOptionsIterDataset

NUM = 60
NUM_SOURCES = 3  # of a chain
NUM_THREADS = 4
THREADS = ReadOptions(3, 12)


def number(record):
    """Returns an element made from a record of any source."""
    record = record["x"] if isinstance(record, dict) else record
    return int(record)


def is_no_third(x):
    return x % 3 > 0


def unless_seventh(x):
    if not x % 7:
        raise ValueError(x)
    return x


def draw(x, rng):
    return x, int(rng.integers(1000))


def part_of(ds, i):
    return ds[i::4]


def numbers(source):
    return MapDataset.source(source).map(number)


def stream(source):
    return numbers(source).to_iter_dataset(THREADS)


def interleaved(source, **options):
    parts = MapDataset.range(4).map(partial(part_of, numbers(source)))
    return InterleaveIterDataset(parts, cycle_length=2, **options)


# That streams can be iterated by several threads at a time is a law of all stages.
CHAINS = {
    "map": lambda s: stream(s).map(lambda x: x + 1),
    "random_map": lambda s: numbers(s).seed(3).shuffle().random_map(draw).to_iter_dataset(THREADS),
    "filter": lambda s: (
        numbers(s).filter(is_no_third).to_iter_dataset(THREADS).filter(lambda x: x % 2)
    ),
    "batch": lambda s: numbers(s).batch(4).to_iter_dataset(THREADS).rebatch(7),
    "block_shuffle": lambda s: (
        numbers(s).block_shuffle(4, group_size=3, seed=5).to_iter_dataset(THREADS)
    ),
    "mix": (
        lambda s: MapDataset.mix(
            [numbers(s), numbers(s).shuffle(seed=1)], [0.7, 0.3]
        ).to_iter_dataset(THREADS)
    ),
    "interleave": lambda s: interleaved(s, num_make_iter_threads=2, make_iter_buffer_size=2),
    "few threads": lambda s: WithOptionsIterDataset(
        IterDataset.mix([stream(s).thread_prefetch(2)] * 3).thread_prefetch(2),
        gm.experimental.DatasetOptions(max_threads=2),
    ),
    "cache": lambda s: stream(s).cache().repeat(2),
    "tolerate": lambda s: (
        numbers(s).map(unless_seventh).tolerate(ValueError, max_rate=0.5).to_iter_dataset(THREADS)
    ),
    "split": lambda s: numbers(s).split({"a": 0.5, "b": 0.5}, by=str)["a"].to_iter_dataset(THREADS),
    "loader": lambda s: gm.load(
        s, shuffle=True, seed=2, num_epochs=2, transformations=[Number()], read_options=THREADS
    ),
}


class Number(gm.transforms.Map):
    def map(self, element):
        return number(element)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """By name, those whose packages are installed."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "lines.jsonl").write_text("".join([json.dumps({"x": x}) + "\n" for x in range(NUM)]))
    found = {
        "list": list(range(NUM)),
        "JsonlSource": gm.sources.JsonlSource(str(folder / "lines.jsonl")),
        "InMemoryDataSource": gm.sources.InMemoryDataSource(list(range(NUM))),
    }
    try:
        import fsspec
    except ImportError:
        pass
    else:
        memory = fsspec.filesystem("memory")
        memory.pipe("/shared_by_threads/lines.jsonl", (folder / "lines.jsonl").read_bytes())
        remote = gm.sources.JsonlSource(
            "/shared_by_threads/lines.jsonl", filesystem=memory, index_dir=str(folder)
        )
        found["cached"] = gm.sources.cached(remote, folder / "kept")
    try:
        import pyarrow.parquet
    except ImportError:
        pass
    else:
        pyarrow.parquet.write_table(
            pyarrow.table({"x": range(NUM)}), folder / "table.parquet", row_group_size=20
        )
        found["ParquetSource"] = gm.sources.ParquetSource(str(folder / "table.parquet"))
    try:
        from array_record.python.array_record_module import ArrayRecordWriter
    except ImportError:
        pass
    else:
        writer = ArrayRecordWriter(str(folder / "records.array_record"), "group_size:1")
        for x in range(NUM):
            writer.write(str(x).encode())
        writer.close()
        found["ArrayRecordDataSource"] = gm.sources.ArrayRecordDataSource(
            str(folder / "records.array_record")
        )
    yield found
    found["InMemoryDataSource"].unlink()


def plain(ds):
    """The elements of an iterator, as text."""
    with iter(ds) as it:
        return [repr(x) for x in it]


def check(chain, sources, seed):
    """Datasets are new, so that several threads are the first to use them."""
    expected = {name: plain(chain(source)) for name, source in sources.items()}
    shared = {name: chain(source) for name, source in sources.items()}
    begin = threading.Barrier(NUM_THREADS)

    def run(number):
        names = [*shared]
        random.Random(seed + number // 2).shuffle(names)  # two threads at the same one
        begin.wait(PATIENCE_SECONDS)
        for name in names:
            assert plain(shared[name]) == expected[name], name

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        for one in [pool.submit(run, number) for number in range(NUM_THREADS)]:
            one.result(2 * PATIENCE_SECONDS)


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.usefixtures("quick_switches")
def test_each_thread_gets_the_elements_that_one_thread_gets(name, sources):
    start = (SEED + [*CHAINS].index(name)) % len(sources)
    twice = [*sources.items(), *sources.items()]
    check(CHAINS[name], dict(twice[start : start + NUM_SOURCES]), SEED)
