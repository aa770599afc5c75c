"""Pages of a diagnosis and what notebooks show: complete, well-formed HTML in which nothing of the
user's is markup.
"""

import functools
import re
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from html_page import Page

import gristmill as gm
from gristmill import MapDataset
from gristmill.core.options import MultiprocessingOptions, ReadOptions
from gristmill.diagnostics import diagnose, observe
from gristmill.diagnostics.diagnosis.verdict import Diagnosis
from gristmill.diagnostics.report import report_html
from gristmill.diagnostics.runtime.ahead import BudgetUse
from gristmill.diagnostics.runtime.remote import ThreadTimeline
from gristmill.diagnostics.runtime.summary import (
    ExecutionSummary,
    Snapshot,
    StageSummary,
)

NASTY = '</script></style><nasty onclick="x">&amp;\'\ud800\x00'


def observed(ds, num_elements):
    it = iter(ds)
    with it, observe(it) as view:
        for _ in range(num_elements):
            next(it)
        return view.snapshot()


def html_of(snapshot, title="My pipeline", **changes):
    own = {
        name: getattr(snapshot, name)
        for name in ("elements_per_second", "starved_ratio", "delay_ns")
    }
    own |= {
        "sentence": "It is bound by a transform.",
        "recommendations": ["Use more threads.", "Use fewer & larger batches."],
    }
    own |= {"bound_by": "transform", "stage": None, "ceiling_per_second": 1234.0, **changes}
    return report_html(Diagnosis(**own, snapshot=snapshot), title=title)


def decode(x):
    time.sleep(0.001)
    return {"image": np.zeros((32, 32, 3), np.uint8), "label": x}


@pytest.fixture(scope="module")
def snapshot():
    ds = MapDataset.range(10_000).shuffle(seed=1).map(decode).filter(lambda x: x["label"] % 2 == 0)
    return observed(
        ds.to_iter_dataset(ReadOptions(2, 8))
        .batch(8)
        .mp_prefetch(MultiprocessingOptions(num_workers=2)),
        10,
    )


def stage(number, inputs=(), **changes):
    name, kind = (
        f"MapMapDataset(transform=f{number} @ here.py:{number})",
        ("preprocessing", "threads"),
    )
    times = 0.0, 1000 * (number + 1), 1, 1000
    return replace(
        StageSummary(
            number, name, (*inputs,), *times, 10, "int[]", number == 0, False, 10, 10, *kind
        ),
        **changes,
    )


def synthetic(stages, *threads, **changes):
    """The page of stages, and of threads given by their names, seconds and those of the stages."""
    timelines = []
    for name, seconds, own in threads:
        own = {i: int(x * 1e9) for i, x in own.items()}
        timelines.append(ThreadTimeline(*name.split(": "), 0, int(seconds * 1e9), own, []))
    summary = ExecutionSummary({x.id: x for x in stages}, 4_000_000_000, 1_000_000_000)
    html = html_of(Snapshot(summary, 100, {50: 1e6, 95: 2e6, 99: 3e6}, timelines, []), **changes)
    assert len(html) < 1_000_000
    return Page(html)


def of_stages(page):
    return [row for row in page.rows if len(row) == 7][1:]


def of_threads(page):
    return [row[:3] for row in page.rows if len(row) == 4][1:]


def parts_of_threads(page):
    """The shares that each bar of a thread names, by its parts."""
    titles = [x.get("title", "") for x in page.named("td") if "parts" in x.get("class", "")]
    return [dict(line.split(": ") for line in title.splitlines()) for title in titles]


def bars(page):
    """The parts of all bars: colours and widths, in order."""
    return [(x["class"], x["style"]) for x in page.named("i") if "style" in x]


