"""What the note at an error says: stage, element, source key, epoch; the same one however the pipeline is computed."""

import dataclasses
import gc
import pickle
import re
import threading
import traceback
import weakref

import numpy as np
import pytest

import gristmill as gm
from gristmill import IterDataset, MapDataset
from gristmill.core.options import MultiprocessingOptions, ReadOptions
from gristmill.dataset import DatasetIterator
from gristmill.dataset.bases.node import ancestors
from gristmill.dataset.stages.bin_packing import FirstFitPackIterDataset
from gristmill.dataset.stages.concat_then_split import ConcatThenSplitIterDataset
from gristmill.dataset.stages.interleave import InterleaveIterDataset
from gristmill.dataset.stages.multithread_prefetch import multithread_prefetch
from gristmill.dataset.stages.tfrecord import TFRecordIterDataset
from gristmill.dataset.stages.thread_prefetch import ThreadPrefetchIterDataset

DIRECT = ReadOptions(num_threads=0)
MODES = {"direct": DIRECT, "threads": ReadOptions(2, 8), "far_ahead": ReadOptions(1, 64)}
N = 40
SHUFFLED = MapDataset.range(N).shuffle(seed=1)  # the key 17 is at 19
BASE = MapDataset.source(range(N)).shuffle(seed=1)

each_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


class Boom(Exception):
    pass


class Fails:
    """User code that fails at a key, from the ``time``-th time on that it gets there."""

    def __init__(self, key=17, time=1):
        self.key = key
        self.left = time
        self.lock = threading.Lock()

    def __str__(self):
        return "Fails"

    def __call__(self, x, *others):
        if self.key in np.ravel(x).tolist():
            with self.lock:
                self.left -= 1
            if self.left <= 0:
                raise Boom(self.key)
        return x

    def __reduce__(self):
        return Fails, (self.key, self.left)


fails = Fails()


class PassesOn(MapDataset):
    def __len__(self):
        return len(self._parent)

    def __getitem__(self, index):
        return self._parent[index]


def note_of(ds_or_it):
    """What the note says; nothing if there is none."""
    it = iter(ds_or_it)
    with pytest.raises(Exception) as caught:
        for _ in it:
            pass
    notes = [note for note in getattr(caught.value, "__notes__", []) if note.startswith("Raised")]
    assert len(notes) <= 1
    return "".join(notes)


def prefetched(ds):
    return ThreadPrefetchIterDataset(ds, prefetch_buffer_size=3)


def prefetched_directly(ds):
    return ThreadPrefetchIterDataset(ds, prefetch_buffer_size=0)


def in_threads(ds):
    return multithread_prefetch(ds, 3, 2)


# What may stand behind a stage without effect on what its errors say.
AFTER = {
    "alone": lambda ds: ds,
    "map": lambda ds: ds.map(lambda x: x),
    "batch": lambda ds: ds.batch(5, batch_fn=list),
    "batch_map_batch": lambda ds: ds.batch(5, batch_fn=list).map(lambda x: x).batch(2, batch_fn=list),
    "prefetched": prefetched,
    "prefetched_directly": prefetched_directly,
    "batch_prefetched": lambda ds: prefetched(ds.batch(5, batch_fn=list)),
    "batch_batch_prefetched": lambda ds: prefetched(ds.batch(5, batch_fn=list).batch(2, batch_fn=list)),
    "prefetched_batch": lambda ds: prefetched(ds).batch(5, batch_fn=list),
    "window_shuffle": lambda ds: ds.window_shuffle(7, seed=3),
    "interleave": lambda ds: InterleaveIterDataset([ds], cycle_length=1),
    "in_threads": in_threads,
    "repeat": lambda ds: ds.repeat(2),
    "cache": lambda ds: ds.cache(),
    "limit": lambda ds: ds.limit(30),
    "rebatch": lambda ds: ds.batch(5).rebatch(4),
}

