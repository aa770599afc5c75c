"""The graph of a pipeline, its texts and pictures, and where they go."""

import functools
import json
import logging
import sys
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import numpy as np
from html_page import Page
from refusing import assert_raises

import gristmill
from gristmill.core.options import MultiprocessingOptions, ReadOptions
from gristmill.dataset import IterDataset, MapDataset
from gristmill.diagnostics.drawing import graph_html, graph_svg
from gristmill.diagnostics.graph import Graph, Stage, graph_of
from gristmill.diagnostics.graph_files import emit_graph, visualize
from gristmill.diagnostics.graph_texts import graph_dot, graph_json, graph_text
from gristmill.experimental import ElasticIterator, InterleaveIterDataset, ZipIterDataset, ZipMapDataset
from gristmill.sharding import ShardOptions

SVG = "{http://www.w3.org/2000/svg}"
DIRECT = ReadOptions(num_threads=0)
UNKNOWN = "(not known before the first element)"


def refuse(*args):
    raise AssertionError("something was run")


def chain():
    return MapDataset.source(np.zeros((10, 2), np.float32)).shuffle(seed=1).map(refuse).to_iter_dataset(DIRECT).batch(2)


def diamond():
    shared = MapDataset.range(4).seed(3)
    return ZipMapDataset([shared, MapDataset.mix([shared, MapDataset.range(4)]).slice(range(4))])


def edges(graph):
    return [(stage.id, stage.inputs) for stage in graph.stages]


def names(graph):
    return [stage.name.partition("(")[0].partition("[")[0] for stage in graph.stages]


def test_stages_are_numbered_from_the_output_depth_first_and_shared_ones_are_one():
    graph = graph_of(chain())
    assert names(graph) == ["BatchIterDataset", "PrefetchIterDataset", "MapMapDataset", "ShuffleMapDataset", "SourceMapDataset"]
    assert edges(graph) == [(0, (1,)), (1, (2,)), (2, (3,)), (3, (4,)), (4, ())]
    told = [(None, None), (None, None), (None, 10), ("float32[2]", 10), ("float32[2]", 10)]
    assert [(stage.spec, stage.length) for stage in graph.stages] == told
    graph = graph_of(diamond())
    assert edges(graph) == [(0, (1, 3)), (1, (2,)), (2, ()), (3, (4,)), (4, (1, 5)), (5, ())]
    assert graph.stages[0].spec == "tuple<int64>[2]" and graph.with_specs({}) == graph
    assert graph.with_specs({0: "int[]"}).stages[0].spec == "int[]"  # those that are seen take the place of known ones


def test_whatever_is_a_pipeline_has_a_graph_and_none_is_run():
    class Watched(IterDataset):
        __iter__ = refuse

    ds, read = Watched(chain()), ["MapMapDataset", "ShuffleMapDataset", "SourceMapDataset"]
    loader = gristmill.DataLoader(
        data_source=MapDataset.range(4).map(refuse),
        sampler=gristmill.samplers.SequentialSampler(4),
        operations=[gristmill.transforms.Batch(2)],
    )
    sampled, watched = ["SampledMapDataset", "MapMapDataset", "RangeMapDataset"], ["Watched", "BatchIterDataset"]
    made_late = InterleaveIterDataset(MapDataset.range(3).map(refuse), cycle_length=2)
    late = ["BatchIterDataset", "ZipIterDataset", "InterleaveIterDataset", "MapMapDataset"]
    for pipeline, *expected in (
        (ds.mp_prefetch(MultiprocessingOptions(num_workers=2)).__iter__(), "MultiprocessPrefetchIterator", *watched),
        (ds.multithread_prefetch(2, 1).__iter__(), "MultithreadPrefetchIterator", *watched),
        (InterleaveIterDataset([ds], cycle_length=1).__iter__(), "InterleaveDatasetIterator", *watched),
        (iter(chain()), "BatchDatasetIterator", "PrefetchDatasetIterator", *read),
        (ElasticIterator(MapDataset.range(8), 2, ShardOptions(0, 2)), "ElasticIterator", "RangeMapDataset"),
        (loader, "BatchIterDataset", "PrefetchIterDataset", *sampled),
        (iter(loader), "BatchDatasetIterator", "PrefetchDatasetIterator", *sampled),
        (ZipIterDataset([made_late, MapDataset.range(3).to_iter_dataset(DIRECT)]).batch(2), *late),
    ):
        graph = graph_of(pipeline)
        assert names(graph)[: len(expected)] == expected
    assert [stage.spec for stage in graph.stages] == [None, None, None, None, "int64[]", "int64[]", "int64[]"]
    for wrong in (5, None, [1, 2], "text", MapDataset):
        assert_raises(TypeError, "pipeline must be a dataset, a DataLoader or an iterator", visualize, wrong)


