"""The graph of a pipeline, its texts and pictures, and where they go; how elements look in words,
and how large they are.
"""

import functools
import json
import logging
import sys
import xml.etree.ElementTree as ElementTree
from collections import OrderedDict, namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType

import jax.numpy as jnp
import numpy as np
from html_page import Page
from operations import operation
from refusing import assert_raises

import gristmill
from gristmill.core.element_spec import ShapeDtypeStruct
from gristmill.core.options import MultiprocessingOptions, ReadOptions
from gristmill.core.record import Record, RecordMetadata
from gristmill.dataset import IterDataset, MapDataset
from gristmill.diagnostics.drawing import graph_html, graph_svg
from gristmill.diagnostics.graph.files import emit_graph, visualize
from gristmill.diagnostics.graph.spec_text import element_nbytes, spec_text, static_spec_text
from gristmill.diagnostics.graph.stages import Graph, Stage, graph_of
from gristmill.diagnostics.graph.texts import graph_dot, graph_json, graph_text, stage_lines
from gristmill.diagnostics.view import observe
from gristmill.experimental import (
    ElasticIterator,
    InterleaveIterDataset,
    ZipIterDataset,
    ZipMapDataset,
    get_element_spec,
)
from gristmill.sharding import ShardOptions
from gristmill.sources import JsonlSource
from gristmill.transforms import Map

SVG = "{http://www.w3.org/2000/svg}"
DIRECT = ReadOptions(num_threads=0)
UNKNOWN = "(not known before the first element)"


def refuse(*args):
    raise AssertionError("something was run")


def chain():
    return (
        MapDataset.source(np.zeros((10, 2), np.float32))
        .shuffle(seed=1)
        .map(refuse)
        .to_iter_dataset(DIRECT)
        .batch(2)
    )


def diamond():
    shared = MapDataset.range(4).seed(3)
    return ZipMapDataset([shared, MapDataset.mix([shared, MapDataset.range(4)]).slice(range(4))])


def edges(graph):
    return [(stage.id, stage.inputs) for stage in graph.stages]


def names(graph):
    return [stage.name.partition("(")[0].partition("[")[0] for stage in graph.stages]


def test_stages_are_numbered_depth_first_from_the_output():
    graph = graph_of(chain())
    assert names(graph) == [
        "BatchIterDataset",
        "PrefetchIterDataset",
        "MapMapDataset",
        "ShuffleMapDataset",
        "SourceMapDataset",
    ]
    assert edges(graph) == [(0, (1,)), (1, (2,)), (2, (3,)), (3, (4,)), (4, ())]
    told = [(None, None), (None, None), (None, 10), ("float32[2]", 10), ("float32[2]", 10)]
    assert [(stage.spec, stage.length) for stage in graph.stages] == told
    graph = graph_of(diamond())
    assert edges(graph) == [(0, (1, 3)), (1, (2,)), (2, ()), (3, (4,)), (4, (1, 5)), (5, ())]
    assert graph.stages[0].spec == "tuple<int64>[2]" and graph.with_specs({}) == graph
    endless = MapDataset.range(4).repeat()
    heads = [graph_of(ds).stages[0].name for ds in (endless[::2], endless[1::3], endless[:8:2])]
    assert heads == [f"SliceMapDataset[{text}]" for text in ("::2", "1::3", "0:8:2")]
    # those that are seen take the place of known ones
    assert graph.with_specs({0: "int[]"}).stages[0].spec == "int[]"


