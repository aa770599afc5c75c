"""The ``repr`` of pipelines: for people, and never in a state, a checkpoint or an error message."""

import json
import re

import numpy as np
import pytest
from refusing import assert_raises
from users_datasets import BareMap, BareStream

import gristmill as gm
from gristmill import (
    DatasetIterator,
    IterDataset,
    MapDataset,
    MultiprocessingOptions,
    ReadOptions,
    ShardOptions,
)
from gristmill.dataset.descriptions.pipeline import complete_repr, source_text
from gristmill.experimental import (
    ElasticIterator,
    InterleaveIterDataset,
    ZipIterDataset,
    ZipMapDataset,
)

DIRECT = ReadOptions(num_threads=0)
PREFETCH = "(read_options=ReadOptions(num_threads=0, prefetch_buffer_size=500), allow_nones=False)"
FOUR = "  RangeMapDataset(start=0, stop=4, step=1)  4 elements"
RANGE = MapDataset.range(4)
SAMPLER = gm.samplers.SequentialSampler(2)


def lines(*expected):
    return "\n".join(expected)


def test_datasets_and_iterators_are_read_from_the_source_down():
    ds = MapDataset.source([1, 2, 3, 4]).seed(1).shuffle().map(len).batch(3)
    seed = ds._parent._parent._gm_parameters.seed
    assert repr(ds) == lines(
        "MapDataset of 2 elements:",
        "  SourceMapDataset(source=<class 'list'>)  4 elements",
        "  SeedMapDataset(seed=1)",
        f"  ShuffleMapDataset(seed={seed})",
        "  MapMapDataset(transform=len)",
        "  BatchMapDataset(batch_size=3, drop_remainder=False)  2 elements",
    )
    assert repr(ds.repeat()).startswith("MapDataset, endless:\n")
    assert repr(ds.repeat()).endswith(")  endless")
    assert "  1,000,000 elements\n" in repr(MapDataset.range(10**6).map(len))
    assert repr(MapDataset.range(1).map(len)).startswith("MapDataset of 1 element:")
    nested = repr(MapDataset.source(RANGE.map(len)).batch(2)).splitlines()
    assert nested[1:4] == [
        FOUR,
        "  MapMapDataset(transform=len)",
        "  SourceMapDataset(source=MapMapDataset)",
    ]
    ds = RANGE.to_iter_dataset(DIRECT).random_map(len, seed=3)
    for value, kind in ((ds, "IterDataset"), (iter(ds), "DatasetIterator")):
        random_map = f"  RandomMap{kind}(transform=len, seed=3)"
        assert repr(value) == lines(f"{kind}:", FOUR, f"  Prefetch{kind}{PREFETCH}", random_map)
    shown = repr(iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=2)))).splitlines()
    assert shown[1] == FOUR and "num_workers=2" in shown[-1]
    elastic = ElasticIterator(RANGE, 2, ShardOptions(0, 2))
    assert repr(elastic).startswith(
        lines("DatasetIterator:", FOUR, "  ElasticIterator(global_batch_size=2")
    )


def test_branches_and_shared_stages_are_shown_once():
    shared = RANGE.map(len)
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
    named = MapDataset.mix({"web": MapDataset.range(2), "books": MapDataset.range(3).map(len)})
    for ds in (
        named,
        IterDataset.mix({"web": named.to_iter_dataset(), "books": RANGE.to_iter_dataset()}),
    ):
        for text in (repr(ds.map(len)), repr(iter(ds.map(len)))):
            assert "┌─ books: RangeMapDataset(" in text and "├─ web: " in text
    assert "MixedMapDataset[2 parents](selection_map=SelectionWithProportionsMap(" in repr(
        mixed.map(len)
    )
    zipped = ZipIterDataset([mixed.to_iter_dataset(), mixed.to_iter_dataset()])
    assert repr(zipped).endswith("ZipIterDataset([2 parents], strict=True)")
    interleaved = InterleaveIterDataset(
        [MapDataset.range(i + 1).map(len) for i in range(3)], cycle_length=2
    )
    # they belong to it
    assert [repr(x).count("RangeMapDataset") for x in (interleaved, iter(interleaved))] == [3, 3]


def test_long_and_wide_pipelines_are_abbreviated_in_the_middle():
    ds = deep = bushy = RANGE
    for _ in range(2000):
        ds = ds.map(len)
    assert len(repr(ds).splitlines()) < 30
    assert "\n  … 1979 more stages …\n" in repr(ds) and "RangeMapDataset" in repr(ds)
    wide = MapDataset.mix([MapDataset.range(i + 1) for i in range(1000)]).map(len)
    assert "\n  ├─ … 994 more branches …\n" in repr(wide)
    assert "stop=1," in repr(wide)
    assert "stop=1000," in repr(wide)
    for _ in range(300):
        deep = ZipMapDataset([deep, deep])
    assert "… 2 branches …" in repr(deep)
    for _ in range(4):
        bushy = ZipMapDataset(
            [bushy, *[ZipMapDataset([MapDataset.range(4)] * 8) for _ in range(7)]]
        )
    assert len(repr(bushy).splitlines()) <= 101
    methods = {"__str__": lambda self: "word\n" * 1000, "map": None}
    talkative = type("Talkative", (gm.transforms.Map,), methods)()
    assert (
        max(map(len, repr(MapDataset.source(range(3)).slice(range(2)).map(talkative)).splitlines()))
        < 250
    )


