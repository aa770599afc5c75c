"""The ``repr`` of pipelines: for people, and never in a state, a checkpoint or an error message."""

import json
import re

import numpy as np
import pytest

import gristmill
from gristmill.core.options import MultiprocessingOptions, ReadOptions
from gristmill.dataset import DatasetIterator, IterDataset, MapDataset
from gristmill.dataset.telling.description import complete_repr, source_text
from gristmill.experimental import ElasticIterator, InterleaveIterDataset, ZipIterDataset, ZipMapDataset
from gristmill.sharding import ShardOptions

DIRECT = ReadOptions(num_threads=0)
PREFETCH = "(read_options=ReadOptions(num_threads=0, prefetch_buffer_size=500), allow_nones=False)"


def lines(*expected):
    return "\n".join(expected)


def test_a_map_dataset_is_read_from_the_source_down():
    ds = MapDataset.source([1, 2, 3, 4]).seed(1).shuffle().map(len).batch(3)
    seed = ds._parent._parent._parameters.seed
    assert repr(ds) == lines(
        "MapDataset of 2 elements:",
        "  SourceMapDataset(source=<class 'list'>)  4 elements",
        "  SeedMapDataset(seed=1)",
        f"  ShuffleMapDataset(seed={seed})",
        "  MapMapDataset(transform=len)",
        "  BatchMapDataset(batch_size=3, drop_remainder=False)  2 elements",
    )
    assert repr(ds.repeat()).startswith("MapDataset, endless:\n") and repr(ds.repeat()).endswith(")  endless")
    assert "  1,000,000 elements\n" in repr(MapDataset.range(10**6).map(len))
    assert repr(MapDataset.range(1).map(len)).startswith("MapDataset of 1 element:")


def test_streams_and_iterators():
    ds = MapDataset.range(4).to_iter_dataset(DIRECT).random_map(len, seed=3)
    source = "  RangeMapDataset(start=0, stop=4, step=1)  4 elements"
    assert repr(ds) == lines(
        "IterDataset:", source, f"  PrefetchIterDataset{PREFETCH}", "  RandomMapIterDataset(transform=len, seed=3)"
    )
    assert repr(iter(ds)) == lines(
        "DatasetIterator:",
        source,
        f"  PrefetchDatasetIterator{PREFETCH}",
        "  RandomMapDatasetIterator(transform=len, seed=3)",
    )
    shown = repr(iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=2)))).splitlines()
    assert shown[1] == source and "num_workers=2" in shown[-1]
    elastic = ElasticIterator(MapDataset.range(4), 2, ShardOptions(0, 2))
    assert repr(elastic).startswith(lines("DatasetIterator:", source, "  ElasticIterator(global_batch_size=2"))


def test_branches_lead_to_what_stands_below_them_and_what_is_shared_is_shown_once():
    shared = MapDataset.range(4).map(len)
    inner = ZipMapDataset([shared, shared.shuffle(seed=1)])
    assert repr(ZipMapDataset([inner, MapDataset.range(4)]).batch(2)) == lines(
        "MapDataset of 2 elements:",
        "  ┌─ ┌─ RangeMapDataset(start=0, stop=4, step=1)  4 elements",
        "  │  │  MapMapDataset(transform=len)",
        "  │  ├─ MapMapDataset(transform=len)  (as above)",
        "  │  │  ShuffleMapDataset(seed=1)  4 elements",
        "  │  ZipMapDataset([2 parents], drop_missing=False)  4 elements",
        "  ├─ RangeMapDataset(start=0, stop=4, step=1)  4 elements",
        "  ZipMapDataset([2 parents], drop_missing=False)  4 elements",
        "  BatchMapDataset(batch_size=2, drop_remainder=False)  2 elements",
    )
    mixed = MapDataset.mix([MapDataset.range(2), MapDataset.range(3)])
    assert "MixedMapDataset[2 parents](selection_map=SelectionWithProportionsMap(" in repr(mixed.map(len))
    zipped = ZipIterDataset([mixed.to_iter_dataset(), mixed.to_iter_dataset()])
    assert repr(zipped).endswith("ZipIterDataset([2 parents], strict=True)")