AT_19 = "at element 19 (epoch 0, source key 17)."
# The stage that fails, as a stream, and what its note says.
STAGES = {
    "map": (lambda o: BASE.map(fails).to_iter_dataset(o), f"Raised by MapMapDataset(transform=Fails) {AT_19}"),
    "filter": (
        lambda o: BASE.filter(fails).to_iter_dataset(o, allow_nones=True),
        f"by FilterMapDataset(transform=Fails) {AT_19}",
    ),
    "random_map": (
        lambda o: BASE.random_map(fails, seed=1).to_iter_dataset(o),
        f"by RandomMapMapDataset(transform=Fails) {AT_19}",
    ),
    "behind_a_filter": (
        lambda o: BASE.filter(lambda x: x != 4).map(fails).to_iter_dataset(o, allow_nones=True),
        f"by MapMapDataset(transform=Fails) {AT_19}",
    ),
    "batch_of_failing": (
        lambda o: BASE.map(fails).batch(4).to_iter_dataset(o).map(lambda x: x[0]),
        f"by MapMapDataset(transform=Fails) {AT_19}",
    ),
    "batch_fn": (
        lambda o: BASE.batch(4, batch_fn=fails).to_iter_dataset(o).map(lambda x: x[0]),
        "by BatchMapDataset(batch_size=4, drop_remainder=False) at element 4 (epoch 0, source keys 2, 25, 4 and 17).",
    ),
    "iter_map": (lambda o: BASE.to_iter_dataset(o).map(fails), f"by MapDatasetIterator(transform=Fails) {AT_19}"),
    "iter_random_map": (
        lambda o: BASE.to_iter_dataset(o).random_map(fails, seed=1),
        f"by RandomMapDatasetIterator(transform=Fails) {AT_19}",
    ),
    "iter_filter": (
        lambda o: BASE.to_iter_dataset(o).filter(lambda x: fails(x) is not None),
        rf"by FilterDatasetIterator\(transform=<lambda> @ .*\) {re.escape(AT_19)}",
    ),
    "iter_batch_fn": (
        lambda o: BASE.to_iter_dataset(o).batch(4, batch_fn=fails).map(lambda x: x[0]),
        "by BatchDatasetIterator(batch_size=4, drop_remainder=False) at element 4 (epoch 0, source keys 2, 25, 4 and 17).",
    ),
    "iter_map_of_batches": (
        lambda o: BASE.to_iter_dataset(o).batch(4).map(fails).map(lambda x: x[0]),
        "by MapDatasetIterator(transform=Fails) at element 4 (epoch 0, source keys 2, 25, 4 and 17).",
    ),
    "iter_flat_map": (
        lambda o: BASE.to_iter_dataset(o).flat_map(lambda x: [fails(x)]),
        rf"by FlatMapDatasetIterator\(transform=<lambda> @ .*\) {re.escape(AT_19)}",
    ),
    "iter_map_after_thread": (
        lambda o: prefetched(BASE.to_iter_dataset(o)).map(fails),
        f"by MapDatasetIterator(transform=Fails) {AT_19}",
    ),
}


def matches(expected, note):
    return expected in note or (".*" in expected and re.search(expected, note))