def test_is_one_page_that_needs_nothing_else(snapshot):
    html = html_of(snapshot)
    page = Page(html)
    assert html.startswith("<!DOCTYPE html>") and page.titles[0] == "My pipeline"
    assert not {"script", "link", "img", "iframe", "object", "base"} & {tag for tag, _ in page.tags}
    assert not {"src", "href", "srcset"} & {
        key for _, attributes in page.tags for key in attributes
    }
    assert not re.findall(
        r"https?://|@import", html.replace('xmlns="http://www.w3.org/2000/svg"', "")
    )
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)", html))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    labels = {x["aria-labelledby"] for x in page.named("section") if "class" in x}
    assert len(ids) == len({*ids}) and labels == {*ids} - {"gm-arrow"}
    # In light and dark, on paper and on a telephone.
    viewport = {"name": "viewport", "content": "width=device-width, initial-scale=1"}
    assert {"charset": "utf-8"} in page.named("meta") and viewport in page.named("meta")
    light, _, rest = page.styles.partition("prefers-color-scheme:dark")
    variables = [re.findall(r"--(\w+):#", text) for text in (light, rest.partition("}")[0])]
    assert variables[0] == variables[1] != [] and "@media print" in page.styles
    # All stages and threads.
    rows = of_stages(page)
    boxes = {int(x["data-id"]) for x in page.named("g") if "data-id" in x}
    assert boxes == {int(re.match(r"\d+", row[0])[0]) for row in rows} == set(snapshot.summary)
    for node, row in zip(
        sorted(snapshot.summary.values(), key=lambda x: -x.wait_time_ratio), rows, strict=True
    ):
        assert float(row[1].strip("–%") or 0) == pytest.approx(100 * node.wait_time_ratio, abs=0.06)
        assert node.output_spec in row[-1]
    shown = [row[0] for row in of_threads(page)]
    assert len(set(shown)) == len(shown) == len(snapshot.threads) >= 3 and shown[0].startswith(
        "main: "
    )
    processes = [name.partition(":")[0] for name in shown]
    assert sorted(processes) == processes and set(processes) == {
        thread.process for thread in snapshot.threads
    }
    workers = [
        row[1] for row in page.rows if "MultiprocessPrefetchIterator" in row[0] and len(row) == 6
    ]
    assert workers == ["2"] and "Worker processes" in page.text
    assert "Worker processes" not in Page(html_of(replace(snapshot, workers=[]))).text


def test_says_the_verdict_and_marks_the_stage_that_binds(snapshot):
    delays = {50: 1_230_000, 95: 45_600_000, 99: 7_890_000_000}
    text = Page(
        html_of(snapshot, delay_ns=delays, starved_ratio=0.375, elements_per_second=12345)
    ).text
    parts = (
        "It is bound by a transform.",
        "Use more threads.",
        "Use fewer & larger batches.",
        "12,345",
        "1,234",
        "1.23 ms",
    )
    assert [part for part in (*parts, "45.6 ms", "7.89 s", "38%") if part not in text] == []
    unknown = Page(
        html_of(snapshot, bound_by="unknown", ceiling_per_second=None, recommendations=[])
    ).text
    assert "not known" in unknown and "Recommendations" not in unknown
    nodes = [
        stage(0, [1], wait_time_ratio=0.7),
        stage(1, [2], wait_time_ratio=0.2),
        stage(2, wait_time_ratio=0.1),
    ]
    for expected, changes in (
        ("0", {}),
        ("1", {"stage": nodes[1].name}),
        (None, {"bound_by": "consumer"}),
    ):
        page = synthetic(nodes, **changes)
        marked = [row[0].split()[0] for row in page.rows if "bottleneck" in row[0]]
        assert marked == [expected] * bool(expected)
        assert page.text.count("bottleneck") == 2 * len(marked)  # in the table and in the graph


def test_tables_pages_and_notebooks_have_the_same_units():
    drawn = {
        "web": {"elements": 3, "lengths": 6, "epochs": 0},
        "books": {"elements": 1, "lengths": 2, "epochs": 0},
    }
    node = stage(0, num_long=7, components=drawn, total_processing_time_ns=456_000_000)
    budget = BudgetUse("main", 3, 16, 5_242_880, 1 << 40, False)
    summary = ExecutionSummary(
        {0: node}, 4_000_000_000, 1_000_000_000, (budget,), {"TolerateMapDataset": 2}
    )
    snapshot = Snapshot(summary, 100, {50: 819_200.0}, [], [])
    forms = [Page(text).text for text in (summary._repr_html_(), html_of(snapshot))] + [
        str(summary)
    ]
    assert len(summary.remarks) == 4
    for text in (*summary.remarks, "5.00 MiB of 1.00 TiB", "45.6 ms"):
        assert all([text in form for form in forms]), text
    diagnosis = Diagnosis(
        "source", None, "It is slow.", 12.5, 1234.0, 0.25, {50: 819_200.0}, [], snapshot
    )
    for form in (
        str(diagnosis),
        Page(diagnosis._repr_html_()).text,
        Page(report_html(diagnosis)).text,
    ):
        assert "819 µs" in form and "12.5 elements/s" in " ".join(form.split())


