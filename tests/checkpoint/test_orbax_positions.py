"""Every position through every interface of Orbax: before the first element, in the middle, after the end."""

import os
import select
from pathlib import Path
from threading import enumerate as threads

import orbax.checkpoint as ocp
import pytest

from gristmill import DataLoader, MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.checkpoint import CheckpointHandler, CheckpointRestore, CheckpointSave
from gristmill.samplers import IndexSampler
from gristmill.transforms import Batch, FlatMap


class Source:
    """Numbers; tells through a pipe, in whatever process, that one is read."""

    def __init__(self, pipe=None):
        self.pipe = pipe

    def __len__(self):
        return 23

    def __getitem__(self, index):
        if self.pipe is not None:
            writer = os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK)
            os.write(writer, b".")
            os.close(writer)
        return index

    def __repr__(self):
        return "Source()"


class Twice(FlatMap):
    max_fan_out = 2

    def flat_map(self, element):
        return [element] * (element % 3)


def loader(source, *operations, worker_count=0):
    sampler = IndexSampler(len(source), shuffle=True, seed=3, num_epochs=1)
    return DataLoader(
        data_source=source,
        sampler=sampler,
        operations=[*operations, Batch(3)],
        worker_count=worker_count,
        read_options=ReadOptions(2, 10),
    )


def loader_with_flat_map(source):
    return loader(source, Twice())


def loader_with_workers(source):
    return loader(source, worker_count=2)


def dataset(source):
    ds = MapDataset.source(source).shuffle(seed=3).filter(lambda x: x % 5).to_iter_dataset(ReadOptions(2, 10))
    return ds.map_with_index(lambda i, x: 100 * i + x).batch(3)


def dataset_with_workers(source):
    return dataset(source).mp_prefetch(MultiprocessingOptions(2))


class Manager:
    """``CheckpointManager`` with arguments."""

    def __init__(self, folder):
        self.manager = ocp.CheckpointManager(folder)

    def save(self, step, it):
        self.manager.save(step, args=ocp.args.Composite(data=CheckpointSave(it)))
        self.manager.wait_until_finished()

    def restore(self, step, it):
        assert self.manager.restore(step, args=ocp.args.Composite(data=CheckpointRestore(it)))["data"] is it

    def close(self):
        self.manager.close()


class SingleCheckpointer:
    """``Checkpointer``, for one item and without steps."""

    def __init__(self, folder):
        self.folder = folder
        self.checkpointer = ocp.Checkpointer(CheckpointHandler())

    def save(self, step, it):
        self.checkpointer.save(self.folder / str(step), args=CheckpointSave(it))

    def restore(self, step, it):
        assert self.checkpointer.restore(self.folder / str(step), args=CheckpointRestore(it)) is it

    def close(self):
        self.checkpointer.close()


class Protocol:
    """The newer interface, which calls ``save`` and ``load`` of the iterator."""

    def __init__(self, folder):
        self.checkpointer = ocp.v1.training.Checkpointer(folder)

    def save(self, step, it):
        self.checkpointer.save_checkpointables(step, {"data": it})

    def restore(self, step, it):
        self.checkpointer.load_checkpointables(step, {"data": it})

    def close(self):
        self.checkpointer.close()


@pytest.fixture(params=[Manager, SingleCheckpointer, Protocol])
def store(request, tmp_path):
    store = request.param(tmp_path)
    yield store
    store.close()


IN_PROCESS = [loader, loader_with_flat_map, dataset]
EVERYWHERE = [*IN_PROCESS, pytest.param(loader_with_workers, marks=pytest.mark.slow), dataset_with_workers]


def values(it, n=None):
    elements = it if n is None else (next(it) for _ in range(n))
    return [element.tolist() for element in elements]


def saved(pipeline, store):
    """Saves before the first element, after three, and after the end: what comes after each."""
    following = []
    with iter(pipeline) as it:
        for step, n in enumerate([0, 3, None]):
            elements = values(it, n)
            store.save(step, it)
            following = [elements_after + elements for elements_after in following] + [[]]
    assert [len(elements) > 1 for elements in following] == [True, True, False]
    return following


@pytest.mark.parametrize("make", IN_PROCESS)
def test_from_everywhere_to_everywhere(make, store):
    """Also twice in a row: nothing is left of the first time."""
    pipeline = make(Source())
    expected = saved(pipeline, store)
    for step in range(3):
        for n in (0, 2, None):
            it = iter(pipeline)
            values(it, n)
            store.restore(step, it)
            assert values(it, min(2, len(expected[step]))) == expected[step][:2]
            store.restore((step + 1) % 3, it)
            store.restore(step, it)
            state = it.get_state()
            assert values(it) == expected[step]
            assert next(it, "the end") == "the end"
            store.restore(step, it)
            assert it.get_state() == state


@pytest.mark.parametrize("store", [Manager], indirect=True)
@pytest.mark.parametrize("make", [loader_with_workers, pytest.param(dataset_with_workers, marks=pytest.mark.slow)])
def test_with_workers(make, store):
    pipeline = make(Source())
    expected = saved(pipeline, store)
    with iter(pipeline) as it:
        for step in (2, 0, 1):
            store.restore(step, it)
            assert values(it, min(2, len(expected[step]))) == expected[step][:2]
        store.restore(2, it)
        store.restore(1, it)
        assert values(it) == expected[1]
        assert next(it, "the end") == "the end"


def reading_threads():
    return {thread for thread in threads() if thread.name == "gristmill-read"}


def children():
    return {child for path in Path("/proc/self/task").glob("*/children") for child in path.read_text().split()}


@pytest.fixture
def pipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("pipe") / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield path, reader
    os.close(reader)


@pytest.mark.parametrize("store", [Manager], indirect=True)
@pytest.mark.parametrize("make", EVERYWHERE)
def test_the_handler_starts_reading(make, store, pipe):
    path, reader = pipe
    store.save(0, iter(make(Source())))
    with iter(make(Source(path))) as it:
        assert select.select([reader], [], [], 0)[0] == []
        store.restore(0, it)
        assert select.select([reader], [], [], 30)[0] == [reader]


@pytest.mark.parametrize("store", [Protocol], indirect=True)
@pytest.mark.parametrize("make", EVERYWHERE)
def test_loading_does_not(make, store, pipe):
    path, reader = pipe
    store.save(0, iter(make(Source())))
    before = reading_threads(), children()
    with iter(make(Source(path))) as it:
        store.restore(0, it)
        assert reading_threads() <= before[0]
        assert children() <= before[1]
        assert select.select([reader], [], [], 0)[0] == []
        next(it)
        assert select.select([reader], [], [], 30)[0] == [reader]