class TestThePlace:
    @each_mode
    @pytest.mark.parametrize("stage", STAGES)
    def test_is_the_same_whatever_stands_behind(self, stage, mode):
        make, expected = STAGES[stage]
        for name, after in AFTER.items():
            note = note_of(after(make(mode)))
            if name == "in_threads" and ("batch" in stage or stage == "iter_map_after_thread"):
                continue  # other elements are together
            assert matches(expected, note), (name, note)

    @pytest.mark.parametrize("stage", [name for name in STAGES if not name.startswith("iter_")])
    def test_is_the_same_of_one_element(self, stage):
        make, expected = STAGES[stage]
        ds = next(node for node in ancestors(make(DIRECT)) if isinstance(node, MapDataset))
        for wrapped in (ds, PassesOn(ds), ds.repeat(2), ds[:], PassesOn(ds).map(lambda x: x)):
            with pytest.raises(Boom) as caught:
                for i in range(len(wrapped)):
                    wrapped[i]
            (where, filtered) = caught.value.__notes__
            assert matches(expected, where) and filtered.startswith("Frames")
            names = [entry.name for entry in traceback.extract_tb(caught.value.__traceback__)]
            assert {*names} <= {"test_is_the_same_of_one_element", "__getitem__", "__call__"}, names

    @each_mode
    def test_of_sources_and_own_datasets(self, mode):
        class Source:
            def __len__(self):
                return N

            def __getitem__(self, key):
                return fails(key)

        class Vectored(Source):
            def __getitems__(self, keys):
                return [fails(key) for key in keys]

        class Own(MapDataset):
            def __len__(self):
                return N

            def __getitem__(self, position):
                return fails(position)

        for source in (Source(), Vectored()):
            note = note_of(MapDataset.source(source).repeat(2).to_iter_dataset(mode).batch(4))
            name = type(source).__name__
            assert note == f"Raised by SourceMapDataset(source={name}) at element 17 (epoch 0, source key 17)."
        assert note_of(Own().map(lambda x: x).to_iter_dataset(mode)) == "Raised by Own at element 17."

    @each_mode
    def test_the_epoch(self, mode):
        late = BASE.repeat(3).map(Fails(17, time=2)).to_iter_dataset(mode).batch(4)
        assert "(epoch 1, source key 17)" in note_of(late)
        again = BASE.to_iter_dataset(mode).map(Fails(17, time=2)).repeat(3)
        assert AT_19.replace("epoch 0", "epoch 1") in note_of(again)
        again = BASE.to_iter_dataset(mode).repeat(3).batch(2).map(Fails(17, time=2))
        assert "at element 9 (epoch 1, source keys 4 and 17)." in note_of(again)

    @pytest.mark.parametrize("after", [prefetched, prefetched_directly])
    def test_the_epoch_when_it_begins_with_the_failure(self, after):
        first = BASE[0]
        for ds in (
            BASE.map(Fails(first, time=2)).to_iter_dataset(DIRECT),
            BASE.to_iter_dataset(DIRECT).map(Fails(first, time=2)),
        ):
            assert f"at element 0 (epoch 1, source key {first})." in note_of(after(ds.repeat(2)))

    @pytest.mark.parametrize("after", [prefetched, in_threads, lambda ds: ds.mp_prefetch(MultiprocessingOptions(1))])
    def test_the_epoch_of_what_was_computed_elsewhere(self, after):
        it = iter(after(BASE.to_iter_dataset(DIRECT).map(Fails(17, time=2))).repeat(3))
        first = note_of(it)
        assert first == note_of(it)
        assert first.endswith(AT_19[:-1] + ", in epoch 1 of RepeatDatasetIterator(num_epochs=3).")

    def test_several_sources(self):
        both = BASE.zip(MapDataset.range(N)).map(lambda pair: fails(pair[0]))
        assert note_of(both).endswith(
            "at element 19 (epoch 0, source key 17 of SourceMapDataset(source=range); "
            "epoch 0, source key 19 of RangeMapDataset(start=0, stop=40, step=1))."
        )

    def test_where_elements_are_left_out(self):
        sparse = BASE.to_iter_dataset(DIRECT).filter(lambda x: x != 4)
        assert AT_19 in note_of(sparse.map(fails).batch(3))
        assert AT_19 in note_of(prefetched_directly(sparse.map(fails)))
        assert "at what ends with element 20." in note_of(sparse.batch(5, batch_fn=fails))
        assert "at what ends with element 20." in note_of(prefetched(sparse.batch(5, batch_fn=fails)))

    def test_several_elements(self):
        ds = BASE.to_iter_dataset(DIRECT).batch(20, batch_fn=fails)
        assert "at element 0 (epoch 0, source keys 35, " in note_of(ds) and ", ... (20 of them))." in note_of(ds)
        ds = MapDataset.range(N).to_iter_dataset(DIRECT).batch(20, batch_fn=fails)
        assert "at element 0 (epoch 0, source keys 0 to 19)." in note_of(ds)

    def test_of_a_loader(self):
        class FailsOn(gm.transforms.Map):
            def map(self, x):
                return fails(x)

        class Draw(gm.transforms.RandomMap):
            def random_map(self, x, rng):
                return x

        sampler = gm.samplers.IndexSampler(N, gm.sharding.ShardOptions(1, 2), shuffle=True, seed=4, num_epochs=2)
        index = next(i for i in range(1, N, 2) if sampler[i].record_key == 37)
        global fails
        before, fails = fails, Fails(37)
        try:
            for operations in ([FailsOn()], [Draw(), FailsOn(), gm.transforms.Batch(4)]):
                it = iter(gm.DataLoader(data_source=range(N), sampler=sampler, operations=operations))
                place = f"at element {index // 2} (epoch 0, sampler index {index}, record key 37)."
                assert place in note_of(it)
                it.skip_failed()
                assert place.replace("epoch 0", "epoch 1") not in note_of(it)
        finally:
            fails = before

    def test_of_workers(self):
        workers = MultiprocessingOptions(2)
        make = {
            "map": lambda: BASE.map(fails).to_iter_dataset(),
            "iter": lambda: BASE.to_iter_dataset().map(fails).batch(3),
        }
        for name, stage in (("map", "MapMapDataset"), ("iter", "MapDatasetIterator")):
            it = iter(make[name]().mp_prefetch(workers))
            expected = f"Raised in worker 1 of 2 by {stage}(transform=Fails) {AT_19}"
            assert [note_of(it), note_of(it)] == [expected] * 2
            it.close()
        parts = make["map"]().mp_prefetch(workers, sequential_slice=True)
        shuffled = MapDataset.range(20).shuffle(seed=1)
        place = f"at element {list(shuffled).index(17)} of its share (epoch 0, source key 17)."
        assert note_of(parts) == f"Raised in worker 0 of 2 by MapMapDataset(transform=Fails) {place}"