def test_a_stage_has_the_same_colour_everywhere():
    nodes = [stage(i, [i + 1]) for i in range(11)] + [
        stage(11, is_prefetch=True, total_processing_time_ns=10**9)
    ]
    page = synthetic(nodes, ("main: MainThread", 1, dict.fromkeys(range(12), 0.01)))
    groups = [x for x in page.named("g") if "data-id" in x]
    of_box = {int(x["data-id"]): x["class"].removeprefix("gm-stage ") for x in groups}
    assert Counter(of_box.values()) == {**{f"c{i}": 1 for i in range(1, 8)}, "c0": 4, "waiting": 1}
    assert [i for i in range(11) if of_box[i] == "c0"] == [0, 1, 2, 3]  # those that took the least
    swatches = [
        x["class"].split()[1] for x in page.named("i") if x.get("class", "").startswith("swatch")
    ]
    in_table = [int(re.match(r"\d+", row[0])[0]) for row in of_stages(page)]
    assert swatches[:12] == [of_box[i] for i in in_table]
    legend = re.findall(r"(\d+) MapMapDataset f\d+", page.text)
    assert (
        swatches[12:] == [*[of_box[int(i)] for i in legend], "c0", "waiting", "idle"]
        and len(legend) == 7
    )
    thread = bars(page)[-9:]  # the stages in the order of their colours, then the rest
    assert thread == [
        *[(f"c{i}", "width:1.0%") for i in range(1, 8)],
        ("c0", "width:4.0%"),
        ("waiting", "width:1.0%"),
    ]


def test_every_text_of_a_user_is_escaped(snapshot):
    nodes = [
        replace(node, name=f"Map({NASTY})", output_spec=NASTY, place=NASTY)
        for node in snapshot.summary.values()
    ]
    threads = [
        replace(thread, thread=NASTY, process=f"worker {NASTY}") for thread in snapshot.threads
    ]
    nasty = replace(
        snapshot, summary=replace(snapshot.summary, nodes={x.id: x for x in nodes}), threads=threads
    )
    page = Page(
        html_of(nasty, title=NASTY, sentence=NASTY, recommendations=[NASTY], bound_by=NASTY)
    )
    assert not [tag for tag, attributes in page.tags if tag == "nasty" or "onclick" in attributes]
    shown = NASTY.replace("\ud800", "\ufffd").replace("\x00", "\ufffd")
    assert page.titles[0] == shown and all(
        shown in place for place in (page.text, *[row[-1] for row in of_stages(page)])
    )
    assert (
        "transform=<lambda>"
        in Page(html_of(observed(MapDataset.range(10).map(lambda x: x).to_iter_dataset(), 5))).text
    )


def test_shows_shares_of_the_time_of_threads_in_order():
    nodes = [stage(0, [1]), stage(1)]
    page = synthetic(nodes, ("main: MainThread", 4, {0: 0.5, 1: 3.25}), ("main: read", 0, {}))
    assert of_threads(page) == [["main: MainThread", "94%", "0%"], ["main: read", "0%", "0%"]]
    shares = {"0 MapMapDataset f0": "12.5%", "1 MapMapDataset f1": "81.2%"}
    assert parts_of_threads(page) == [shares, {}]
    assert bars(page)[-2:] == [("c1", "width:81.2%"), ("c2", "width:12.5%")]
    # The time of a prefetching stage is all that it took: waiting is what is left without what it
    # computed here.
    ahead = [stage(0, [1], is_prefetch=True), stage(1, [2]), stage(2)]
    page = synthetic(ahead, ("main: a", 4, {0: 3, 1: 1, 2: 0.5}), ("main: b", 4, {0: 2}))
    waits = "waiting for what other threads and processes compute"
    assert parts_of_threads(page)[1] == {waits: "50.0%"} and bars(page)[-1][0] == "waiting"
    assert of_threads(page) == [["main: a", "38%", "38%"], ["main: b", "0%", "50%"]]
    names = [
        "worker 10: MainThread",
        "worker 2: MainThread",
        "worker 2: read",
        "worker 2: read",
        "main: read",
    ]
    threads = [(name, 1, {0: 0, 1: 1e-8}) for name in names]
    page = synthetic(nodes, *threads, ("main: MainThread", 1, {0: 1e-8}))
    expected = [
        "main: MainThread",
        "main: read",
        "worker 2: MainThread",
        "worker 2: read 1",
        "worker 2: read 2",
    ]
    assert [row[0] for row in of_threads(page)] == [*expected, "worker 10: MainThread"]


