"""What an observer counts."""

import contextlib
import gc
import random
import threading
import weakref

import cloudpickle
import numpy as np
import pytest

import gristmill
from gristmill import MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.dataset import DatasetIterator
from gristmill.diagnostics import get_execution_summary, observe, probe
from gristmill.experimental import (
    DatasetOptions,
    ExecutionTrackingMode,
    InterleaveIterDataset,
    WithOptionsIterDataset,
    multithread_prefetch,
)

DIRECT = ReadOptions(num_threads=0)
TRACKED = DatasetOptions(execution_tracking_mode=ExecutionTrackingMode.STAGE_TIMING)


def is_even(x):
    return x % 2 == 0


def pair(x):
    return {"a": np.full(3, x, np.int32), "b": b"12345"}


def large(x):
    return np.full(100_000, x, np.uint16)  # so that workers cannot run far ahead


def by_kind(summary):
    return {node.name.partition("(")[0].partition("[")[0]: node for node in summary.values()}


def take(it, n):
    return [next(it) for _ in range(n)]


class Clock:
    """Time that passes only when somebody says so."""

    def __init__(self):
        self.now = 1

    def __call__(self):
        return self.now


def test_numbers_of_every_stage():
    it = iter(MapDataset.range(20).shuffle(seed=1).map(pair).to_iter_dataset(DIRECT).batch(2))
    with observe(it) as view:
        take(it, 5)
        summary = view.summary()
    assert list(summary) == [0, 1, 2, 3, 4]
    assert [node.inputs for node in summary.values()] == [(1,), (2,), (3,), (4,), ()]
    assert [node.num_produced_elements for node in summary.values()] == [5, 10, 10, 10, 10]
    assert [node.is_output for node in summary.values()] == [True, False, False, False, False]
    assert [node.is_prefetch for node in summary.values()] == [False, True, False, False, False]
    assert [node.category for node in summary.values()] == ["preprocessing", "prefetch", "preprocessing", "preprocessing", "read"]
    assert summary[2].output_spec == "{'a': 'int32[3]', 'b': 'bytes[]'}"
    assert summary[0].output_spec == "{'a': 'int32[2, 3]', 'b': 'bytes_[2]'}" or "int32[2, 3]" in summary[0].output_spec
    assert summary[2].bytes_produced == 10 * (12 + 5)
    assert summary[1].bytes_consumed == summary[2].bytes_produced
    for node in summary.values():
        assert 0 < node.min_processing_time_ns <= node.max_processing_time_ns
        assert node.total_processing_time_ns > 0
    assert sum([node.wait_time_ratio for node in summary.values()]) == pytest.approx(1, abs=1e-3)


def test_what_filters_leave():
    it = iter(MapDataset.range(1000).filter(is_even).to_iter_dataset(DIRECT).filter(lambda x: x % 10 == 0))
    with observe(it) as view:
        assert len(list(it)) == 100
    nodes = by_kind(view.summary())
    assert nodes["FilterDatasetIterator"].kept_ratio == pytest.approx(0.2)
    assert nodes["FilterMapDataset"].kept_ratio == pytest.approx(0.5, abs=0.1)
    assert nodes["PrefetchDatasetIterator"].kept_ratio is None
    assert nodes["FilterMapDataset"].num_produced_elements == 500


def test_errors_are_counted_and_unchanged():
    def fail(x):
        if x == 3:
            raise KeyError("three")
        return x

    it = iter(MapDataset.range(6).to_iter_dataset(DIRECT).map(fail))
    with observe(it) as view:
        assert take(it, 3) == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(KeyError, match="three"):
                next(it)
        it.skip_failed()
        assert list(it) == [4, 5]
    nodes = by_kind(view.summary())
    assert nodes["MapDatasetIterator"].num_errors == 2
    assert nodes["PrefetchDatasetIterator"].num_errors == 0


def test_read_threads_are_counted_exactly():
    ds = MapDataset.range(5000).map(lambda x: x + 1).to_iter_dataset(ReadOptions(num_threads=8, prefetch_buffer_size=64))
    with observe(iter(ds)) as view:
        assert list(view.iterator) == list(range(1, 5001))
    nodes = by_kind(view.summary())
    assert nodes["PrefetchDatasetIterator"].num_produced_elements == 5000
    assert nodes["MapMapDataset"].num_produced_elements == nodes["RangeMapDataset"].num_produced_elements == 5000
    assert nodes["MapMapDataset"].place == "threads" and nodes["PrefetchDatasetIterator"].place == "consumer"