DIFFERENT = MapDataset.source([{"x": np.ones(3)}, {"y": np.ones(3)}]).to_iter_dataset(DIRECT)
# What stages themselves have to say: no function of a user fails.
OWN = {
    "pack": (
        FirstFitPackIterDataset(DIFFERENT, length_struct={"x": 6}, num_packing_bins=2),
        "Raised by BinPackDatasetIterator.",
    ),
    "concat": (ConcatThenSplitIterDataset(DIFFERENT, length_struct={"x": 6}), "Raised by ConcatThenSplitDatasetIterator."),
    "rebatch": (DIFFERENT.rebatch(4), "Raised by RebatchDatasetIterator(batch_size=4, drop_remainder=False)."),
    "zip": (
        MapDataset.range(3).to_iter_dataset(DIRECT).zip(MapDataset.range(4).to_iter_dataset(DIRECT)),
        "Raised by ZipDatasetIterator([2 parents]).",
    ),
    "repeat": (
        MapDataset.range(3).to_iter_dataset(DIRECT).filter(lambda x: False).repeat(),
        "Raised by RepeatDatasetIterator(num_epochs=None).",
    ),
    "too_many_items": (
        MapDataset.range(4).flat_map(lambda x: [x] * x, max_fan_out=2).to_iter_dataset(DIRECT),
        "at element 6 (epoch 0, source key 3).",
    ),
    "shapes": (
        MapDataset.source([np.ones(2), np.ones(3)]).batch(2).to_iter_dataset(DIRECT),
        "Raised by BatchMapDataset(batch_size=2, drop_remainder=False) at element 0 (epoch 0, source keys 0 and 1).",
    ),
    "no_component": (
        MapDataset.select_from_datasets([MapDataset.range(3)], [(0, 1), (4, 1)]).to_iter_dataset(DIRECT),
        "Raised by MixedMapDataset[1 parents] at element 1.",
    ),
    "no_index": (
        MapDataset.range(3).slice(["a"]).to_iter_dataset(DIRECT),
        "Raised by ReindexMapDataset(indices=[a], len=1) at element 0.",
    ),
    "no_file": (TFRecordIterDataset("missing.tfrecord"), "Raised by TFRecordDatasetIterator(missing.tfrecord)."),
}