def refuse(*args):
    raise RuntimeError("asked")


class Silent(MapDataset):
    """Nothing that it is asked has an answer."""

    __len__ = __getitem__ = __str__ = refuse
    _gm_described_parameters = property(refuse)


# no iterator is made
SilentStream = type("SilentStream", (IterDataset,), dict.fromkeys(["__iter__", "__str__"], refuse))
asked = ["__next__", "get_state", "set_state", "__str__"]
SilentIterator = type("SilentIterator", (DatasetIterator,), dict.fromkeys(asked, refuse))


class OwnText(BareMap):
    def __init__(self, *parents):
        MapDataset.__init__(self, parents)
        self.n = 3

    def __repr__(self):
        return f"OwnText({self._parents})"


def test_objects_of_users_never_make_it_fail():
    assert repr(Silent()) == "MapDataset:\n  Silent"
    assert repr(SilentStream(Silent())) == "IterDataset:\n  Silent\n  SilentStream"
    assert repr(SilentIterator()) == "DatasetIterator:\n  SilentIterator"
    text_of_repr = type("TextOfRepr", (BareMap,), {"__str__": lambda self: repr(self)})
    assert repr(text_of_repr(3)).startswith("MapDataset of 3 elements:\n  TextOfRepr")
    stages = BareMap(3), BareStream(3), iter(BareStream(3)), OwnText()
    assert [*map(str, stages)] == ["BareMap", "BareStream", "BareIterator", "OwnText(())"]
    own = OwnText(MapDataset.range(3))
    assert repr(own).startswith("OwnText((RangeMapDataset")
    assert repr(own.map(len)).splitlines()[1:3] == [
        "  RangeMapDataset(start=0, stop=3, step=1)  3 elements",
        f"  {own}",
    ]
    ds = SilentStream(MapDataset.source(range(3)).map(refuse)).map(len).batch(2)
    batch = "  BatchIterDataset(batch_size=2, drop_remainder=False)"
    assert repr(ds).splitlines()[-3:] == [
        "  SilentStream",
        "  MapIterDataset(transform=len)",
        batch,
    ]
    for prefetched in (
        ds.mp_prefetch(MultiprocessingOptions(num_workers=2)),
        ds.multithread_prefetch(2, 1),
    ):
        assert "\n  SilentStream\n" in repr(iter(prefetched))


# In a state or a checkpoint, a dataset is the text that it was before there was a ``repr`` for
# people.
SHUFFLED = (
    "MapMapDataset(ShuffleMapDataset(SourceMapDataset(length=2, source=<class 'list'>), length=2,"
    " seed=3), length=2)"
)
PROPORTIONS = "SelectionWithProportionsMap(proportions=(1, 1), length=4)"
SOURCES = {
    SHUFFLED: MapDataset.source([1, 2]).shuffle(seed=3).map(len),
    "RangeMapDataset(start=0, stop=3, step=1)": MapDataset.range(3),
    f"MixedMapDataset(parent_lengths=[2, 2], selection_map={PROPORTIONS})": MapDataset.mix(
        [MapDataset.range(2)] * 2
    ),
}


def test_checkpoints_have_the_complete_text_on_one_line():
    assert complete_repr(np.arange(2)) == "array([0, 1])"
    for text, ds in SOURCES.items():
        assert complete_repr(ds) == source_text(ds) == text
        loader = gm.DataLoader(data_source=ds, sampler=SAMPLER)
        assert (
            json.loads(iter(loader).get_state())["data_source"]
            == loader._description["source"]
            == text
        )
        assert f"data_source={text}"[:200] in repr(loader)
        assert text == SHUFFLED or repr(ds) == text  # what is one stage anyway has Grain's


DS = MapDataset.source([1, 2]).map(len)
STREAM = DS.to_iter_dataset(DIRECT)
MISUSES = [
    lambda: MapDataset.mix(DS),
    lambda: MapDataset.mix([STREAM]),
    lambda: MapDataset.select_from_datasets([DS], STREAM),
    lambda: InterleaveIterDataset(STREAM, cycle_length=2),
    lambda: ZipMapDataset([STREAM]),
    lambda: DS.map(STREAM),
    lambda: DS.apply([DS]),
    lambda: MapDataset.source(STREAM),
    lambda: gm.experimental.ThreadPrefetchDatasetIterator(STREAM, 1),
    lambda: gm.experimental.get_element_spec(iter(STREAM)),
    lambda: gm.experimental.get_next_index(STREAM),
    lambda: gm.DataLoader(data_source=STREAM, sampler=SAMPLER),
    lambda: gm.DataLoader(data_source=DS, sampler=SAMPLER, operations=[DS]),
    lambda: gm.load(STREAM),
    lambda: gm.checkpoint.CheckpointHandler().save(".", DS),
    lambda: gm.experimental.pick_performance_config(
        iter(STREAM), ram_budget_mb=1, max_workers=1, max_buffer_size=1
    ),
    lambda: ElasticIterator(iter(STREAM), 2, ShardOptions(0, 1)),
]


@pytest.mark.parametrize("misuse", MISUSES)
def test_error_messages_stay_on_one_line(misuse):
    one_line = re.compile(r"\A(?!.*0x).*((Map|Iter)Dataset|DatasetIterator).*\Z")
    assert_raises((TypeError, NotImplementedError), one_line, misuse)