def test_whatever_is_a_pipeline_has_a_graph_and_none_is_run():
    class Watched(IterDataset):
        __iter__ = refuse

    ds, read = Watched(chain()), ["MapMapDataset", "ShuffleMapDataset", "SourceMapDataset"]
    loader = gristmill.DataLoader(
        data_source=MapDataset.range(4).map(refuse),
        sampler=gristmill.samplers.SequentialSampler(4),
        operations=[gristmill.transforms.Batch(2)],
    )
    sampled, watched = (
        ["SampledMapDataset", "MapMapDataset", "RangeMapDataset"],
        ["Watched", "BatchIterDataset"],
    )
    made_late = InterleaveIterDataset(MapDataset.range(3).map(refuse), cycle_length=2)
    late = ["BatchIterDataset", "ZipIterDataset", "InterleaveIterDataset", "MapMapDataset"]
    for pipeline, *expected in (
        (
            ds.mp_prefetch(MultiprocessingOptions(num_workers=2)).__iter__(),
            "MultiprocessPrefetchIterator",
            *watched,
        ),
        (ds.multithread_prefetch(2, 1).__iter__(), "MultithreadPrefetchIterator", *watched),
        (
            InterleaveIterDataset([ds], cycle_length=1).__iter__(),
            "InterleaveDatasetIterator",
            *watched,
        ),
        (iter(chain()), "BatchDatasetIterator", "PrefetchDatasetIterator", *read),
        (
            ElasticIterator(MapDataset.range(8), 2, ShardOptions(0, 2)),
            "ElasticIterator",
            "RangeMapDataset",
        ),
        (loader, "BatchIterDataset", "PrefetchIterDataset", *sampled),
        (iter(loader), "BatchDatasetIterator", "PrefetchDatasetIterator", *sampled),
        (ZipIterDataset([made_late, MapDataset.range(3).to_iter_dataset(DIRECT)]).batch(2), *late),
    ):
        graph = graph_of(pipeline)
        assert names(graph)[: len(expected)] == expected
    assert [stage.spec for stage in graph.stages] == [
        None,
        None,
        None,
        None,
        "int64[]",
        "int64[]",
        "int64[]",
    ]
    for wrong in (5, None, [1, 2], "text", MapDataset):
        assert_raises(
            TypeError, "pipeline must be a dataset, a DataLoader or an iterator", visualize, wrong
        )


def arrow(indent, text, spec):
    lines = ["  ││", f"  ││{text}", "  ││", "  ╲╱", spec]
    return [f"{indent}{line}" for line in lines]


def test_texts_of_all_branches_dot_and_json():
    graph = graph_of(
        ZipMapDataset([MapDataset.range(4), MapDataset.source([1, 2, 3, 4]).map(len)]).batch(2)
    )
    assert graph_text(graph.with_specs({0: "tuple<int64[2]>[2]"})).splitlines() == [
        *("Grain Dataset graph:", "", "┌─ RangeMapDataset(start=0, stop=4, step=1)"),
        *(*arrow("│  ", "", "int64[]"), "│", "├─ SourceMapDataset(source=list)"),
        *(*arrow("│  ", "", UNKNOWN), "│"),
        *(*arrow("│  ", "  MapMapDataset(transform=len)", UNKNOWN), "│"),
        *(*arrow("", "  ZipMapDataset([2 parents], drop_missing=False)", UNKNOWN), ""),
        *arrow("", "  BatchMapDataset(batch_size=2, drop_remainder=False)", "tuple<int64[2]>[2]"),
    ]
    text = graph_text(graph_of(diamond()))
    assert (
        text.count("SeedMapDataset(seed=3)  (as above)") == 1
        and text.count("││  SeedMapDataset(seed=3)") == 1
    )
    graph = Graph((Stage(0, 'Out("\\x")', (1, 1)), Stage(1, "Ünder", spec="int[]", length=3)))
    assert graph_dot(graph).splitlines()[2:] == [
        '  s1 [label="Ünder\\nint[]"];',
        '  s0 [label="Out(\\"\\\\x\\")"];',
        *("  s1 -> s0;", "  s1 -> s0;", "}"),
    ]
    plain = [{"id": 0, "name": 'Out("\\x")', "inputs": [1, 1], "spec": None, "length": None}]
    plain += [{"id": 1, "name": "Ünder", "inputs": [], "spec": "int[]", "length": 3}]
    assert json.loads(graph_json(graph))["stages"] == plain


def boxes(svg):
    """The frames of the boxes in a drawing, by the numbers of the stages, and the texts in them;
    none is on another.
    """
    root = ElementTree.fromstring(svg)
    width, height = float(root.get("width")), float(root.get("height"))
    frames, texts = {}, {}
    for group in root.iter(f"{SVG}g"):
        x, y, w, h = [
            float(group.find(f"{SVG}rect").get(name)) for name in ("x", "y", "width", "height")
        ]
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height
        near = frames.values() if len(frames) < 100 else ()
        assert all(
            x + w < left or right < x or y + h < top or bottom < y
            for left, top, right, bottom in near
        )
        number = int(group.get("data-id"))
        frames[number] = x, y, x + w, y + h
        texts[number] = [text.text for text in group.iter(f"{SVG}text")]
    return root, frames, texts