def arrow(indent, text, spec):
    lines = ["  ││", f"  ││{text}", "  ││", "  ╲╱", spec]
    return [f"{indent}{line}" for line in lines]


def test_texts_of_all_branches_dot_and_json():
    graph = graph_of(ZipMapDataset([MapDataset.range(4), MapDataset.source([1, 2, 3, 4]).map(len)]).batch(2))
    assert graph_text(graph, {0: "tuple<int64[2]>[2]"}).splitlines() == [
        *("Grain Dataset graph:", "", "┌─ RangeMapDataset(start=0, stop=4, step=1)"),
        *(*arrow("│  ", "", "int64[]"), "│", "├─ SourceMapDataset(source=list)"),
        *(*arrow("│  ", "", UNKNOWN), "│"),
        *(*arrow("│  ", "  MapMapDataset(transform=len)", UNKNOWN), "│"),
        *(*arrow("", "  ZipMapDataset([2 parents], drop_missing=False)", UNKNOWN), ""),
        *arrow("", "  BatchMapDataset(batch_size=2, drop_remainder=False)", "tuple<int64[2]>[2]"),
    ]
    text = graph_text(graph_of(diamond()))
    assert text.count("SeedMapDataset(seed=3)  (as above)") == 1 and text.count("││  SeedMapDataset(seed=3)") == 1
    graph, notes = Graph((Stage(0, 'Out("\\x")', (1, 1)), Stage(1, "Ünder", spec="int[]", length=3))), ({0: ["12 ms"]}, {1: 0.5})
    assert graph_dot(graph, *notes).splitlines()[2:] == [
        '  s1 [label="Ünder\\nint[]", fillcolor="0.06 0.35 1.00"];',
        '  s0 [label="Out(\\"\\\\x\\")\\n12 ms"];',
        *("  s1 -> s0;", "  s1 -> s0;", "}"),
    ]
    plain = [{"id": 0, "name": 'Out("\\x")', "inputs": [1, 1], "spec": None, "length": None}]
    plain += [{"id": 1, "name": "Ünder", "inputs": [], "spec": "int[]", "length": 3}]
    noted = [{**plain[0], "notes": ["12 ms"], "weight": None}, {**plain[1], "notes": [], "weight": 0.5}]
    assert [json.loads(graph_json(graph, *given))["stages"] for given in ((), notes)] == [plain, noted]


def boxes(svg):
    """The frames of the boxes in a drawing, by the numbers of the stages, and the texts in them; none is on another."""
    root = ElementTree.fromstring(svg)
    width, height = float(root.get("width")), float(root.get("height"))
    frames, texts = {}, {}
    for group in root.iter(f"{SVG}g"):
        x, y, w, h = [float(group.find(f"{SVG}rect").get(name)) for name in ("x", "y", "width", "height")]
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height
        near = frames.values() if len(frames) < 100 else ()
        assert all(x + w < left or right < x or y + h < top or bottom < y for left, top, right, bottom in near)
        number = int(group.get("data-id"))
        frames[number] = x, y, x + w, y + h
        texts[number] = [text.text for text in group.iter(f"{SVG}text")]
    return root, frames, texts