def test_threads_that_read_already_are_observed_too():
    ds = MapDataset.range(10_000).map(lambda x: x).to_iter_dataset(ReadOptions(num_threads=2, prefetch_buffer_size=16))
    it = iter(ds)
    take(it, 10)
    with observe(it) as view:
        rest = list(it)
    assert rest == list(range(10, 10_000))
    assert 9900 <= by_kind(view.summary())["MapMapDataset"].num_produced_elements <= 9990


@pytest.mark.parametrize("is_tracked", [False, True], ids=["observe", "option"])
def test_workers_are_counted_exactly(is_tracked):
    ds = MapDataset.range(200).map(pair).filter(lambda x: x["a"][0] % 2 == 0).to_iter_dataset().batch(5)
    ds = ds.mp_prefetch(MultiprocessingOptions(num_workers=2))
    if is_tracked:
        it = iter(WithOptionsIterDataset(ds, TRACKED))
        num = len(list(it))
        summary = get_execution_summary(it)
    else:
        it = iter(ds)
        with observe(it) as view:
            num = len(list(it))
        summary = view.summary()
    nodes = by_kind(summary)
    assert num == 20
    assert summary[0].num_produced_elements == nodes["BatchDatasetIterator"].num_produced_elements == 20
    assert nodes["FilterMapDataset"].num_produced_elements == 100
    assert nodes["RangeMapDataset"].num_produced_elements == 200
    assert nodes["FilterMapDataset"].kept_ratio == 0.5
    assert {node.place for node in summary.values()} == {"consumer", "workers"}
    assert sum([node.wait_time_ratio for node in summary.values()]) == pytest.approx(1, abs=1e-3)
    it.close()


def test_running_workers_are_observed_from_now_on():
    ds = MapDataset.range(100).to_iter_dataset().map(large).mp_prefetch(MultiprocessingOptions(num_workers=2))
    it = iter(ds)
    take(it, 10)
    process_ids = [worker.process_id for worker in it._pool.workers]
    with observe(it) as view:
        num = len(list(it))
        assert [worker.process_id for worker in view._observer.groups[0].processes] == process_ids
    assert num == 90
    assert 80 <= by_kind(view.summary())["MapDatasetIterator"].num_produced_elements <= 90
    it.set_state(iter(ds).get_state())
    assert len(list(it)) == 100  # by the same processes, which observe no more
    it.close()


def test_what_dead_workers_have_counted_stays():
    ds = MapDataset.range(40).to_iter_dataset().map(large).mp_prefetch(MultiprocessingOptions(num_workers=2))
    it = iter(ds)
    with observe(it) as view:
        take(it, 10)
        before = by_kind(view.summary())["MapDatasetIterator"].num_produced_elements
        for worker in it._pool.workers:
            worker._process.kill()
            worker._process.wait(30)
        state = it.get_state()
        with pytest.raises(RuntimeError, match="killed"):
            while True:
                next(it)
        it.set_state(state)
        rest = list(it)
        after = by_kind(view.summary())["MapDatasetIterator"].num_produced_elements
        assert view.snapshot().workers[0].num_restarts == 2
    assert len(rest) == 30
    assert before >= 1 and after >= before + 30
    it.close()


def test_components_of_one_form_are_one():
    def numbers(i):
        return MapDataset.range(i, i + 3).map(lambda x: x * 2).to_iter_dataset()

    it = iter(InterleaveIterDataset(MapDataset.range(100).map(numbers), cycle_length=7))
    with observe(it) as view:
        assert len(list(it)) == 300
    summary = view.summary()
    nodes = by_kind(summary)
    assert nodes["MapMapDataset"].num_produced_elements == 300
    assert len(summary) <= 6
    assert len(view._observer.probes) <= 6


def test_shares_of_threads_are_one():
    it = iter(multithread_prefetch(MapDataset.range(100).map(lambda x: x).to_iter_dataset(), 3, 2))
    with observe(it) as view:
        assert list(it) == list(range(100))
    assert by_kind(view.summary())["MapMapDataset"].num_produced_elements == 100


def test_memory_does_not_grow_with_the_run():
    it = iter(MapDataset.range(10).repeat().map(lambda x: x).to_iter_dataset(DIRECT).map(lambda x: x))
    with observe(it) as view:
        observer = view._observer
        take(it, 100)
        lane = observer.lanes[0]
        for _ in range(3000):
            lane.mark(probe.clock())
        take(it, 1000)
        assert len(lane.marks) < 500
        # Threads come and go with every restart.
    threaded = iter(MapDataset.range(100).to_iter_dataset(ReadOptions(num_threads=2, prefetch_buffer_size=2)))
    with observe(threaded) as view:
        for _ in range(150):
            threaded.set_state({"next_index": 0})
            assert take(threaded, 3) == [0, 1, 2]
        assert len(view._observer.lanes) <= 70
        assert view.summary()[0].num_produced_elements == 450