def test_the_datasets_of_an_interleave_and_of_a_source_belong_to_it():
    files = [MapDataset.range(i + 1).map(len) for i in range(3)]
    for pipeline in (InterleaveIterDataset(files, cycle_length=2), iter(InterleaveIterDataset(files, cycle_length=2))):
        assert repr(pipeline).count("RangeMapDataset") == 3
    nested = MapDataset.source(MapDataset.range(3).map(len))
    assert repr(nested.batch(2)).splitlines()[1:4] == [
        "  RangeMapDataset(start=0, stop=3, step=1)  3 elements",
        "  MapMapDataset(transform=len)",
        "  SourceMapDataset(source=MapMapDataset)",
    ]


def test_long_and_wide_pipelines_are_abbreviated_in_the_middle():
    ds = MapDataset.range(5)
    for _ in range(2000):
        ds = ds.map(len)
    assert len(repr(ds).splitlines()) < 30
    assert "\n  … 1979 more stages …\n" in repr(ds) and "RangeMapDataset" in repr(ds)
    wide = MapDataset.mix([MapDataset.range(i + 1) for i in range(1000)]).map(len)
    assert "\n  ├─ … 994 more branches …\n" in repr(wide) and "stop=1," in repr(wide) and "stop=1000," in repr(wide)
    deep = MapDataset.range(4)
    for _ in range(300):
        deep = ZipMapDataset([deep, deep])
    assert "… 2 branches …" in repr(deep)
    bushy = MapDataset.range(4)
    for _ in range(4):
        bushy = ZipMapDataset([bushy, *[ZipMapDataset([MapDataset.range(4)] * 8) for _ in range(7)]])
    assert len(repr(bushy).splitlines()) <= 101
    assert max(map(len, repr(MapDataset.source(range(3)).slice(range(2)).map(Talkative())).splitlines())) < 250


class Talkative(gristmill.transforms.Map):
    def __str__(self):
        return "word\n" * 1000

    def map(self, element):
        return element


def refuse(*args):
    raise RuntimeError("asked")


class Silent(MapDataset):
    """Nothing that it is asked has an answer."""

    __len__ = __getitem__ = __str__ = refuse
    _described_parameters = property(refuse)


class SilentStream(IterDataset):
    __iter__ = __str__ = refuse


class SilentIterator(DatasetIterator):
    __next__ = get_state = set_state = __str__ = refuse