def test_drawing_has_every_stage_above_its_consumers():
    for ds in (
        chain(),
        diamond(),
        ZipMapDataset([diamond(), diamond(), MapDataset.range(4)]).batch(2),
    ):
        graph = graph_of(ds)
        _, frames, _ = boxes(
            graph_svg(graph, {i: ["note"] * i for i in range(9)}, {0: 1.0, 2: 0.3})
        )
        assert set(frames) == {stage.id for stage in graph.stages}
        assert all(
            [frames[i][3] < frames[stage.id][1] for stage in graph.stages for i in stage.inputs]
        )
    graph = Graph(
        (
            Stage(0, "Map<Name>(a=1, b='<&\x00>')", (1,), "{'x': 'int[]'}"),
            Stage(1, "Source", length=1000),
        )
    )
    svg = graph_svg(graph, {0: ["50 % of the time"]}, {0: 0.5, 1: 0.0})
    root, _, texts = boxes(svg)
    assert texts[0] == [
        "Map",
        "0",
        "<Name>(a=1, b='<&\ufffd>')",
        "50 % of the time",
        "{'x': 'int[]'}",
    ]
    assert texts[1] == ["Source", "1", "1,000 elements"]
    (warm,) = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "gm-heat"]
    assert 0.1 < float(warm.get("fill-opacity")) < 0.5
    assert len(list(root.iter(f"{SVG}path"))) == 2  # one arrow, and its head
    # the picture and a row for every stage
    html = graph_html(graph_of(diamond()).with_specs({0: "<b>; c"}))
    page = Page(html)
    assert (len(page.named("tr")), len(page.named("svg"))) == (
        7,
        1,
    ) and "prefers-color-scheme:dark" in svg
    assert (
        "<b>; c" in page.text
        and not page.named("b")
        and not page.named("script")
        and "src=" not in html
    )
    assert "http" not in (svg + html).replace("http://www.w3.org/2000/svg", "")
    _, frames, texts = boxes(graph_svg(Graph((Stage(0, f"Long({'x, ' * 500})", (), "y" * 5000),))))
    assert len(texts[0]) == 10 and frames[0][2] - frames[0][0] < 400
    graph = graph_of(MapDataset.mix([MapDataset.range(i + 1).map(len) for i in range(100)]))
    svg = graph_svg(graph)  # inputs are missing in the drawing only
    assert len(boxes(svg)[1]) == 1 + 2 * 10 and "… 90 more" in svg
    assert (
        graph_text(graph).count("RangeMapDataset")
        == graph_dot(graph).count("RangeMapDataset")
        == 100
    )
    graph = graph_of(functools.reduce(lambda ds, _: ds.map(len), range(1500), MapDataset.range(3)))
    assert (
        len(boxes(graph_svg(graph))[1]) == 1501 and graph_text(graph).count("MapMapDataset") == 1500
    )


def test_visualize_writes_what_the_ending_says(tmp_path):
    ds, writers = (
        chain(),
        {
            "txt": graph_text,
            "svg": graph_svg,
            "html": graph_html,
            "json": graph_json,
            "dot": graph_dot,
        },
    )
    for ending, expected in [*writers.items(), ("SVG", graph_svg)]:
        path = tmp_path / f"graph.{ending}"
        path.write_text("old")
        assert (
            visualize(ds, path)
            == visualize(ds, str(path))
            == visualize(ds)
            == graph_text(graph_of(ds))
        )
        assert path.read_text(encoding="utf-8") == expected(graph_of(ds))
    message = r"path must end in one of \.dot, \.html, \.json, \.svg, \.txt, got "
    for path in [tmp_path / name for name in ("graph.png", "graph", "txt", ".svg")]:
        path.write_text("old")
        assert_raises(ValueError, message, visualize, ds, path)
        assert path.read_text() == "old"
    assert_raises(FileNotFoundError, "missing", visualize, ds, tmp_path / "missing" / "graph.svg")
    assert len(list(tmp_path.iterdir())) == 6 + 4  # nothing else is left