def test_times_are_right_although_few_calls_are_timed(monkeypatch):
    """Of quick calls, one in some stands for those before it: the sums are right all the same."""
    clock = Clock()
    monkeypatch.setattr(probe, "clock", clock)
    rng = random.Random(0)
    spent = {"map": 0, "filter": 0, "source": 0}

    def work(name, low, high):
        def call(x):
            nanoseconds = rng.randrange(low, high)
            clock.now += nanoseconds
            spent[name] += nanoseconds
            return True if name == "filter" else x

        return call

    ds = MapDataset.range(20_000).map(work("source", 1000, 3000)).to_iter_dataset(DIRECT)
    it = iter(ds.map(work("map", 5000, 9000)).filter(work("filter", 100, 900)))
    with observe(it) as view:
        assert len(list(it)) == 20_000
    nodes = by_kind(view.summary())
    timed = nodes["MapDatasetIterator"].total_processing_time_ns
    assert timed != spent["map"]  # or else this tests nothing
    assert timed == pytest.approx(spent["map"], rel=0.05)
    assert nodes["FilterDatasetIterator"].total_processing_time_ns == pytest.approx(spent["filter"], rel=0.1)
    assert nodes["MapMapDataset"].total_processing_time_ns == pytest.approx(spent["source"], rel=0.1)
    assert nodes["MapMapDataset"].num_produced_elements == nodes["MapDatasetIterator"].num_produced_elements == 20_000
    assert nodes["RangeMapDataset"].num_produced_elements == pytest.approx(20_000, rel=0.05)
    assert view.summary().waited_ns == sum(spent.values())


def test_rare_long_calls_are_not_missed(monkeypatch):
    """A window is filled in one of many calls, in a block, which is always timed."""
    clock = Clock()
    monkeypatch.setattr(probe, "clock", clock)

    def read(x):
        clock.now += 10_000
        return x

    it = iter(MapDataset.range(10_000).map(read).to_iter_dataset(DIRECT).window_shuffle(500, seed=1))
    with observe(it) as view:
        assert len(list(it)) == 10_000
    assert by_kind(view.summary())["MapMapDataset"].total_processing_time_ns == 10_000 * 10_000


def test_rare_long_elements_are_not_missed(monkeypatch):
    """Elements that take long now and then: as soon as that matters, every call is timed."""
    clock = Clock()
    monkeypatch.setattr(probe, "clock", clock)
    spent = 0

    def uneven(x):
        nonlocal spent
        nanoseconds = 10_000_000 if x % 501 == 500 else 1000
        clock.now += nanoseconds
        spent += nanoseconds
        return x

    it = iter(MapDataset.range(30_000).to_iter_dataset(DIRECT).map(uneven).map(lambda x: x))
    with observe(it) as view:
        assert len(list(it)) == 30_000
    found = by_kind(view.summary())
    assert view.summary()[1].total_processing_time_ns == pytest.approx(spent, rel=0.06)
    assert found["MapDatasetIterator"].num_produced_elements == 30_000


def test_all_waiting_for_threads_is_counted():
    blocks = threading.Semaphore(0)

    def uneven(x):
        if x % 300 == 299:
            assert blocks.acquire(timeout=30)
        return x

    it = iter(MapDataset.range(3000).map(uneven).to_iter_dataset(ReadOptions(num_threads=1, prefetch_buffer_size=8)))
    with observe(it) as view:
        for x in it:
            if x % 300 == 280:  # the next ones are about to be waited for
                threading.Timer(0.01, blocks.release).start()
    summary = view.summary()
    assert summary[0].total_processing_time_ns == pytest.approx(summary.waited_ns, rel=0.05)