class OwnText(MapDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return index

    def __repr__(self):
        return f"OwnText({self._parents})"


class TextOfRepr(OwnText):
    __repr__ = MapDataset.__repr__

    def __str__(self):
        return repr(self)


def test_what_users_define_never_makes_it_fail():
    assert repr(Silent()) == "MapDataset:\n  Silent"
    assert repr(SilentStream(Silent())) == "IterDataset:\n  Silent\n  SilentStream"
    assert repr(SilentIterator()) == "DatasetIterator:\n  SilentIterator"
    assert repr(TextOfRepr()).startswith("MapDataset of 3 elements:\n  TextOfRepr")
    own = OwnText(MapDataset.range(3))
    assert repr(own).startswith("OwnText((RangeMapDataset")
    assert repr(own.map(len)).splitlines()[1:3] == ["  RangeMapDataset(start=0, stop=3, step=1)  3 elements", f"  {own}"]


def test_users_stages_have_their_class_names_for_texts():
    class Numbers(OwnText):
        __repr__ = MapDataset.__repr__

    class Stream(IterDataset):
        def __iter__(self):
            return OfStream()

    class OfStream(DatasetIterator):
        __next__ = get_state = set_state = refuse

    assert [str(Numbers()), str(Stream()), str(iter(Stream()))] == ["Numbers", "Stream", "OfStream"]
    assert str(OwnText()) == "OwnText(())"


def test_nothing_is_run():
    class Watched(IterDataset):
        def __iter__(self):
            raise AssertionError("an iterator was made")

    ds = Watched(MapDataset.source(range(3)).map(refuse)).map(refuse).batch(2)
    assert repr(ds).splitlines()[-3:] == [
        "  Watched",
        f"  MapIterDataset(transform={refuse_name()})",
        "  BatchIterDataset(batch_size=2, drop_remainder=False)",
    ]
    for prefetched in (ds.mp_prefetch(MultiprocessingOptions(num_workers=2)), ds.multithread_prefetch(2, 1)):
        assert "\n  Watched\n" in repr(iter(prefetched))


def refuse_name():
    return re.search(r"transform=(.*)\)$", str(MapDataset.range(1).map(refuse)))[1]


# In a state or a checkpoint, a dataset is the text that it was before there was a ``repr`` for people.
SOURCES = [
    (
        lambda: MapDataset.source([1, 2]).shuffle(seed=3).map(len),
        "MapMapDataset(ShuffleMapDataset(SourceMapDataset(length=2, source=<class 'list'>), length=2, seed=3), length=2)",
    ),
    (lambda: MapDataset.range(3), "RangeMapDataset(start=0, stop=3, step=1)"),
    (
        lambda: MapDataset.mix([MapDataset.range(2)] * 2),
        "MixedMapDataset(parent_lengths=[2, 2], selection_map=SelectionWithProportionsMap(proportions=(1, 1), length=4))",
    ),
]


@pytest.mark.parametrize(("make", "text"), SOURCES)
def test_states_and_checkpoints_have_the_complete_text_on_one_line(make, text):
    assert complete_repr(make()) == source_text(make()) == text
    assert complete_repr(np.arange(2)) == "array([0, 1])"
    loader = gristmill.DataLoader(data_source=make(), sampler=gristmill.samplers.SequentialSampler(2))
    assert json.loads(iter(loader).get_state())["data_source"] == text
    assert loader._description["source"] == text
    assert f"data_source={text}"[:200] in repr(loader)
    if not text.startswith("MapMap"):
        assert repr(make()) == text  # what is one stage anyway has Grain's


def misuses():
    ds = MapDataset.source([1, 2]).map(len)
    stream = ds.to_iter_dataset(DIRECT)
    sampler = gristmill.samplers.SequentialSampler(2)
    return [
        lambda: MapDataset.mix(ds),
        lambda: MapDataset.mix([stream]),
        lambda: MapDataset.select_from_datasets([ds], stream),
        lambda: InterleaveIterDataset(stream, cycle_length=2),
        lambda: ZipMapDataset([stream]),
        lambda: ds.map(stream),
        lambda: ds.apply([ds]),
        lambda: MapDataset.source(stream),
        lambda: gristmill.experimental.ThreadPrefetchDatasetIterator(stream, 1),
        lambda: gristmill.experimental.get_element_spec(iter(stream)),
        lambda: gristmill.experimental.get_next_index(stream),
        lambda: gristmill.DataLoader(data_source=stream, sampler=sampler),
        lambda: gristmill.DataLoader(data_source=ds, sampler=sampler, operations=[ds]),
        lambda: gristmill.load(stream),
        lambda: gristmill.checkpoint.CheckpointHandler().save(".", ds),
        lambda: gristmill.experimental.pick_performance_config(iter(stream), ram_budget_mb=1, max_workers=1, max_buffer_size=1),
        lambda: ElasticIterator(iter(stream), 2, ShardOptions(0, 1)),
    ]


@pytest.mark.parametrize("number", range(len(misuses())))
def test_error_messages_stay_on_one_line(number):
    with pytest.raises((TypeError, NotImplementedError)) as refusal:
        misuses()[number]()
    message = str(refusal.value)
    assert "\n" not in message and "0x" not in message, message
    assert re.search(r"(Map|Iter)Dataset|DatasetIterator", message)