SEEN = {0: "float32[2, 2]"}


def test_mode_logs_prints_writes_files_and_never_fails(tmp_path, caplog, capsys, monkeypatch):
    caplog.set_level(logging.INFO, logger="gristmill")
    graph = graph_of(chain())
    text = graph_text(graph.with_specs(SEEN))
    emit_graph(graph.with_specs(SEEN), "")
    assert [(r.name, r.levelno, r.getMessage()) for r in caplog.records] == [
        ("gristmill", logging.INFO, text)
    ]
    assert text.endswith("float32[2, 2]") and capsys.readouterr() == ("", "")
    (tmp_path / "file").write_text("")
    for destination in ("file/graphs", "file", "a\0b"):
        caplog.clear()
        emit_graph(graph.with_specs(SEEN), str(tmp_path / destination))
        assert [r.levelno for r in caplog.records] == [
            logging.WARNING
        ] and "could not be written" in caplog.messages[0]
    caplog.clear()
    directory = tmp_path / "new" / "graphs"
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(emit_graph, [graph.with_specs(SEEN)] * 5, [str(directory)] * 5))
    wanted = {
        f"pipeline-{k}.{ending}" for k in range(5) for ending in ("txt", "svg", "html", "json")
    }
    assert {path.name for path in directory.iterdir()} == wanted
    assert {path.read_text(encoding="utf-8") for path in directory.glob("*.txt")} == {text}
    assert (
        json.loads((directory / "pipeline-4.json").read_text(encoding="utf-8"))["stages"][0]["spec"]
        == SEEN[0]
    )
    assert len(caplog.messages) == 5 and str(directory) in caplog.messages[0]
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    emit_graph(graph.with_specs(SEEN), "")
    assert capsys.readouterr().out == text + "\n"


Pair = namedtuple("Pair", "a b")


@dataclass
class Example:
    image: object
    label: int


class Broken:  # an object of the user's that answers no question
    def __getattr__(self, name):
        raise RuntimeError(name)


ENDLESS = []
ENDLESS.append(ENDLESS)

# Where Grain 0.2.18 says something else, a comment has it.
LOOKS = [
    *(
        (5, "int[]", 0),
        (1.5, "float[]", 0),
        (True, "bool[]", 0),
        (None, "None", 0),
        ("äb", "str[]", 2),
        (b"abc", "bytes[]", 3),
    ),
    (bytearray(4), "bytearray[]", 4),  # bytearray[4]
    *((len, "builtin_function_or_method[]", 0), (int, "type[]", 0), ({1, 2}, "set[]", 0)),
    *(
        (np.zeros((2, 3), np.float32), "float32[2, 3]", 24),
        (np.int32(3), "int32[]", 4),
        (np.array(["ab", "c"]), "<U2[2]", 16),
    ),
    (np.zeros(2, [("x", "i4"), ("y", "f8")]), "[('x', '<i4'), ('y', '<f8')][2]", 24),
    (np.zeros(2, "datetime64[s]"), "datetime64[s][2]", 16),
    (jnp.zeros((2, 3), jnp.bfloat16), "bfloat16[2, 3]", 12),  # ArrayImpl[2, 3]
    *(([1, 2], "list<int>[2]", 0), ((1, 2), "tuple<int>[2]", 0), (["a", "bc"], "list<str>[2]", 3)),
    *(([None], "list<NoneType>[1]", 0), ([], "list<>[0]", 0), ((), "tuple<>[0]", 0), ({}, "{}", 0)),
    *(
        ([1] * 1000, "list<int>[1000]", 0),
        ((1, "a"), "('int[]', 'str[]')", 1),
        ([1, 2.0], "['int[]', 'float[]']", 0),
    ),
    ([np.zeros(3), np.ones(3)], "list<float64[3]>[2]", 48),  # list<ndarray>[2, 3]
    ((np.zeros(3), np.ones(4)), "('float64[3]', 'float64[4]')", 56),
    *(
        ([np.zeros(i) for i in range(100)], "list<ndarray>[100]", 8 * 4950),
        ([[1, 2], [3, 4]], "list<list<int>[2]>[2]", 0),
    ),
    ([{"a": 1}, {"a": 2}], "list<{'a': 'int[]'}>[2]", 0),
    (
        {"a": np.zeros(2, np.int64), "b": [1, 2], "c": "s"},
        "{'a': 'int64[2]', 'b': 'list<int>[2]', 'c': 'str[]'}",
        17,
    ),
    ({"a": {"b": (1, 2.0)}, "c": None}, "{'a': {'b': ('int[]', 'float[]')}, 'c': None}", 0),
    ({"a": np.zeros(1, [("x", "i4")])}, "{'a': \"[('x', '<i4')][1]\"}", 4),
    *(
        (OrderedDict(b=1, a=2), "{'b': 'int[]', 'a': 'int[]'}", 0),
        (Pair(1, np.zeros(2)), "Pair(a='int[]', b='float64[2]')", 16),
    ),
    (Example(np.zeros(2), 1), "Example(image='float64[2]', label='int[]')", 16),
    (
        Record(RecordMetadata(1, 2), np.zeros(3)),
        (
            "Record(metadata=RecordMetadata(index='int[]', record_key='int[]', rng=None),"
            " data='float64[3]')"
        ),
        24,
    ),
    *((Broken(), "Broken[]", 0), (ENDLESS, "list[]", 0)),
]


