import random
import re
import time
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from gristmill.core.options import MultiprocessingOptions, ReadOptions
from gristmill.dataset import MapDataset
from gristmill.diagnostics.report import report_html
from gristmill.diagnostics.summary import ExecutionSummary, Snapshot, StageSummary, ThreadTimeline
from gristmill.diagnostics.verdict import Diagnosis
from gristmill.diagnostics.view import observe

NASTY = '</script></style><nasty onclick="x">&amp;\'\ud800\x00'
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """What is in a page; fails if it is not well formed."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.rows: list[list[str]] = []  # of tables, the texts of their cells
        self.titles: list[str] = []  # of pictures and boxes
        self.styles = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs)
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "title":
            self.titles.append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] == ["style"]:
            self.styles += data
        elif self.open[-1:] == ["title"]:
            self.titles[-1] += data
        else:
            self.text += data + "\n"
            if {"td", "th"} & set(self.open):
                self.rows[-1][-1] += data

    def named(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]

    @property
    def threads(self):
        """What the rows of the timeline say: thread, works, waits."""
        return [row[:3] for row in self.rows if len(row) == 4][1:]


def observed(ds, num_elements):
    it = iter(ds)
    with observe(it) as view:
        for _ in range(num_elements):
            next(it)
        snapshot = view.snapshot()
    it.close()
    return snapshot


def diagnosis(snapshot, **changes):
    values = {
        "bound_by": "transform",
        "stage": None,
        "sentence": "It is bound by a transform.",
        "elements_per_second": snapshot.elements_per_second,
        "ceiling_per_second": 1234.0,
        "starved_ratio": snapshot.starved_ratio,
        "delay_ns": snapshot.delay_ns,
        "recommendations": ["Use more threads.", "Use fewer & larger batches."],
        "snapshot": snapshot,
    }
    return Diagnosis(**{**values, **changes})


def decode(x):
    time.sleep(0.001)
    return {"image": np.zeros((32, 32, 3), np.uint8), "label": x}


def is_even(x):
    return x["label"] % 2 == 0


@pytest.fixture(scope="module")
def threads():
    ds = MapDataset.range(10_000).shuffle(seed=1).map(decode).filter(is_even)
    return observed(ds.to_iter_dataset(ReadOptions(2, 8)).batch(8), 10)


@pytest.fixture(scope="module")
def workers():
    ds = MapDataset.range(10_000).map(decode).to_iter_dataset(ReadOptions(2, 8)).batch(8)
    return observed(ds.mp_prefetch(MultiprocessingOptions(num_workers=2)), 10)


def stage(number, inputs=(), **changes):
    values = {
        "name": f"MapMapDataset(transform=f{number} @ here.py:{number})",
        "wait_time_ratio": 0.0,
        "total_processing_time_ns": 1000 * (number + 1),
        "min_processing_time_ns": 1,
        "max_processing_time_ns": 1000,
        "num_produced_elements": 10,
        "output_spec": "int[]",
        "is_output": number == 0,
        "is_prefetch": False,
        "bytes_consumed": 10,
        "bytes_produced": 10,
        "category": "preprocessing",
        "place": "threads",
    }
    return StageSummary(id=number, inputs=tuple(inputs), **{**values, **changes})


def synthetic(stages, threads=()):
    summary = ExecutionSummary({x.id: x for x in stages}, 4_000_000_000, 1_000_000_000)
    return Snapshot(summary, 100, {50: 1e6, 95: 2e6, 99: 3e6}, list(threads), [])


def second(number):
    return int(number * 1e9)


def row_of(page, thread):
    return next(row for row in page.threads if row[0] == thread)


@pytest.mark.parametrize("name", ["threads", "workers"])
def test_is_one_page_that_needs_nothing_else(name, request):
    html = report_html(diagnosis(request.getfixturevalue(name)), title="My pipeline")
    assert html.startswith("<!DOCTYPE html>")
    page = Page(html)
    assert page.titles[0] == "My pipeline"
    tags = Counter([tag for tag, _ in page.tags])
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(tags)
    assert not re.findall(r"https?://", html.replace('xmlns="http://www.w3.org/2000/svg"', ""))
    assert not [value for _, attributes in page.tags for key, value in attributes.items() if key in ("src", "href", "srcset")]
    assert "@import" not in html
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)", html))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {x["aria-labelledby"] for x in page.named("section") if "class" in x} == set(ids) - {"gm-arrow"}


def test_works_in_light_and_dark_on_paper_and_on_a_telephone(threads):
    page = Page(report_html(diagnosis(threads)))
    assert {"charset": "utf-8"} in page.named("meta")
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.named("meta")
    light, _, rest = page.styles.partition("prefers-color-scheme:dark")
    variables = [re.findall(r"--(\w+):#", text) for text in (light, rest.partition("}")[0])]
    assert variables[0] == variables[1] != []
    assert "@media print" in page.styles


@pytest.mark.parametrize("name", ["threads", "workers"])
def test_shows_all_stages_and_threads(name, request):
    snapshot = request.getfixturevalue(name)
    page = Page(report_html(diagnosis(snapshot)))
    boxes = {int(x["data-id"]) for x in page.named("g") if "data-id" in x}
    rows = [row for row in page.rows if len(row) == 7][1:]
    assert boxes == {int(re.match(r"\d+", row[0])[0]) for row in rows} == set(snapshot.summary)
    for node, row in zip(sorted(snapshot.summary.values(), key=lambda x: -x.wait_time_ratio), rows, strict=True):
        assert float(row[1].strip("–%") or 0) == pytest.approx(100 * node.wait_time_ratio, abs=0.06)
        if node.output_spec:
            assert node.output_spec in row[-1]
    assert len(page.threads) == len(snapshot.threads) >= 3
    assert page.threads[0][0].startswith("main: ")
    processes = [row[0].partition(":")[0] for row in page.threads]
    assert sorted(processes) == processes
    assert set(processes) == {thread.process for thread in snapshot.threads}
    assert len({row[0] for row in page.threads}) == len(page.threads)


def test_shows_what_workers_did(threads, workers):
    page = Page(report_html(diagnosis(workers)))
    assert [row[1] for row in page.rows if "MultiprocessPrefetchIterator" in row[0] and len(row) == 6] == ["2"]
    assert "Worker processes" not in Page(report_html(diagnosis(threads))).text


def test_says_the_verdict(threads):
    found = diagnosis(
        threads, delay_ns={50: 1_230_000, 95: 45_600_000, 99: 7_890_000_000}, starved_ratio=0.375, elements_per_second=12345
    )
    text = Page(report_html(found)).text
    for part in (found.sentence, *found.recommendations, "12,345", "1,234", "1.23 ms", "45.6 ms", "7.89 s", "38%"):
        assert part in text
    unknown = Page(report_html(diagnosis(threads, bound_by="unknown", ceiling_per_second=None, recommendations=[])))
    assert "not known" in unknown.text
    assert "Recommendations" not in unknown.text


def test_marks_the_stage_that_binds():
    nodes = [stage(0, [1], wait_time_ratio=0.7), stage(1, [2], wait_time_ratio=0.2), stage(2, wait_time_ratio=0.1)]

    def marked(**changes):
        page = Page(report_html(diagnosis(synthetic(nodes), **changes)))
        return [row[0] for row in page.rows if "bottleneck" in row[0]], page.text.count("bottleneck")

    rows, num = marked()
    assert rows[0].startswith("0 ") and num == 2  # in the table and in the graph
    rows, num = marked(stage=nodes[1].name)
    assert rows[0].startswith("1 ") and num == 2
    assert marked(bound_by="consumer") == ([], 0)


def test_a_stage_has_the_same_colour_everywhere():
    nodes = [stage(i, [i + 1]) for i in range(11)] + [stage(11, is_prefetch=True, total_processing_time_ns=10**9)]
    marks = [(second(1), dict.fromkeys(range(12), 10**7))]
    page = Page(report_html(diagnosis(synthetic(nodes, [ThreadTimeline("main", "MainThread", 0, marks, [])]))))
    of_box = {int(i): c for i, c in re.findall(r'\.gm-stage\[data-id="(\d+)"\]\{--c:var\(--(\w+)\)\}', page.styles)}
    assert Counter(of_box.values()) == {**{f"c{i}": 1 for i in range(1, 8)}, "c0": 4, "hatch": 1}
    assert [i for i in range(11) if of_box[i] == "c0"] == [0, 1, 2, 3]  # those that took the least
    swatches = [x["class"].split()[1] for x in page.named("i") if x.get("class", "").startswith("swatch")]
    in_table = [int(re.match(r"\d+", row[0])[0]) for row in page.rows if len(row) == 7 and row[0] != "Stage"]
    for i, colour in zip(in_table, swatches[:12], strict=True):
        assert colour == ("waiting" if i == 11 else of_box[i])
    legend = re.findall(r"(\d+) MapMapDataset f\d+", page.text)
    assert [of_box[int(i)] for i in legend] == swatches[12:19]
    assert swatches[19:] == ["c0", "waiting", "idle"]
    drawn = {x["class"] for x in page.named("path") if "class" in x}
    assert {f"c{i}" for i in range(8)} <= drawn


def test_every_text_of_a_user_is_escaped(threads):
    nodes = [replace(node, name=f"Map({NASTY})", output_spec=NASTY, place=NASTY) for node in threads.summary.values()]
    timelines = [replace(thread, thread=NASTY, process=f"worker {NASTY}") for thread in threads.threads]
    snapshot = replace(threads, summary=replace(threads.summary, nodes={x.id: x for x in nodes}), threads=timelines)
    html = report_html(diagnosis(snapshot, sentence=NASTY, recommendations=[NASTY], bound_by=NASTY), title=NASTY)
    html.encode()
    page = Page(html)
    assert "nasty" not in {tag for tag, _ in page.tags}
    assert not [attributes for _, attributes in page.tags if "onclick" in attributes]
    shown = NASTY.replace("\ud800", "\ufffd").replace("\x00", "\ufffd")
    assert page.titles[0] == shown
    for place in (page.text, *[row[-1] for row in page.rows if len(row) == 7][1:]):
        assert shown in place


def test_names_of_functions_are_escaped():
    snapshot = observed(MapDataset.range(10).map(lambda x: x).to_iter_dataset(ReadOptions(0, 0)), 5)
    page = Page(report_html(diagnosis(snapshot)))
    assert "transform=<lambda>" in page.text


def test_draws_shares_of_the_time():
    nodes = [stage(0, [1]), stage(1)]
    marks = [(second(1), {0: second(0.5), 1: second(0.25)}), (second(4), {0: second(0.5), 1: second(3.25)})]
    page = Page(report_html(diagnosis(synthetic(nodes, [ThreadTimeline("main", "MainThread", 0, marks, [])]))))
    assert row_of(page, "main: MainThread") == ["main: MainThread", "94%", "0%"]
    title = next(title for title in page.titles if "MainThread" in title)
    assert "0 MapMapDataset f0: 12.5%" in title
    assert "1 MapMapDataset f1: 81.2%" in title
    paths = {x["class"]: x["d"] for x in page.named("path") if "class" in x}
    assert paths["c1"].startswith("M0 100V75H100V0H400")  # a quarter of the first second, and all of the others
    assert paths["c2"].startswith("M0 100V25H100")


def drawn(marks):
    """The work of one stage in one thread, as a path."""
    page = Page(report_html(diagnosis(synthetic([stage(0)], [ThreadTimeline("main", "thread", 0, marks, [])]))))
    return next(x["d"] for x in page.named("path") if x.get("class") == "c1")


def test_a_long_call_is_drawn_when_it_was_and_not_when_it_was_counted():
    # A call of three seconds ends just after a mark that another one has left.
    marks = [(second(0.5), {0: 0}), (second(2.9), {0: 0}), (second(3), {0: second(2.5)}), (second(4), {0: second(2.5)})]
    assert drawn(marks).startswith("M0 100V100H50V0H300V100H400")


def test_work_of_a_thread_that_ended_is_not_spread_until_now():
    assert drawn([(second(4), {0: second(1)})]).startswith("M0 100V0H100V100H400")


def test_time_of_a_prefetching_stage_is_waiting_without_what_it_computed_here():
    nodes = [stage(0, [1], is_prefetch=True), stage(1, [2]), stage(2)]
    here = {0: second(3), 1: second(1), 2: second(0.5)}  # the time of a prefetching stage is all that it took
    timelines = [ThreadTimeline("main", name, 0, [(second(4), own)], []) for name, own in (("a", here), ("b", {0: second(2)}))]
    page = Page(report_html(diagnosis(synthetic(nodes, timelines))))
    assert row_of(page, "main: a")[1:] == ["38%", "38%"]
    assert row_of(page, "main: b")[1:] == ["0%", "50%"]


def test_threads_are_in_order():
    def timeline(process, thread, stage):
        return ThreadTimeline(process, thread, 0, [(second(1), {0: 0, stage: 10})], [])

    timelines = [
        timeline("worker 10", "MainThread", 1),
        timeline("worker 2", "MainThread", 1),
        timeline("worker 2", "read", 1),
        timeline("worker 2", "read", 1),
        timeline("main", "read", 1),
        timeline("main", "MainThread", 0),
    ]
    page = Page(report_html(diagnosis(synthetic([stage(0, [1]), stage(1)], timelines))))
    assert [row[0] for row in page.threads] == [
        *("main: MainThread", "main: read", "worker 2: MainThread", "worker 2: read 1", "worker 2: read 2"),
        "worker 10: MainThread",
    ]


def test_is_small_however_long_the_run_and_however_many_threads():
    rng = random.Random(1)
    nodes = [
        stage(i, [i + 1] if i < 149 else [], name=f"Map({'y' * 5000}", output_spec="x" * 2000, wait_time_ratio=0.005)
        for i in range(150)
    ]
    marks, own = [], dict.fromkeys(range(140, 150), 0)
    for t in range(1, 401):
        own = {i: x + rng.randrange(10**8) for i, x in own.items()}
        marks.append((second(t), own))
    timelines = [ThreadTimeline(f"worker {i % 100}", "read", i, marks, []) for i in range(200)]
    html = report_html(diagnosis(synthetic(nodes, timelines)))
    assert len(html) < 1_000_000
    page = Page(html)
    assert len(page.threads) == 60
    assert page.threads[-1][0] == "… and 141 more threads"
    assert page.threads[-1][1] == "50%"


def test_is_small_however_many_stages_there_are():
    nodes = [stage(0, range(1, 1000), wait_time_ratio=0.5)]
    nodes += [stage(i, name="Map(" + "y" * 5000, output_spec="x" * 2000) for i in range(1, 1000)]
    html = report_html(diagnosis(synthetic(nodes)))
    assert len(html) < 600_000
    page = Page(html)
    assert "and 900 more stages" in page.text
    assert "1000 stages are too many" in page.text


def test_before_the_first_element():
    page = Page(report_html(diagnosis(Snapshot(ExecutionSummary({}), 0, {50: 0.0}, [], []), bound_by="unknown")))
    assert page.rows == []
    assert "before the first element" in page.text
    snapshot = observed(MapDataset.range(3).to_iter_dataset().batch(2), 0)
    page = Page(report_html(diagnosis(snapshot, bound_by="unknown")))
    assert len([row for row in page.rows if len(row) == 7]) == 4


def test_thread_that_did_nothing_has_a_row():
    timelines = [ThreadTimeline("main", "idle", 5, [], []), ThreadTimeline("main", "MainThread", 5, [(5, {0: 0})], [])]
    page = Page(report_html(diagnosis(synthetic([stage(0)], timelines))))
    assert row_of(page, "main: idle")[1:] == ["0%", "0%"]
