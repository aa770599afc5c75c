"""The note at an error: stage, element, source key, epoch, for all ways of computing; and the
lineage of elements.
"""

import dataclasses
import gc
import pickle
import threading
import traceback
import weakref
from functools import partial
from operator import itemgetter, methodcaller

import numpy as np
import pytest
from computing_ahead import DIRECT, Boom, ClosingDataset, no_threads_left  # noqa: F401
from local_workers import LocalWorkersIterDataset
from operations import operation
from refusing import assert_raises
from users_datasets import BareMap
from waiting import wait_until

import gristmill as gm
from gristmill import IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from gristmill import experimental as gx
from gristmill.dataset.bases.node import ancestors
from gristmill.dataset.descriptions.lineage import origin
from gristmill.dataset.stages.tfrecord import TFRecordIterDataset

MODES = (DIRECT, ReadOptions(2, 8), ReadOptions(1, 64))
N = 40
BASE = MapDataset.source(range(N)).shuffle(seed=1)  # the key 17 is at 19
STREAM = BASE.to_iter_dataset(DIRECT)


class Fails:
    """User code that fails at a key, from the ``time``-th time on that it gets there; else it does
    what ``then`` does.
    """

    def __init__(self, key=17, time=1, then=lambda x: x):
        self.key = key
        self.left = time
        self.then = then
        self.lock = threading.Lock()

    def __str__(self):
        return "Fails"

    def __call__(self, x, *others):
        if self.key in np.ravel(x).tolist():
            with self.lock:
                self.left -= 1
            if self.left <= 0:
                raise Boom(self.key)
        return self.then(x)

    def __reduce__(self):
        return Fails, (self.key, self.left, self.then)


fails = Fails()
methods = {
    "__len__": lambda self: len(self._parent),
    "__getitem__": lambda self, index: self._parent[index],
}
PassesOn = type("PassesOn", (MapDataset,), methods)


def raises(error):
    def fail(x):
        raise error

    return fail


def error_of(ds_or_it):
    it = iter(ds_or_it)
    with pytest.raises(BaseException) as caught:
        for _ in it:
            pass
    return caught.value


def note_of(ds_or_it):
    """The text of the note; empty if there is none."""
    notes = [
        note for note in getattr(error_of(ds_or_it), "__notes__", []) if note.startswith("Raised")
    ]
    assert len(notes) <= 1
    return "".join(notes)