def test_looks_sizes_and_specs():
    for element, text, nbytes in LOOKS:
        assert (spec_text(element), element_nbytes(element)) == (text, nbytes)
    # one part that answers nothing does not hide the others
    assert element_nbytes([np.zeros(2), object()]) == 16
    wide = {f"feature {i}": np.zeros(i) for i in range(10_000)}
    assert spec_text(wide).endswith(
        ", … 9968 more}"
    ) and "'feature 31': 'float64[31]'" in spec_text(wide)
    assert (
        spec_text([1, "a"] * 5000).endswith("'str[]', … 9968 more]")
        and len(spec_text([[wide, wide, 1]] * 9)) < 2100
    )
    failing = operation(Map, "map", len, output_spec=lambda self, input_spec: 1 // 0)
    ds = MapDataset.source(np.zeros((10, 28), np.float32)).batch(4, drop_remainder=True)
    assert (
        spec_text(get_element_spec(ds))
        == spec_text(ds[0])
        == static_spec_text(ds)
        == "float32[4, 28]"
    )
    assert spec_text({"a": ShapeDtypeStruct((None, 3), np.int8)}) == "{'a': 'int8[?, 3]'}"
    for unknown in (
        MapDataset.source([1]),
        MapDataset.range(3).map(len),
        MapDataset.range(3).map(failing),
    ):
        assert static_spec_text(unknown) is None


def test_components_and_files_have_their_names(tmp_path):
    (tmp_path / "web.jsonl").write_text("1\n2\n")
    inner = {"a": MapDataset.range(2).to_iter_dataset(), "b": MapDataset.range(3).to_iter_dataset()}
    web = MapDataset.source(JsonlSource(tmp_path / "web.jsonl")).to_iter_dataset()
    ds = IterDataset.mix({"books": IterDataset.mix(inner), "web": web})
    graph = graph_of(ds)
    assert graph.stages[0].input_names == ("books", "web")
    assert '[label="web"];' in graph_dot(graph) and "component web" in graph_svg(graph)
    assert "web: SourceMapDataset(source=JsonlSource('web.jsonl'))" in graph_text(graph)
    assert "├─ web: SourceMapDataset(source=JsonlSource('web.jsonl'))  2 elements" in stage_lines(
        graph
    )
    it = iter(ds)
    with observe(it) as view:
        assert len(list(it)) > 3
    labels = {node.label.partition("(")[0] for node in view.summary().values()}
    assert {
        "books/a: RangeMapDataset",
        "books/b: RangeMapDataset",
        "web: SourceMapDataset",
    } <= labels
    assert "books: MixedDatasetIterator" in labels and "MixedDatasetIterator" in labels