def test_delays_of_the_consumer(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(probe, "clock", clock)

    def wait(x):
        clock.now += 1_000_000 if x % 100 == 99 else 1000
        return x

    it = iter(MapDataset.range(1000).to_iter_dataset(DIRECT).map(wait))
    with observe(it) as view:
        for _ in it:
            clock.now += 1000
    snapshot = view.snapshot()
    assert snapshot.num_elements == 1000
    assert snapshot.delay_ns[50] == pytest.approx(1000, rel=0.07)
    assert snapshot.delay_ns[95] == pytest.approx(1000, rel=0.07)
    assert view._observer.output.percentile(0.995) == pytest.approx(1_000_000, rel=0.07)
    assert snapshot.starved_ratio == pytest.approx((10 * 1_000_000 + 990 * 1000) / (10 * 1_000_000 + 1990 * 1000), rel=0.01)


class Squares(MapDataset):
    """A user's, which reads its parent by index."""

    def __init__(self, parent):
        super().__init__(parent)
        self.mine = parent

    def __len__(self):
        return len(self._parent)

    def __getitem__(self, index):
        return self.slice(index) if isinstance(index, slice) else self.mine[index] ** 2


class Countdown(DatasetIterator):
    def __init__(self, n):
        super().__init__()
        self.left = n

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left

    def get_state(self):
        return self.left

    def set_state(self, state):
        self.left = state


class Doubled(DatasetIterator):
    def __next__(self):
        return 2 * next(self._parent)

    def get_state(self):
        return self._parent.get_state()

    def set_state(self, state):
        self._parent.set_state(state)


def test_classes_of_users():
    ds = Squares(Squares(MapDataset.range(30)))
    it = Doubled(Doubled(iter(ds.to_iter_dataset(DIRECT))))
    with observe(it) as view:
        assert take(it, 20) == [4 * x**4 for x in range(20)]
        assert type(it).__name__ == "Doubled" and isinstance(it, Doubled)
        assert isinstance(view._observer.probes[0].name, str)
    assert type(it) is Doubled
    summary = view.summary()
    assert [node.num_produced_elements for node in summary.values()][:3] == [20, 20, 20]
    assert [node.name.partition("(")[0] for node in summary.values()] == [
        *("Doubled", "Doubled", "PrefetchDatasetIterator", "Squares", "Squares", "RangeMapDataset")
    ]
    own = Countdown(3)
    with observe(own) as view:
        assert list(own) == [2, 1, 0]
    assert view.summary()[0].num_produced_elements == 3
    assert view.summary()[0].num_errors == 0


def test_other_objects_of_a_users_class_are_not_counted_and_the_class_is_as_before():
    own = vars(Countdown)["__next__"], vars(Squares)["__getitem__"]
    ds = Squares(MapDataset.range(30))
    observed, other, read = Countdown(5), Countdown(5), iter(ds.to_iter_dataset(DIRECT))
    with observe(observed) as view, observe(read) as read_view:
        assert [next(it) for it in (observed, other, other, observed, other)] == [4, 4, 3, 3, 2]
        assert [next(read), ds[5], next(read), [*ds[2:4]]] == [0, 25, 1, [4, 9]]
        assert Countdown.__next__.__name__ == "__next__"
    assert (vars(Countdown)["__next__"], vars(Squares)["__getitem__"]) == own
    assert [next(observed), next(other), next(read)] == [2, 1, 4]
    assert view.summary()[0].num_produced_elements == 2
    assert [node.num_produced_elements for node in read_view.summary().values()] == [2, 2, 2]


def test_a_users_class_is_as_before_when_its_objects_are_gone():
    own = vars(Countdown)["__next__"]
    its = [Countdown(3), Countdown(3)]
    views = [observe(it) for it in its]
    for view, it in zip(views, its, strict=True):
        view.__enter__()
        next(it)
    assert vars(Countdown)["__next__"] is not own
    del it, its[0], views[0], view
    gc.collect()
    assert vars(Countdown)["__next__"] is not own  # the other one is there
    assert next(its[0]) == 1
    assert views[0].summary()[0].num_produced_elements == 2
    its.clear()
    views.clear()
    gc.collect()
    assert vars(Countdown)["__next__"] is own


class Inheriting(Countdown):
    pass


class Tripled(Countdown):
    def __next__(self):
        return 3 * super().__next__()


def test_a_method_that_calls_that_of_its_base_is_counted_once():
    its = [Countdown(4), Inheriting(4), Tripled(4)]
    views = [observe(it) for it in its]
    with contextlib.ExitStack() as stack:
        for view in views:
            stack.enter_context(view)
        assert [list(it) for it in its] == [[3, 2, 1, 0], [3, 2, 1, 0], [9, 6, 3, 0]]
    assert [view.summary()[0].num_produced_elements for view in views] == [4, 4, 4]
    assert "__next__" not in vars(Inheriting)


class Uncopyable(Squares):
    def __copy__(self):
        raise TypeError("there is one of these")


def test_what_cannot_be_observed_runs_as_it_is(caplog):
    it = iter(Uncopyable(MapDataset.range(10)).to_iter_dataset().batch(5))
    with observe(it) as view:
        assert [batch.tolist() for batch in it] == [[0, 1, 4, 9, 16], [25, 36, 49, 64, 81]]
    assert "cannot be observed, and runs as it is" in caplog.text
    assert [node.num_produced_elements for node in view.summary().values()][:2] == [2, 10]


def fail(worker):
    raise KeyError("whoever watches")


def test_watching_that_fails_leaves_workers_alone():
    it = iter(MapDataset.range(100).to_iter_dataset().map(large).mp_prefetch(MultiprocessingOptions(num_workers=2)))
    next(it)
    for worker in it._pool.workers:
        worker.call(cloudpickle.dumps(fail))
    assert [int(x[0]) for x in it] == list(range(1, 100))
    it.close()


def test_the_datasets_themselves_are_untouched():
    ds = Squares(MapDataset.range(10)).map(lambda x: x)
    it = iter(ds.to_iter_dataset(DIRECT))
    with observe(it):
        take(it, 3)
        assert "_block" not in vars(ds) and type(ds._parent) is Squares
        assert [*ds] == [x * x for x in range(10)]
    assert it._ds is ds


def test_iterators_are_not_kept_alive():
    it = iter(MapDataset.range(100).map(lambda x: x).to_iter_dataset(ReadOptions(num_threads=2, prefetch_buffer_size=4)).batch(2))
    view = observe(it)
    view.__enter__()
    next(it)
    observer, ref = view._observer, weakref.ref(it._parent)
    view._it = None
    gc.disable()
    try:
        del it
        assert ref() is None  # at once: its threads end now
    finally:
        gc.enable()
    assert observer.output.elements == 1


def test_the_option_observes_what_is_before_and_after_it():
    ds = WithOptionsIterDataset(MapDataset.range(20).to_iter_dataset(DIRECT).map(lambda x: x), TRACKED).filter(is_even).batch(2)
    it = iter(ds)
    take(it, 3)
    summary = get_execution_summary(it)
    assert summary[0].num_produced_elements == 3
    assert [node.name.partition("(")[0] for node in summary.values()] == [
        *("BatchDatasetIterator", "FilterDatasetIterator", "MapDatasetIterator", "PrefetchDatasetIterator", "RangeMapDataset")
    ]


def test_an_iterator_that_is_observed_stays_so():
    it = iter(WithOptionsIterDataset(MapDataset.range(20).to_iter_dataset(), TRACKED))
    take(it, 3)
    with observe(it, trace=True) as view:
        take(it, 4)
    take(it, 2)
    assert get_execution_summary(it)[0].num_produced_elements == 9
    assert sum([len(line.events) for line in view.snapshot().threads]) >= 4


def test_without_any_of_it_there_is_no_summary():
    with pytest.raises(ValueError, match="STAGE_TIMING"):
        get_execution_summary(iter(MapDataset.range(3)))
    for wrong in (MapDataset.range(3), [1], 3):
        with pytest.raises(TypeError, match="iter"):
            observe(wrong)


def test_loaders():
    loader = gristmill.load([1, 2, 3, 4], num_epochs=2, batch_size=2)
    it = iter(loader)
    with observe(it) as view:
        assert len(list(it)) == 4
    assert view.summary()[0].num_produced_elements == 4
    assert "2/2" not in str(view.postfix)


def test_summaries_as_data_and_as_text():
    it = iter(MapDataset.range(100).map(lambda x: x).to_iter_dataset().batch(10))
    with observe(it) as view:
        list(it)
    summary = view.summary()
    data = summary.to_dict()
    assert data["nodes"]["0"]["num_produced_elements"] == 10
    assert set(data["nodes"]) == {"0", "1", "2", "3"}
    assert summary.to_json().startswith("{")
    lines = str(summary).splitlines()
    assert len({len(line.rstrip()) for line in lines}) <= len(lines)
    marked = [line for line in lines if line.startswith(" >")]
    assert len(marked) == 1 and f" {summary.bottleneck.id} " in marked[0]
    assert "N/A" in str(summary)
    assert view.report().splitlines()[0].startswith(("Bound", "Too little"))


def test_views_may_be_read_by_other_threads():
    it = iter(MapDataset.range(20_000).map(lambda x: x).to_iter_dataset())
    failures, done = [], threading.Event()

    def look():
        while not done.is_set():
            try:
                view.summary()
                str(view.diagnosis())
            except Exception as error:
                failures.append(error)
                return

    with observe(it) as view:
        thread = threading.Thread(target=look)
        thread.start()
        assert len(list(it)) == 20_000
        done.set()
        thread.join()
    assert not failures
