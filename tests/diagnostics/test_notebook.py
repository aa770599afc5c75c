"""What notebooks show: complete pieces of HTML in which nothing of the user's is markup."""

import functools

from html_page import Page

import gristmill as gm
from gristmill import MapDataset
from gristmill.diagnostics import diagnose, observe

HOSTILE = "<script>alert(\"x\")</script><img src=x onerror='y'>&amp;\ud800"


class Hostile:  # a source of a user's, or what makes a transformation or a dataset hostile
    def __len__(self):
        return 6

    def __getitem__(self, key):
        return {HOSTILE: key}

    def __repr__(self):
        return HOSTILE

    __str__ = __repr__


class Broken(MapDataset):  # fails whatever it is asked
    def fail(self, *args):
        raise RuntimeError("no")

    __len__ = __getitem__ = __str__ = fail


HostileMap = type(HOSTILE[:-1], (Hostile, gm.transforms.Map), {"map": lambda self, x: x})
HostileDataset = type(HOSTILE[:-1], (Hostile, MapDataset), {"__getitem__": lambda self, index: self._parent[index]})


def shown(value):
    page = Page(value._repr_html_())
    assert {tag for tag, _ in page.tags} <= {"div", "b", "table", "thead", "tbody", "tr", "th", "td", "span", "ol", "li"}
    assert {name for _, attributes in page.tags for name in attributes} <= {"style"} and len(value._repr_html_()) < 20_000
    return page.text


def test_datasets_from_the_sources_down_loaders_and_hostile_and_broken_objects_of_users():
    text = shown(MapDataset.range(1000).map(lambda x: x).to_iter_dataset().batch(4))
    stages = ("RangeMapDataset(start=0", "MapMapDataset", "PrefetchIterDataset", "BatchIterDataset")
    assert (places := [text.index(stage) for stage in stages]) == sorted(places)
    assert "1,000 elements" in text and "int64[]" in text
    base = MapDataset.range(5).shuffle(seed=1)  # several draw from it
    text = shown(MapDataset.mix([base.map(str), base.map(len)]))
    assert text.count("ShuffleMapDataset") == 2 and text.count("(as above)") == 1 and "┌─ " in text and "├─ " in text
    assert "more stages" in shown(functools.reduce(lambda ds, _: ds.map(str), range(500), base))
    for source, operation, *parts in (
        (range(6), gm.transforms.Batch(4), "DataLoader(data_source=range(0, 6)", "BatchIterDataset(batch_size=4"),
        (Hostile(), HostileMap(), "<script>"),  # as text
    ):
        text = shown(gm.DataLoader(data_source=source, sampler=gm.samplers.IndexSampler(6), operations=[operation]))
        assert all([part in text for part in parts])
    ds = HostileDataset(MapDataset.source(Hostile())).map(HostileMap())
    for each in (ds, ds.to_iter_dataset(), MapDataset.mix([ds] * 200), Broken()):
        shown(each)
    text = shown(found := diagnose(ds, 0.1))
    assert found.sentence.partition(":")[0][:20] in text and "Share of waiting" in text and "<script>" in text
    it = iter(ds)
    with observe(it) as view:
        shown(view)
        assert next(it) == {HOSTILE: 0}
        shown(view)
    assert "Share of waiting" in shown(view.summary())