def test_the_drawing_has_every_stage_above_its_consumers_and_says_what_it_is_also_of_large_graphs():
    for ds in (chain(), diamond(), ZipMapDataset([diamond(), diamond(), MapDataset.range(4)]).batch(2)):
        graph = graph_of(ds)
        _, frames, _ = boxes(graph_svg(graph, {i: ["note"] * i for i in range(9)}, {0: 1.0, 2: 0.3}))
        assert set(frames) == {stage.id for stage in graph.stages}
        assert all([frames[i][3] < frames[stage.id][1] for stage in graph.stages for i in stage.inputs])
    graph = Graph((Stage(0, "Map<Name>(a=1, b='<&\x00>')", (1,), "{'x': 'int[]'}"), Stage(1, "Source", length=1000)))
    svg = graph_svg(graph, {0: ["50 % of the time"]}, {0: 0.5, 1: 0.0})
    root, _, texts = boxes(svg)
    assert texts[0] == ["Map", "0", "<Name>(a=1, b='<&\ufffd>')", "50 % of the time", "{'x': 'int[]'}"]
    assert texts[1] == ["Source", "1", "1,000 elements"]
    (warm,) = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "gm-heat"]
    assert 0.1 < float(warm.get("fill-opacity")) < 0.5
    assert len(list(root.iter(f"{SVG}path"))) == 2  # one arrow, and its head
    html = graph_html(graph_of(diamond()), {0: ["<b>", "c"]})  # the picture and a row for every stage
    page = Page(html)
    assert (len(page.named("tr")), len(page.named("svg"))) == (7, 1) and "prefers-color-scheme:dark" in svg
    assert "<b>; c" in page.text and not page.named("b") and not page.named("script") and "src=" not in html
    assert "http" not in (svg + html).replace("http://www.w3.org/2000/svg", "")
    _, frames, texts = boxes(graph_svg(Graph((Stage(0, f"Long({'x, ' * 500})", (), "y" * 5000),))))
    assert len(texts[0]) == 10 and frames[0][2] - frames[0][0] < 400
    graph = graph_of(MapDataset.mix([MapDataset.range(i + 1).map(len) for i in range(100)]))
    svg = graph_svg(graph)  # inputs are left out of the drawing only
    assert len(boxes(svg)[1]) == 1 + 2 * 10 and "… 90 more" in svg
    assert graph_text(graph).count("RangeMapDataset") == graph_dot(graph).count("RangeMapDataset") == 100
    graph = graph_of(functools.reduce(lambda ds, _: ds.map(len), range(1500), MapDataset.range(3)))
    assert len(boxes(graph_svg(graph))[1]) == 1501 and graph_text(graph).count("MapMapDataset") == 1500


def test_visualize_writes_what_the_ending_says(tmp_path):
    ds, writers = chain(), {"txt": graph_text, "svg": graph_svg, "html": graph_html, "json": graph_json, "dot": graph_dot}
    for ending, expected in [*writers.items(), ("SVG", graph_svg)]:
        path = tmp_path / f"graph.{ending}"
        path.write_text("old")
        assert visualize(ds, path) == visualize(ds, str(path)) == visualize(ds) == graph_text(graph_of(ds))
        assert path.read_text(encoding="utf-8") == expected(graph_of(ds))
    message = r"path must end in one of \.dot, \.html, \.json, \.svg, \.txt, got "
    for path in [tmp_path / name for name in ("graph.png", "graph", "txt", ".svg")]:
        path.write_text("old")
        assert_raises(ValueError, message, visualize, ds, path)
        assert path.read_text() == "old"
    assert_raises(FileNotFoundError, "missing", visualize, ds, tmp_path / "missing" / "graph.svg")
    assert len(list(tmp_path.iterdir())) == 6 + 4  # nothing else is left


SEEN = {0: "float32[2, 2]"}


def test_the_mode_logs_prints_in_colab_writes_numbered_files_and_never_fails(tmp_path, caplog, capsys, monkeypatch):
    caplog.set_level(logging.INFO, logger="gristmill")
    graph = graph_of(chain())
    text = graph_text(graph, SEEN)
    emit_graph(graph, SEEN, "")
    assert [(r.name, r.levelno, r.getMessage()) for r in caplog.records] == [("gristmill", logging.INFO, text)]
    assert text.endswith("float32[2, 2]") and capsys.readouterr() == ("", "")
    (tmp_path / "file").write_text("")
    for destination in ("file/graphs", "file", "a\0b"):
        caplog.clear()
        emit_graph(graph, SEEN, str(tmp_path / destination))
        assert [r.levelno for r in caplog.records] == [logging.WARNING] and "could not be written" in caplog.messages[0]
    caplog.clear()
    directory = tmp_path / "new" / "graphs"
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(emit_graph, [graph] * 5, [SEEN] * 5, [str(directory)] * 5))
    wanted = {f"pipeline-{k}.{ending}" for k in range(5) for ending in ("txt", "svg", "html", "json")}
    assert {path.name for path in directory.iterdir()} == wanted
    assert {path.read_text(encoding="utf-8") for path in directory.glob("*.txt")} == {text}
    assert json.loads((directory / "pipeline-4.json").read_text(encoding="utf-8"))["stages"][0]["spec"] == SEEN[0]
    assert len(caplog.messages) == 5 and str(directory) in caplog.messages[0]
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    emit_graph(graph, SEEN, "")
    assert capsys.readouterr().out == text + "\n"