def test_is_small_however_much_or_little_there_is():
    long = {"name": f"Map({'y' * 5000}", "output_spec": "x" * 2000}
    nodes = [
        stage(i, [i + 1] if i < 149 else [], **long, wait_time_ratio=0.005) for i in range(150)
    ]
    own = dict.fromkeys(range(140, 150), 20)
    page = synthetic(nodes, *[(f"worker {i % 100}: read", 400, own) for i in range(200)])
    assert len(of_threads(page)) == 60 and of_threads(page)[-1][:2] == [
        "… and 141 more threads",
        "50%",
    ]
    page = synthetic(
        [stage(0, range(1, 1000), wait_time_ratio=0.5), *[stage(i, **long) for i in range(1, 1000)]]
    )
    assert "and 900 more stages" in page.text and "1000 stages are too many" in page.text
    page = Page(html_of(Snapshot(ExecutionSummary({}), 0, {50: 0.0}, [], []), bound_by="unknown"))
    assert page.rows == [] and "before the first element" in page.text
    page = Page(
        html_of(observed(MapDataset.range(3).to_iter_dataset().batch(2), 0), bound_by="unknown")
    )
    assert len(of_stages(page)) == 3


HOSTILE = "<script>alert(\"x\")</script><img src=x onerror='y'>&amp;\ud800"


class Hostile:  # a source of a user's, or what makes a transformation or a dataset hostile
    def __len__(self):
        return 6

    def __getitem__(self, key):
        return {HOSTILE: key}

    def __repr__(self):
        return HOSTILE

    __str__ = __repr__


class Broken(MapDataset):  # every method fails
    def fail(self, *args):
        raise RuntimeError("no")

    __len__ = __getitem__ = __str__ = fail


HostileMap = type(HOSTILE[:-1], (Hostile, gm.transforms.Map), {"map": lambda self, x: x})
HostileDataset = type(
    HOSTILE[:-1], (Hostile, MapDataset), {"__getitem__": lambda self, index: self._parent[index]}
)


def shown(value):
    page = Page(value._repr_html_())
    assert {tag for tag, _ in page.tags} <= {
        "style",
        "div",
        "b",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "span",
        "ol",
        "li",
    }
    names = {name for _, attributes in page.tags for name in attributes}
    assert names <= {"class", "scope"} and len(value._repr_html_()) < 20_000
    assert all([rule.startswith(".gristmill") for rule in re.findall(r"(?<=\n)\..*{", page.styles)])
    return page.text


def test_shows_datasets_loaders_and_hostile_objects():
    text = shown(MapDataset.range(1000).map(lambda x: x).to_iter_dataset().batch(4))
    stages = ("RangeMapDataset(start=0", "MapMapDataset", "PrefetchIterDataset", "BatchIterDataset")
    assert (places := [text.index(stage) for stage in stages]) == sorted(places)
    assert "1,000 elements" in text and "int64[]" in text
    base = MapDataset.range(5).shuffle(seed=1)  # several draw from it
    text = shown(MapDataset.mix([base.map(str), base.map(len)]))
    assert (
        text.count("ShuffleMapDataset") == 2
        and text.count("(as above)") == 1
        and "┌─ " in text
        and "├─ " in text
    )
    assert "more stages" in shown(functools.reduce(lambda ds, _: ds.map(str), range(500), base))
    for source, operation, *parts in (
        (
            range(6),
            gm.transforms.Batch(4),
            "DataLoader(data_source=range(0, 6)",
            "BatchIterDataset(batch_size=4",
        ),
        (Hostile(), HostileMap(), "<script>"),  # as text
    ):
        text = shown(
            gm.DataLoader(
                data_source=source, sampler=gm.samplers.IndexSampler(6), operations=[operation]
            )
        )
        assert all([part in text for part in parts])
    ds = HostileDataset(MapDataset.source(Hostile())).map(HostileMap())
    for each in (ds, ds.to_iter_dataset(), MapDataset.mix([ds] * 200), Broken()):
        shown(each)
    text = shown(found := diagnose(ds, 0.1))
    assert (
        found.sentence.partition(":")[0][:20] in text
        and "Share of waiting" in text
        and "<script>" in text
    )
    it = iter(ds)
    with observe(it) as view:
        shown(view)
        assert next(it) == {HOSTILE: 0}
        shown(view)
    assert "Share of waiting" in shown(view.summary())