class TestNotes:
    @pytest.mark.parametrize("name", OWN)
    def test_of_what_stages_check_themselves(self, name):
        ds, expected = OWN[name]
        assert expected in note_of(ds)

    def test_of_an_empty_dataset(self):
        with pytest.raises(IndexError) as caught:
            MapDataset.source([]).shuffle(seed=1).map(lambda x: x)[3]
        assert caught.value.__notes__[0] == "Raised by ShuffleMapDataset at element 3."

    def test_repeated_errors_have_one(self):
        for after in (lambda ds: ds, prefetched, in_threads):
            it = iter(after(BASE.to_iter_dataset(DIRECT).map(fails)))
            assert [note_of(it) for _ in range(3)] == [f"Raised by MapDatasetIterator(transform=Fails) {AT_19}"] * 3

    @pytest.mark.parametrize("after", [lambda ds: ds, prefetched, prefetched_directly])
    def test_one_exception_raised_at_several_elements_tells_the_last(self, after):
        error = Boom("always the same")
        error.add_note("mine")

        def fail(x):
            raise error

        it = iter(after(BASE.to_iter_dataset(DIRECT).map(fail)))
        for i in range(3):
            with pytest.raises(Boom):
                next(it)
            mine, where, filtered = error.__notes__
            assert mine == "mine" and f"at element {i} (" in where and filtered.startswith("Frames")
            it.skip_failed()

    def test_nested_pipelines_tell_the_innermost(self):
        def inner(x):
            return next(iter(MapDataset.source([x]).map(fails).to_iter_dataset(DIRECT)))

        class Own(DatasetIterator):
            def __init__(self, parent):
                super().__init__(parent)

            def __next__(self):
                return next(self._parent)

            def get_state(self):
                return self._parent.get_state()

            def set_state(self, state):
                self._parent.set_state(state)

        class OwnDataset(IterDataset):
            def __iter__(self):
                return Own(iter(self._parent))

        assert note_of(BASE.to_iter_dataset(DIRECT).map(inner)).endswith("at element 0 (epoch 0, source key 0).")
        for after in (lambda ds: ds, prefetched, lambda ds: ds.batch(3), lambda ds: ds.mp_prefetch(MultiprocessingOptions(1))):
            note = note_of(after(OwnDataset(BASE.to_iter_dataset(DIRECT).map(fails))))
            assert f"by MapDatasetIterator(transform=Fails) {AT_19}" in note

    def test_a_plain_generator_is_named(self):
        class Stream(IterDataset):
            def __iter__(self):
                yield 1
                raise Boom

        def generate():
            yield fails(17)

        class Other(IterDataset):
            def __iter__(self):
                return generate()

        assert note_of(Stream().map(lambda x: x)) == note_of(prefetched(Stream())) == "Raised by Stream."
        in_worker = Stream().mp_prefetch(MultiprocessingOptions(1))
        assert note_of(in_worker) == "Raised in worker 0 of 1 by Stream, at the beginning."
        assert note_of(Other().map(lambda x: x)) == "Raised by TestNotes.test_a_plain_generator_is_named.<locals>.generate."

    def test_what_users_objects_do_when_asked_replaces_nothing(self):
        class Rude:
            def __len__(self):
                return N if not self.is_rude else 1 // 0

            is_rude = False

            def __getitem__(self, key):
                type(self).is_rude = True
                raise Boom("mine")

        class Nameless(gm.transforms.Map):
            def map(self, x):
                raise Boom("mine")

            def __str__(self):
                raise OSError("no name")

            __repr__ = __str__

        it = iter(MapDataset.source(Rude()).to_iter_dataset(DIRECT))
        with pytest.raises(Boom, match=r"^mine") as caught:
            next(it)
        assert caught.value.__notes__[0] == "Raised by SourceMapDataset(source=Rude) at element 0."
        with pytest.raises(Boom, match=r"^mine") as caught:
            next(iter(BASE.map(Nameless()).to_iter_dataset(DIRECT)))
        assert caught.value.__notes__[0].startswith("Raised by MapMapDataset at element 0 (")
        assert caught.value.__context__ is None

    def test_exceptions_that_refuse_changes(self):
        @dataclasses.dataclass(frozen=True)
        class Frozen(Exception):
            code: int

            def __str__(self):
                raise OSError("no text")

        def fail(x):
            raise Frozen(3)

        with pytest.raises(Frozen) as caught:
            next(iter(BASE.map(fail).to_iter_dataset(DIRECT)))
        assert "at element 0" in caught.value.__notes__[0]

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
    def test_interrupts_get_no_note(self, error):
        def fail(x):
            raise error

        with pytest.raises(error) as caught:
            next(iter(BASE.map(fail).to_iter_dataset(DIRECT)))
        assert not hasattr(caught.value, "__notes__")
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert ("_block" in names) == (error is not KeyboardInterrupt)  # that of a user who looks at it

    def test_stop_iteration_in_user_code(self):
        def fail(x):
            raise StopIteration

        for after in (lambda ds: ds, prefetched, in_threads, lambda ds: ds.mp_prefetch(MultiprocessingOptions(1))):
            with pytest.raises(RuntimeError) as caught:
                next(iter(after(BASE.to_iter_dataset(DIRECT).map(fail))))
            assert "at element 0 (" in caught.value.__notes__[0]
            assert type(caught.value.__cause__) is StopIteration

    def test_errors_that_say_all_themselves(self):
        it = iter(BASE)
        it.close()
        assert note_of(it) == ""
        short = IterDataset.mix([MapDataset.range(2).to_iter_dataset()]).map(lambda x: x)
        it = iter(short.mp_prefetch(MultiprocessingOptions(1)))
        it.close()
        assert note_of(it) == ""

    def test_the_marks_of_an_error_survive_pickling(self):
        with pytest.raises(Boom) as caught:
            list(BASE.map(fails).to_iter_dataset(DIRECT))
        assert pickle.loads(pickle.dumps(caught.value)).__notes__ == caught.value.__notes__


