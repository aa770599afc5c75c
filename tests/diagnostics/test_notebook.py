"""What notebooks show: complete pieces of HTML in which nothing of the user's is markup."""

from html_page import Page

import gristmill as gm
from gristmill import MapDataset
from gristmill.diagnostics import diagnose, observe

HOSTILE = "<script>alert(\"x\")</script><img src=x onerror='y'>&amp;\ud800"


class SaysHostileThings:
    def __repr__(self):
        return HOSTILE

    __str__ = __repr__


class Hostile(SaysHostileThings):
    def __len__(self):
        return 6

    def __getitem__(self, key):
        return {HOSTILE: key}


class HostileMap(SaysHostileThings, gm.transforms.Map):
    def map(self, element):
        return element


class HostileDataset(SaysHostileThings, MapDataset):
    def __len__(self):
        return len(self._parent)

    def __getitem__(self, index):
        return self._parent[index]


class Broken(MapDataset):
    """Fails whatever it is asked."""

    def fail(self, *args):
        raise RuntimeError("no")

    __len__ = __getitem__ = __str__ = fail


HostileMap.__name__ = HostileMap.__qualname__ = HostileDataset.__name__ = HOSTILE[:-1]


def shown(value):
    page = Page(value._repr_html_())
    assert {tag for tag, _ in page.tags} <= {"div", "b", "table", "thead", "tbody", "tr", "th", "td", "span", "ol", "li"}
    assert {name for _, attributes in page.tags for name in attributes} <= {"style"} and len(value._repr_html_()) < 20_000
    return page.text


def hostile():
    return HostileDataset(MapDataset.source(Hostile())).map(HostileMap())


def test_datasets_from_the_sources_down():
    text = shown(MapDataset.range(1000).map(lambda x: x).to_iter_dataset().batch(4))
    stages = ("RangeMapDataset(start=0", "MapMapDataset", "PrefetchIterDataset", "BatchIterDataset")
    assert (places := [text.index(stage) for stage in stages]) == sorted(places)
    assert "1,000 elements" in text and "int64[]" in text
    base = MapDataset.range(5).shuffle(seed=1)  # several draw from it
    text = shown(MapDataset.mix([base.map(str), base.map(len)]))
    assert text.count("ShuffleMapDataset") == 2 and text.count("(as above)") == 1 and "┌─ " in text and "├─ " in text
    ds = MapDataset.range(5)
    for _ in range(500):
        ds = ds.map(str)
    assert "more stages" in shown(ds)


def test_loaders():
    def loader(source, *operations):
        return gm.DataLoader(data_source=source, sampler=gm.samplers.IndexSampler(len(source)), operations=operations)

    text = shown(loader(range(9), gm.transforms.Batch(4)))
    assert "DataLoader(data_source=range(0, 9)" in text and "BatchIterDataset(batch_size=4" in text
    assert "<script>" in shown(loader(Hostile(), HostileMap()))  # as text


def test_hostile_and_broken_objects_of_users():
    for ds in (hostile(), hostile().to_iter_dataset(), MapDataset.mix([hostile()] * 200), Broken()):
        shown(ds)
    found = diagnose(hostile(), 0.1)
    text = shown(found)
    assert found.sentence.partition(":")[0][:20] in text and "Share of waiting" in text and "<script>" in text
    it = iter(hostile())
    with observe(it) as view:
        shown(view)
        assert next(it) == {HOSTILE: 0}
        shown(view)
    assert "Share of waiting" in shown(view.summary())
