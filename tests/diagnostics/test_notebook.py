"""What notebooks show: complete pieces of HTML in which nothing of the user's is markup."""

from html.parser import HTMLParser

import pytest

import gristmill as gm
from gristmill import MapDataset
from gristmill.diagnostics import diagnose, observe

HOSTILE = "<script>alert(\"x\")</script><img src=x onerror='y'>&amp;\ud800"


class Hostile:
    """Says dangerous things whatever it is asked."""

    def __len__(self):
        return 6

    def __getitem__(self, key):
        return {HOSTILE: key}

    def __repr__(self):
        return HOSTILE

    __str__ = __repr__


class HostileMap(gm.transforms.Map):
    def map(self, element):
        return element

    def __repr__(self):
        return HOSTILE

    __str__ = __repr__


class HostileDataset(MapDataset):
    def __len__(self):
        return len(self._parent)

    def __getitem__(self, index):
        return self._parent[index]

    def __str__(self):
        return HOSTILE

    __repr__ = __str__


class Broken(MapDataset):
    """Fails whatever it is asked."""

    def __len__(self):
        raise RuntimeError("length")

    def __getitem__(self, index):
        raise RuntimeError("element")

    def __str__(self):
        raise RuntimeError("name")


HostileMap.__name__ = HostileMap.__qualname__ = HostileDataset.__name__ = HOSTILE[:-1]


class Page(HTMLParser):
    """Tags that are closed in order, and the text between them."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.texts = [], set(), set(), []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes.update([name for name, _ in attributes])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def shown(value):
    text = value._repr_html_()
    text.encode()
    page = Page(text)
    assert page.tags <= {"div", "b", "table", "thead", "tbody", "tr", "th", "td", "span", "ol", "li"}
    assert page.attributes <= {"style"} and len(text) < 20_000
    return "\n".join(page.texts)


def hostile():
    return HostileDataset(MapDataset.source(Hostile())).map(HostileMap())


def test_a_dataset_from_the_sources_down():
    ds = MapDataset.range(1000).map(lambda x: x).to_iter_dataset().batch(4)
    text = shown(ds)
    places = [
        text.index(part) for part in ("RangeMapDataset(start=0", "MapMapDataset", "PrefetchIterDataset", "BatchIterDataset")
    ]
    assert places == sorted(places) and "1,000 elements" in text and "int64[]" in text


def test_branches_and_what_several_draw_from():
    base = MapDataset.range(5).shuffle(seed=1)
    text = shown(MapDataset.mix([base.map(str), base.map(len)]))
    assert text.count("ShuffleMapDataset") == 2 and text.count("(as above)") == 1 and "┌─ " in text and "├─ " in text


def test_a_loader():
    loader = gm.DataLoader(data_source=range(9), sampler=gm.samplers.IndexSampler(9), operations=[gm.transforms.Batch(4)])
    text = shown(loader)
    assert "DataLoader(data_source=range(0, 9)" in text and "BatchIterDataset(batch_size=4" in text


@pytest.mark.parametrize(
    "make",
    [hostile, lambda: hostile().to_iter_dataset(), lambda: MapDataset.mix([hostile()] * 200), Broken],
)
def test_hostile_and_broken_objects_of_users(make):
    shown(make())


def test_a_hostile_loader():
    loader = gm.DataLoader(data_source=Hostile(), sampler=gm.samplers.IndexSampler(6), operations=[HostileMap()])
    assert "<script>" in shown(loader)  # as text


def test_many_stages_are_abbreviated():
    ds = MapDataset.range(5)
    for _ in range(500):
        ds = ds.map(str)
    assert "more stages" in shown(ds)


def test_a_diagnosis_and_a_view():
    found = diagnose(hostile(), 0.1)
    text = shown(found)
    assert found.sentence.partition(":")[0][:20] in text and "Share of waiting" in text and "<script>" in text
    it = iter(hostile())
    with observe(it) as view:
        shown(view)
        assert next(it) == {HOSTILE: 0}
        shown(view)
    assert "Share of waiting" in shown(view.summary())