class TestFiltering:
    @pytest.mark.parametrize("after", [lambda ds: ds, prefetched, in_threads, lambda ds: ds.batch(3, batch_fn=list)])
    @pytest.mark.parametrize("before", [lambda: BASE.map(fails).to_iter_dataset(), lambda: BASE.to_iter_dataset().map(fails)])
    def test_only_frames_of_users_are_left(self, before, after):
        it = iter(after(before()))
        for _ in range(2):
            with pytest.raises(Boom) as caught:
                list(it)
            names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
            assert names == ["test_only_frames_of_users_are_left", "__call__"]
            assert [note for note in caught.value.__notes__ if "py_traceback_filtering" in note] == caught.value.__notes__[1:]

    def test_the_frame_that_raised_stays(self):
        it = iter(MapDataset.source([np.zeros(2), np.zeros(3)]).batch(2).to_iter_dataset(DIRECT))
        with pytest.raises(ValueError) as caught:
            next(it)
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert len(frames) == 2 and "batching" in frames[-1].filename

    def test_off(self):
        with gm.config.override(py_traceback_filtering="off"), pytest.raises(Boom) as caught:
            list(BASE.map(fails).to_iter_dataset(DIRECT))
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert "_block" in names and "__next__" in names
        assert len(caught.value.__notes__) == 1

    def test_remove_frames(self):
        def fail(x):
            raise Boom("text") from KeyError("first")

        it = iter(BASE.map(fail).to_iter_dataset(DIRECT))
        for _ in range(2):
            with gm.config.override(py_traceback_filtering="remove_frames"), pytest.raises(Boom) as caught:
                next(it)
            error, whole = caught.value, caught.value.__cause__
            assert [frame.name for frame in traceback.extract_tb(error.__traceback__)] == ["test_remove_frames", "fail"]
            assert "_block" in [frame.name for frame in traceback.extract_tb(whole.__traceback__)]
            assert "Boom: text" in str(whole) and "left out" in str(whole)
            assert isinstance(whole.__cause__, KeyError)
            assert error.args == ("text",)

    def test_tracebackhide(self):
        with gm.config.override(py_traceback_filtering="tracebackhide"), pytest.raises(Boom) as caught:
            list(BASE.map(fails).to_iter_dataset(DIRECT))
        hidden = {
            frame.f_code.co_name: frame.f_locals.get("__tracebackhide__")
            for frame, _ in traceback.walk_tb(caught.value.__traceback__)
        }
        assert hidden["test_tracebackhide"] is hidden["__call__"] is None
        assert hidden["_block"] is hidden["__next__"] is True

    def test_only_the_outermost_filters(self):
        seen = []

        def inner(x):
            try:
                return list(MapDataset.source([x]).map(fails).to_iter_dataset(DIRECT))
            except Boom as error:
                seen.append([frame.name for frame in traceback.extract_tb(error.__traceback__)])
                raise

        class One(gm.transforms.Map):
            def map(self, x):
                return inner(x)

        loader = gm.DataLoader(data_source=range(17, 18), sampler=gm.samplers.SequentialSampler(1), operations=[One()])
        with pytest.raises(Boom) as caught:
            list(loader)
        assert "_block" in seen[0]
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert names == ["test_only_the_outermost_filters", "map", "inner", "__call__"]
        with pytest.raises(Boom):
            inner(17)
        assert "_block" not in seen[-1]

    def test_the_environment_may_say_anything(self, monkeypatch):
        monkeypatch.setenv("GRISTMILL_PY_TRACEBACK_FILTERING", "sometimes")
        with pytest.raises(Boom):
            list(BASE.map(fails).to_iter_dataset(DIRECT))


@pytest.mark.parametrize("mode", ["off", "tracebackhide", "quiet_remove_frames", "remove_frames"])
@pytest.mark.parametrize("error", [Boom, StopIteration])
def test_a_caught_error_keeps_nothing_alive(mode, error):
    def fail(x):
        raise error

    gc.collect()
    gc.disable()
    try:
        for after in (lambda ds: ds, lambda ds: ds.batch(3)):
            it = iter(after(BASE.map(fail).to_iter_dataset()))
            with gm.config.override(py_traceback_filtering=mode):
                try:
                    next(it)
                except Exception as caught:
                    assert caught.__notes__
            gone = weakref.ref(it)
            del it
            assert gone() is None
    finally:
        gc.enable()