def frames(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def alone(ds):
    return ds


first, not_4 = itemgetter(0), (4).__ne__
same = methodcaller("map", alone)
lists = methodcaller("batch", 5, batch_fn=list)
pairs = methodcaller("batch", 2, batch_fn=list)
prefetched = partial(gx.ThreadPrefetchIterDataset, prefetch_buffer_size=3)
prefetched_directly = partial(gx.ThreadPrefetchIterDataset, prefetch_buffer_size=0)
in_threads = partial(gx.multithread_prefetch, num_threads=3, buffer_size=2)
# Stages downstream that have no effect on the errors of a stage.
AFTER = [
    *(alone, same, lists, prefetched, prefetched_directly, in_threads, LocalWorkersIterDataset),
    lambda ds: pairs(same(lists(ds))),
    lambda ds: prefetched(lists(ds)),
    lambda ds: prefetched(pairs(lists(ds))),
    lambda ds: lists(prefetched(ds)),
    lambda ds: ds.window_shuffle(7, seed=3),
    lambda ds: gx.InterleaveIterDataset([ds], cycle_length=1),
    lambda ds: ds.repeat(2),
    lambda ds: ds.cache(),
    lambda ds: ds.limit(30),
    lambda ds: ds.batch(5).rebatch(4),
]
AT_19 = "at element 19 (epoch 0, source key 17)."
FAILS = f"(transform=Fails) {AT_19}"
BATCH = "at element 4 (epoch 0, source keys 2, 25, 4 and 17)."
FOURS = f"(batch_size=4, drop_remainder=False) {BATCH}"
# The stage that fails, as a stream, and what its note says.
MAP_STAGES = [
    (lambda o: BASE.map(fails).to_iter_dataset(o), f"MapMapDataset{FAILS}"),
    (lambda o: BASE.filter(fails).to_iter_dataset(o, allow_nones=True), f"FilterMapDataset{FAILS}"),
    (lambda o: BASE.random_map(fails, seed=1).to_iter_dataset(o), f"RandomMapMapDataset{FAILS}"),
    (
        lambda o: BASE.filter(not_4).map(fails).to_iter_dataset(o, allow_nones=True),
        f"MapMapDataset{FAILS}",
    ),
    (lambda o: BASE.map(fails).batch(4).to_iter_dataset(o).map(first), f"MapMapDataset{FAILS}"),
    (
        lambda o: BASE.batch(4, batch_fn=fails).to_iter_dataset(o).map(first),
        f"BatchMapDataset{FOURS}",
    ),
]
STAGES = [
    *MAP_STAGES,
    (lambda o: BASE.to_iter_dataset(o).map(fails), f"MapDatasetIterator{FAILS}"),
    (
        lambda o: BASE.to_iter_dataset(o).random_map(fails, seed=1),
        f"RandomMapDatasetIterator{FAILS}",
    ),
    (
        lambda o: BASE.to_iter_dataset(o).filter(Fails(then=lambda x: True)),
        f"FilterDatasetIterator{FAILS}",
    ),
    (
        lambda o: BASE.to_iter_dataset(o).batch(4, batch_fn=fails).map(first),
        f"BatchDatasetIterator{FOURS}",
    ),
    (
        lambda o: BASE.to_iter_dataset(o).batch(4).map(fails).map(first),
        f"MapDatasetIterator(transform=Fails) {BATCH}",
    ),
    (
        lambda o: BASE.to_iter_dataset(o).flat_map(Fails(then=lambda x: [x])),
        f"FlatMapDatasetIterator{FAILS}",
    ),
    (lambda o: prefetched(BASE.to_iter_dataset(o)).map(fails), f"MapDatasetIterator{FAILS}"),
]


@pytest.mark.parametrize("number", range(len(STAGES)))
def test_the_place_is_the_same_with_any_stages_downstream(number):
    make, expected = STAGES[number]
    for turn, after in enumerate(AFTER, start=number):
        note = note_of(after(make(MODES[turn % 3])))
        other_elements_are_together = after is in_threads and number in (4, 5, 9, 10, 12)
        assert (
            note.replace("in worker 0 of 1 ", "") == f"Raised by {expected}"
            or other_elements_are_together
        ), turn


@pytest.mark.parametrize(("make", "expected"), MAP_STAGES, ids=range(len(MAP_STAGES)))
def test_the_place_is_the_same_of_one_element(make, expected):
    ds = next(node for node in ancestors(make(DIRECT)) if isinstance(node, MapDataset))
    for wrapped in (ds, PassesOn(ds), ds.repeat(2), ds[:], same(PassesOn(ds))):
        with pytest.raises(Boom) as caught:
            for i in range(len(wrapped)):
                wrapped[i]
        where, filtered = caught.value.__notes__
        assert expected in where and filtered.startswith("Frames")
        assert {*frames(caught.value)} <= {
            "test_the_place_is_the_same_of_one_element",
            "<lambda>",
            "__call__",
        }
    with pytest.raises(IndexError) as caught:
        same(MapDataset.source([]).shuffle(seed=1))[3]
    assert caught.value.__notes__[0] == "Raised by ShuffleMapDataset at element 3."


@pytest.mark.parametrize("mode", MODES)
def test_of_sources_and_own_datasets(mode):
    methods = {"__len__": lambda self: N, "__getitem__": lambda self, key: fails(key)}
    several = {"__getitems__": lambda self, keys: [fails(key) for key in keys]}
    for name, more in (("Source", {}), ("Vectored", several)):
        source = type(name, (), methods | more)()
        note = note_of(MapDataset.source(source).repeat(2).to_iter_dataset(mode).batch(4))
        assert (
            note
            == f"Raised by SourceMapDataset(source={name}) at element 17 (epoch 0, source key 17)."
        )
    expected = "Raised by Own at element 17."
    assert (note_of(same(type("Own", (MapDataset,), methods)()).to_iter_dataset(mode))) == expected


@pytest.mark.parametrize("mode", MODES)
def test_the_epoch(mode):
    stream = BASE.to_iter_dataset(mode)
    assert "(epoch 1, source key 17)" in note_of(
        BASE.repeat(3).map(Fails(time=2)).to_iter_dataset(mode).batch(4)
    )
    assert AT_19.replace("epoch 0", "epoch 1") in note_of(stream.map(Fails(time=2)).repeat(3))
    assert "at element 9 (epoch 1, source keys 4 and 17)." in note_of(
        stream.repeat(3).batch(2).map(Fails(time=2))
    )
    for after in (prefetched, prefetched_directly):  # the epoch begins with the failure
        for ds in (
            BASE.map(Fails(BASE[0], time=2)).to_iter_dataset(mode),
            stream.map(Fails(BASE[0], time=2)),
        ):
            assert f"at element 0 (epoch 1, source key {BASE[0]})." in note_of(after(ds.repeat(2)))
    # of what was computed elsewhere
    for after in (prefetched, in_threads, LocalWorkersIterDataset):
        it = iter(after(stream.map(Fails(time=2))).repeat(3))
        first = note_of(it)
        assert first == note_of(it)
        assert first.endswith(AT_19[:-1] + ", in epoch 1 of RepeatDatasetIterator(num_epochs=3).")


def test_several_sources_and_elements_and_gaps():
    assert note_of(BASE.zip(MapDataset.range(N)).map(lambda pair: fails(pair[0]))).endswith(
        "at element 19 (epoch 0, source key 17 of SourceMapDataset(source=range); "
        "epoch 0, source key 19 of RangeMapDataset(start=0, stop=40, step=1))."
    )
    sparse = STREAM.filter(not_4)
    assert AT_19 in note_of(sparse.map(fails).batch(3))
    assert AT_19 in note_of(prefetched_directly(sparse.map(fails)))
    for after in (alone, prefetched):
        assert "at what ends with element 20." in note_of(after(sparse.batch(5, batch_fn=fails)))
    note = note_of(STREAM.batch(20, batch_fn=fails))
    assert "at element 0 (epoch 0, source keys 35, " in note and ", ... (20 of them))." in note
    ds = MapDataset.range(N).to_iter_dataset(DIRECT).batch(20, batch_fn=fails)
    assert "at element 0 (epoch 0, source keys 0 to 19)." in note_of(ds)


def test_of_a_loader_and_of_workers():
    fails_at_37 = operation(gm.transforms.Map, "map", Fails(37))
    draw = operation(gm.transforms.RandomMap, "random_map", lambda x, rng: x)
    sampler = gm.samplers.IndexSampler(
        N, gm.sharding.ShardOptions(1, 2), shuffle=True, seed=4, num_epochs=2
    )
    index = next(i for i in range(1, N, 2) if sampler[i].record_key == 37)
    for operations in ([fails_at_37], [draw, fails_at_37, gm.transforms.Batch(4)]):
        it = iter(gm.DataLoader(data_source=range(N), sampler=sampler, operations=operations))
        place = f"at element {index // 2} (epoch 0, sampler index {index}, record key 37)."
        assert place in note_of(it)
        it.skip_failed()
        assert place.replace("epoch 0", "epoch 1") not in note_of(it)
    two = MultiprocessingOptions(2)
    with iter(BASE.to_iter_dataset().map(fails).batch(3).mp_prefetch(two)) as it:
        expected = f"Raised in worker 1 of 2 by MapDatasetIterator(transform=Fails) {AT_19}"
        assert [note_of(it), note_of(it)] == [expected] * 2
    part = (
        f"at element {list(MapDataset.range(20).shuffle(seed=1)).index(17)} of its share (epoch 0,"
        " source key 17)."
    )
    note = note_of(BASE.map(fails).to_iter_dataset().mp_prefetch(two, sequential_slice=True))
    assert note == f"Raised in worker 0 of 2 by MapMapDataset(transform=Fails) {part}"


DIFFERENT = MapDataset.source([{"x": np.ones(3)}, {"y": np.ones(3)}]).to_iter_dataset(DIRECT)
THREE = MapDataset.range(3)
NO_COMPONENT = MapDataset.select_from_datasets([THREE], [(0, 1), (4, 1)])
AT_ONE = "at element 1 (epoch 0, source key 1)."
SHAPES = (
    "BatchMapDataset(batch_size=2, drop_remainder=False) at element 0 (epoch 0, source keys 0"
    " and 1)."
)


@pytest.mark.parametrize(
    ("ds", "expected"),
    [
        (
            gx.FirstFitPackIterDataset(DIFFERENT, length_struct={"x": 6}, num_packing_bins=2),
            f"BinPackDatasetIterator {AT_ONE}",
        ),
        (
            gx.ConcatThenSplitIterDataset(DIFFERENT, length_struct={"x": 6}),
            f"ConcatThenSplitDatasetIterator {AT_ONE}",
        ),
        (DIFFERENT.rebatch(4), "RebatchDatasetIterator(batch_size=4, drop_remainder=False)."),
        (THREE.to_iter_dataset(DIRECT).zip(STREAM), "ZipDatasetIterator([2 parents])."),
        (STREAM.filter(lambda x: False).repeat(), "RepeatDatasetIterator(num_epochs=None)."),
        (
            MapDataset.range(4).flat_map(lambda x: [x] * x, max_fan_out=2),
            "at element 6 (epoch 0, source key 3).",
        ),
        (MapDataset.source([np.ones(2), np.ones(3)]).batch(2), SHAPES),
        (NO_COMPONENT, "MixedMapDataset[1 parents] at element 1."),
        (THREE.slice(["a"]), "ReindexMapDataset(indices=[a], len=1) at element 0."),
        (TFRecordIterDataset("missing.tfrecord"), "TFRecordDatasetIterator(missing.tfrecord)."),
    ],
    ids=range(10),
)
def test_of_what_stages_check_themselves(ds, expected):
    ds = ds.to_iter_dataset(DIRECT) if isinstance(ds, MapDataset) else ds
    note = note_of(ds)
    assert note.startswith("Raised by ") and note.endswith(expected)


@pytest.mark.parametrize("after", [alone, prefetched, prefetched_directly])
def test_one_exception_of_several_elements_names_the_last(after):
    error = Boom("always the same")
    error.add_note("mine")
    it = iter(after(STREAM.map(raises(error))))
    for i in range(3):
        assert error_of(it) is error
        mine, where, filtered = error.__notes__
        assert mine == "mine" and f"at element {i} (" in where and filtered.startswith("Frames")
        it.skip_failed()
    with pytest.raises(Boom) as caught:
        BASE.map(raises(error))[1]
    assert caught.value is error


def test_nested_pipelines_name_the_innermost():
    def inner(x):
        return next(iter(MapDataset.source([x]).map(fails).to_iter_dataset(DIRECT)))

    assert note_of(STREAM.map(inner)).endswith("at element 0 (epoch 0, source key 0).")
    for after in (alone, prefetched, lists, LocalWorkersIterDataset):
        note = note_of(after(ClosingDataset(STREAM.map(fails))))
        assert f"by MapDatasetIterator(transform=Fails) {AT_19}" in note


def test_plain_generators_and_closed_iterators():
    class Stream(IterDataset):
        def __iter__(self):
            yield 1
            raise Boom

    class Other(IterDataset):
        def __iter__(self):
            return generate()

    def generate():
        yield fails(17)

    assert note_of(same(Stream())) == note_of(prefetched(Stream())) == "Raised by Stream."
    expected = "Raised in worker 0 of 1 by Stream, at the beginning."
    assert (note_of(Stream().mp_prefetch(MultiprocessingOptions(1)))) == expected
    expected = "Raised by test_plain_generators_and_closed_iterators.<locals>.generate."
    assert (note_of(same(Other()))) == expected
    for ds in (
        BASE,
        same(IterDataset.mix([THREE.to_iter_dataset()])).mp_prefetch(MultiprocessingOptions(1)),
    ):
        it = iter(ds)
        it.close()
        assert note_of(it) == ""  # closed ones say all themselves


def test_what_users_objects_do_when_asked_replaces_nothing():
    class Rude:
        is_rude = False

        def __len__(self):
            return N if not self.is_rude else 1 // 0

        def __getitem__(self, key):
            type(self).is_rude = True
            raise Boom("mine")

    def refuse(*_):
        raise OSError("no text")

    @dataclasses.dataclass(frozen=True)
    class Frozen(Exception):
        code: int
        __str__ = refuse

    nameless = operation(
        gm.transforms.Map, "map", raises(Boom("mine")), __str__=refuse, __repr__=refuse
    )
    error = error_of(MapDataset.source(Rude()).to_iter_dataset(DIRECT))
    assert error.args == ("mine",)
    assert error.__notes__[0] == "Raised by SourceMapDataset(source=Rude) at element 0."
    error = error_of(BASE.map(nameless).to_iter_dataset(DIRECT))
    assert error.args == ("mine",) and error.__context__ is None
    assert error.__notes__[0].startswith("Raised by MapMapDataset at element 0 (")
    error = error_of(BASE.map(raises(Frozen(3))).to_iter_dataset(DIRECT))
    assert type(error) is Frozen and "at element 0" in error.__notes__[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupts_get_no_note_but_the_end_of_an_iterator_does(error):
    caught = error_of(BASE.map(raises(error)).to_iter_dataset(DIRECT))
    assert type(caught) is error and not hasattr(caught, "__notes__")
    # that of the user's traceback
    assert ("__next__" in frames(caught)) == (error is not KeyboardInterrupt)
    for after in (alone, prefetched, in_threads, LocalWorkersIterDataset):
        caught = error_of(after(STREAM.map(raises(StopIteration))))
        assert type(caught) is RuntimeError and type(caught.__cause__) is StopIteration
        assert "at element 0 (" in caught.__notes__[0]


BEFORE = [lambda: BASE.map(fails).to_iter_dataset(), lambda: BASE.to_iter_dataset().map(fails)]


@pytest.mark.parametrize("after", [alone, prefetched, in_threads, lists])
@pytest.mark.parametrize("before", BEFORE, ids=["map", "iter"])
def test_only_frames_of_users_are_left(before, after):
    it = iter(after(before()))
    for _ in range(3):  # repeated errors have one note of each kind
        error = error_of(it)
        assert frames(error) == ["error_of", "__call__"]
        where, filtered = error.__notes__
        assert where.endswith(AT_19) and "py_traceback_filtering" in filtered
    assert pickle.loads(pickle.dumps(error)).__notes__ == error.__notes__


def test_modes_of_filtering(monkeypatch):
    def fail(x):
        raise Boom("text") from KeyError("first")

    with gm.config.override(py_traceback_filtering="off"):
        error = error_of(BEFORE[0]())
    assert {"_gm_items", "__next__"} <= {*frames(error)} and len(error.__notes__) == 1
    it = iter(BASE.map(fail).to_iter_dataset(DIRECT))
    with gm.config.override(py_traceback_filtering="remove_frames"):
        for _ in range(2):
            error = error_of(it)
            whole = error.__cause__
            assert frames(error) == ["error_of", "fail"] and error.args == ("text",)
            assert "_gm_items" in frames(whole) and isinstance(whole.__cause__, KeyError)
            assert "Boom: text" in str(whole) and "left out" in str(whole)
    with gm.config.override(py_traceback_filtering="tracebackhide"):
        error = error_of(BEFORE[0]())
    walked = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    hidden = {frame.f_code.co_name: frame.f_locals.get("__tracebackhide__") for frame in walked}
    assert hidden["error_of"] is hidden["__call__"] is None
    assert hidden["_gm_items"] is hidden["__next__"] is True
    error = error_of(MapDataset.source([np.zeros(2), np.zeros(3)]).batch(2).to_iter_dataset(DIRECT))
    # what raised stays
    assert len(frames(error)) == 2
    assert "batching" in traceback.extract_tb(error.__traceback__)[-1].filename
    # the environment may say anything
    monkeypatch.setenv("GRISTMILL_PY_TRACEBACK_FILTERING", "sometimes")
    assert type(error_of(BEFORE[0]())) is Boom


def test_only_the_outermost_filters():
    seen = []

    def inner(x):
        try:
            return list(MapDataset.source([x]).map(fails).to_iter_dataset(DIRECT))
        except Boom as error:
            seen.append(frames(error))
            raise

    loader = gm.DataLoader(
        data_source=range(17, 18),
        sampler=gm.samplers.SequentialSampler(1),
        operations=[operation(gm.transforms.Map, "map", inner)],
    )
    assert frames(error_of(loader)) == ["error_of", "inner", "__call__"]
    assert "_gm_items" in seen[0]
    assert_raises(Boom, None, inner, 17)
    assert "mapped" not in seen[-1]


@pytest.mark.parametrize("mode", ["off", "tracebackhide", "quiet_remove_frames", "remove_frames"])
@pytest.mark.parametrize("error", [Boom, StopIteration])
def test_a_caught_error_keeps_nothing_alive(mode, error):
    gc.collect()
    gc.disable()
    try:
        for after in (alone, lists):
            it = iter(after(BASE.map(raises(error)).to_iter_dataset()))
            with gm.config.override(py_traceback_filtering=mode):
                try:
                    next(it)
                except Exception as caught:
                    assert caught.__notes__
            gone = weakref.ref(it)
            del it
            # Without the GIL, what another thread has made is freed a little later.
            wait_until(lambda gone=gone: gone() is None)
    finally:
        gc.enable()


TEN = MapDataset.range(10)


def test_epochs_records_of_a_loader_and_what_cannot_be_known():
    own_map = type("OwnMap", (type(TEN.map(abs)),), {})
    for ds, index, epochs in [
        (TEN.shuffle(seed=1).repeat(), 25, [2]),
        (TEN.repeat(5, reseed_each_epoch=False), 25, [2]),
        (TEN.repeat(5, reseed_each_epoch=False).batch(5), 5, [2]),
        (TEN[:4].batch(3), 3, [1]),
        (TEN, -1, [-1]),
        (MapDataset.source(TEN), 21, [2]),
        (MapDataset.concatenate([TEN, TEN[:2]]), 25, [2]),
        (TEN.repeat(2).batch(15), 0, [0, 1]),
    ]:
        assert [part.epoch for part in origin(ds, [index])] == epochs
    sampler = gm.samplers.IndexSampler(
        10, gm.sharding.ShardOptions(1, 2), shuffle=True, seed=4, num_epochs=3
    )
    loader = gm.DataLoader(
        data_source=range(10), sampler=sampler, operations=[gm.transforms.Batch(2)]
    )
    (ds,) = [node for node in loader._dataset._parent.parents if isinstance(node, MapDataset)]
    for index in range(len(ds)):
        (part,) = origin(ds, [index])
        assert (part.epoch, part.sampled, part.keys) == (
            index // 5,
            [2 * index + 1],
            [sampler[2 * index + 1].record_key],
        )
    get = {"__getitem__": lambda self, key: key}
    kinds = (
        type("NoLength", (), get),
        type("Failing", (), {**get, "__len__": lambda self: 1 // 0}),
        list,
    )
    sources = [MapDataset.source(kind()) for kind in kinds]
    for ds in (
        BareMap(10),
        *sources,
        own_map(TEN, abs),
        MapDataset.range(1_000_000).batch(1_000_000),
    ):
        assert origin(ds, [0]) == []
    (part,) = origin(BareMap(10).zip(TEN), [3])
    assert part.keys == [3]
