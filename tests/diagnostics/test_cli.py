"""``python -m gristmill``: mostly called in this process; where processes matter, in one of its
own.
"""

import copy
import importlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from refusing import assert_raises
from state_damage import HOSTILE, damaged, is_harmless, part, places

import gristmill
from gristmill.checkpoint import CheckpointHandler
from gristmill.dataset.descriptions.pipeline import describe
from gristmill.diagnostics.cli import _parser, main
from gristmill.diagnostics.cli.elements import element_lines
from gristmill.diagnostics.cli.position import position_lines
from gristmill.diagnostics.cli.target import load_pipeline
from gristmill.diagnostics.cli.tune import Sweep

GOLDEN = Path(__file__).parents[1] / "checkpoint" / "golden"
SUPPORT = Path(__file__).parents[1] / "support"
PIPELINES = """
import numpy as np
import gristmill as grain
from computing_ahead import ClosingDataset
from gristmill.experimental import ElasticIterator, InterleaveIterDataset
from users_datasets import Plain
class Untouchable:  # it must not be read
    __len__ = lambda self: 12
    __getitem__ = lambda self, index: 1 // 0
class Counting(ClosingDataset):
    __init__ = lambda self: super(Counting, self).__init__(
        grain.MapDataset.range(3).to_iter_dataset()
    )
    # so that only close() closes it
    __iter__ = lambda self: made.append(super(Counting, self).__iter__()) or made[-1]
class Shard(grain.IterDataset):
    def __init__(self, index=0, count=1):
        super().__init__()
        self.shard = grain.sharding.ShardOptions(index, count)
    def __iter__(self):
        files = [grain.MapDataset.range(10 * k, 10 * k + 3).to_iter_dataset() for k in range(4)]
        return ElasticIterator(InterleaveIterDataset(files, cycle_length=2), 0, self.shard)
make = lambda size=20: grain.MapDataset.range(size).seed(1).shuffle()
make_of = lambda size: make(size)
broken = lambda: {}["cannot make it"]
made, seen = [], []
numbers = grain.MapDataset.range(20).map(lambda x: seen.append(x) or x)
images = (
    grain.MapDataset.range(20)
    .map(lambda i: {"image": np.full((4, 4), i, np.uint8), "label": i})
    .to_iter_dataset()
    .batch(8)
)
odd = grain.MapDataset.range(20).filter(lambda x: x % 2)
empty = grain.MapDataset.range(0)
many = grain.MapDataset.range(10**9)
failing = grain.MapDataset.range(5).map(lambda x: 1 // (x - 2))
unread = grain.MapDataset.source(Untouchable()).repeat(2).to_iter_dataset()
counting, generated = Counting(), Plain(5)
once = type("Once", (Plain,), {"elements": iter(range(3)), "__iter__": lambda self: self.elements})(
    3
)
first, second = Shard(0, 2), Shard(1, 2)
workers = (
    grain.MapDataset.range(20)
    .map(lambda x: 2 * x)
    .to_iter_dataset()
    .mp_prefetch(grain.MultiprocessingOptions(2))
)
sampler = grain.samplers.IndexSampler(30, shuffle=True, seed=1, num_epochs=2)
loader = grain.DataLoader(
    data_source=np.arange(30), sampler=sampler, operations=[grain.transforms.Batch(4)]
)
endless = grain.MapDataset.range(10**6).map(lambda x: 2 * x)
squares = grain.MapDataset.range(60).map(lambda x: x * x).to_iter_dataset()
in_lanes = squares.batch(2).mp_prefetch(grain.MultiprocessingOptions(2, num_lanes=3))
in_order = squares.batch(2).mp_prefetch(grain.MultiprocessingOptions(2), order="stream")
reads = grain.ReadOptions("auto", max_workers=8)
found = grain.MapDataset.range(60).to_iter_dataset(reads).batch(2)
found = found.mp_prefetch(grain.MultiprocessingOptions("auto"))
found_by_global = squares.global_batch(4, workers=grain.MultiprocessingOptions("auto"))
single = squares.global_batch(4, num_lanes=1)
on_ray = squares.mp_prefetch(grain.RayOptions(1))
text = "no pipeline"
class holder:
    ds = numbers
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a module of pipelines, as ``python -m`` has it; afterwards nothing
    of it is imported.
    """
    (tmp_path / "cli_pipelines.py").write_text(PIPELINES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = {*sys.modules}
    yield tmp_path
    for name, module in [*sys.modules.items()]:
        if name not in before and str(tmp_path) in str(getattr(module, "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def call(folder, capsys):
    """Calls a command, in which ``@`` stands for our module, and returns what it prints."""

    def called(command, code=0):
        assert main([re.sub("^@", "cli_pipelines:", arg) for arg in command.split()]) == code
        captured = capsys.readouterr()
        assert code or not captured.err
        return captured.out + captured.err

    return called


def test_help_and_wrong_arguments(capsys):
    def ends(command, code=0):
        assert_raises(SystemExit, f"^{code}$", main, command.split())
        return capsys.readouterr()[code > 0]

    text = ends("--help")
    assert (
        text.startswith("usage: python -m gristmill ")
        and "examples:" in text
        and "exit codes:" in text
    )
    for command in (
        "inspect",
        "head",
        "diagnose",
        "bench",
        "tune",
        "state",
        "show",
        "trace",
        "write",
    ):
        assert f"\n    {command} " in text
        lines = [line.split() for line in ends(f"{command} --help").splitlines()]
        examples = [
            words[3:] for words in lines if words[:4] == ["python", "-m", "gristmill", command]
        ]
        assert examples and all([_parser().parse_args(example).command for example in examples])
    assert (
        "COMMAND" in ends("", 2)
        and "nothing" in ends("nothing", 2)
        and "'-1'" in ends("head x:y -n -1", 2)
    )
    assert "more than 0" in ends("bench x:y --seconds 0", 2) and "'inf'" in ends(
        "bench x:y --seconds inf", 2
    )
    assert "at least 1" in ends("bench x:y --repeat 0", 2) and "'some'" in ends(
        "diagnose x:y --consumer-ms some", 2
    )


def test_names_of_pipelines_and_wrong_ones(folder, call):
    names = (
        "cli_pipelines.py:numbers ./cli_pipelines.py:numbers @numbers @holder.ds @make @Counting"
        " @loader"
    )
    for name in names.split():
        assert call(f"head {name} -n 1").startswith("0: ")
    (folder / "some_package").mkdir()
    pipeline = "import gristmill\nfrom .parts import size\nds = gristmill.MapDataset.range(size)\n"
    for file, source in (("__init__", ""), ("parts", "size = 2\n"), ("pipeline", pipeline)):
        (folder / "some_package" / f"{file}.py").write_text(source)
    assert call("head some_package/pipeline.py:ds -n 1") == "0: int[]  0\n"
    assert load_pipeline("some_package/pipeline.py:ds") is load_pipeline("some_package.pipeline:ds")
    for name, *parts in (
        ("@nothing", "has no nothing", "numbers, images, odd", "make, broken"),
        *(
            ("@holder.nothing", "has no holder.nothing"),
            ("@dict", "has no dict"),
            ("@make_of", "without a default, size"),
        ),
        *(
            ("cli_pipelines", "cli_pipelines:<attribute>", "numbers, images"),
            ("@", "cli_pipelines:<attribute>"),
        ),
        *(
            ("@text", "'no pipeline' of type str", "numbers, images"),
            (":numbers", "module:attribute"),
        ),
        *(
            ("cli_piplines:x", "there is no module cli_piplines"),
            ("cli_pipelines.deeper:x", "no module cli_pipelines.deeper"),
        ),
        ("nothing.py:numbers", "there is no file nothing.py", "cli_pipelines.py"),
        ("json:loads", "without a default, s", "it has no pipelines"),
    ):
        text = call(f"head {name}", 2)
        assert text.count("\n") == 1 and all([part in text for part in parts]), text


def test_messages_name_options(folder, call):
    (folder / "written").mkdir()
    for command, words in (
        ("shuffle @numbers --batch-size 0", ": --batch-size must be a positive integer, got 0"),
        ("shuffle @numbers --batch-size 99", "choose a smaller --batch-size"),
        ("shuffle @images --batch-size 2", "pass --key, the name of the entry"),
        (
            "shuffle @images --batch-size 2 --key size",
            ": --key must be the name or number of an entry",
        ),
        ("write @numbers written/a --codec x", ": --codec must be one of 'bytes'"),
        ("write @numbers written/a --option x=1", "x is no option of --format array_record;"),
    ):
        text = call(command, 2)
        assert words in text and not re.search(r"\b(key|codec|batch_size|format)=(?!8)", text), text
    assert call("write @numbers written/a --quiet --workers 0").startswith("wrote ")
    assert "or --overwrite to remove" in call("write @odd written/a --quiet --workers 0", 2)


def test_errors_of_users_code_are_shown_from_its_first_line_on(folder, call):
    for source, message in (
        ("import gristmill\nraise KeyError('in my module')\n", "KeyError: 'in my module'"),
        ("import a_module_that_is_missing\n", "No module named 'a_module_that_is_missing'"),
        ("def f(:\n", "SyntaxError"),
    ):
        file = folder / f"faulty{len(message)}.py"
        file.write_text(source)
        importlib.invalidate_caches()
        for name in (file.stem, file.name):
            text = call(f"inspect {name}:ds", 1)
            assert (
                text.startswith(("Traceback", "  File")) and message in text and file.name in text
            )
            assert "importlib" not in text and "cli" not in text.replace(str(folder), "")
    text = call("inspect @broken", 1)
    assert (
        text.startswith("Traceback")
        and text.endswith("KeyError: 'cannot make it'\n")
        and text.count("File ") == 1
    )
    text = call("head @failing", 1)
    assert text.startswith("0: int[]  -1\n1: int[]  -1\nTraceback") and "cli_run" not in text
    assert "ZeroDivisionError" in text and "at element 2" in text


def test_inspect(folder, call):
    text = call("inspect @unread")
    assert (
        "RepeatMapDataset" in text and "SourceMapDataset(source=Untouchable)  12 elements\n" in text
    )
    assert text.endswith("element:  not known before the first one: --run reads it\n")
    source = "RangeMapDataset(start=0, stop=20, step=1)  20 elements  int64[]\n"
    text = call("inspect @make")
    assert text.startswith(source) and text.endswith(
        "\n\nlength:   20 elements\nelement:  int64[]\n"
    )
    text, spec = call("inspect @images --run"), "{'image': 'uint8[8, 4, 4]', 'label': 'int64[8]'}"
    # in the graph, and below it
    assert text.count(spec) == 2 and text.endswith(f"element:  {spec}\n")
    # after the map, where it changes
    assert text.count("{'image': 'uint8[4, 4]', 'label': 'int[]'}") == 1
    text += call("inspect @workers --run --output graph.txt") + (folder / "graph.txt").read_text()
    assert "before the first" not in text and "not seen" not in text
    assert call("inspect @empty --run").endswith("element:  there is none\n")
    for name in ("graph.png", "no/such/folder/graph.svg"):
        text = call(f"inspect @images --output {name}", 2)
        assert text.startswith("python -m gristmill: --output: ") and text.count("\n") == 1


def test_head(call):
    image = (
        "dict\n  'image': uint8[4, 4, 4]  [16 16 16 … 19 19 19]\n  'label': int64[4]  [16 17 18"
        " 19]\n"
    )
    assert call("head @images -n 1 --skip 2") == f"2: {image}"
    spec = "{{'image': 'uint8[{0}, 4, 4]', 'label': 'int64[{0}]'}}"
    specs = [f"{i}: {spec.format(n)}" for i, n in enumerate((8, 8, 4))]
    assert call("head @images --spec-only").splitlines() == [
        *specs,
        "(the end: there are 3 elements)",
    ]
    assert call("head @numbers -n 2 --skip 7") == "7: int[]  7\n8: int[]  8\n"
    assert sys.modules["cli_pipelines"].seen == [7, 8]  # nothing else is computed
    assert call("head @odd -n 1 --skip 3") == "3: int[]  7\n"
    assert call("head @empty") == "(the end: there are 0 elements)\n"
    call("head @counting -n 1")
    assert len(sys.modules["cli_pipelines"].counting.closed) == 1
    for name in ("numbers", "odd", "counting", "generated", "loader"):
        everything = call(f"head @{name} -n 100").splitlines()
        for skip in (1, 2, len(everything) - 1, len(everything) + 5):
            rest = call(f"head @{name} -n 100 --skip {skip}").splitlines()
            assert rest == everything[min(skip, len(everything) - 1) :]
    unshowable, deep = (
        type("Unshowable", (), {"__repr__": lambda self: 1 // 0})(),
        json.loads("[" * 100 + "]" * 100),
    )
    element = {
        "text": "x" * 10**6,
        "bytes": bytes(10**5),
        "many": [{"a": 1}] * 10**4,
        "deep": deep,
        "bad": unshowable,
    }
    lines = element_lines(element, "0:")
    assert (
        len(lines) < 100
        and max(map(len, lines)) < 400
        and any(["(1,000,000 characters)" in line for line in lines])
    )


def test_diagnose_and_bench(folder, call):
    text = call("diagnose @loader --seconds 0.3 --consumer-ms 5")
    assert (
        text.startswith("Bound by the consumer")
        and "percent" in text
        and "SampledMapDataset" in text
    )
    found = json.loads(
        call("diagnose @images --seconds 0.1 --html report.html --trace trace.json --json")
    )
    assert {
        "bound_by",
        "sentence",
        "elements_per_second",
        "recommendations",
        "delay_ns",
        "summary",
    } <= found.keys()
    assert (
        "<html" in (folder / "report.html").read_text()
        and "traceEvents" in (folder / "trace.json").read_text()
    )
    text = call("diagnose @images --seconds 0.05 --html no/such/folder/report.html", 2)
    assert text.startswith("Bound by ") and "\npython -m gristmill: --html: " in text
    assert "no elements" in call("diagnose @empty", 1)
    for name in ("images", "loader", "counting", "generated"):
        found = json.loads(call(f"bench @{name} --seconds 0.03 --warmup 0.01 --repeat 3 --json"))
        rates = found["elements_per_second_of_runs"]
        assert len(rates) == 3 and sorted(rates)[1] == found["elements_per_second"] > 0
        assert found["num_elements"] > 30  # more than there are: it starts again
        assert 0 < found["delay_ns"]["50"] <= found["delay_ns"]["95"] <= found["delay_ns"]["99"]
        if name == "images":  # batches of 8, 8 and 4
            assert 4 * (16 + 8) <= found["bytes_per_element"] <= 8 * (16 + 8)
    text = call("bench @images --seconds 0.02 --warmup 0")
    assert (
        re.match(r"elements/s .*\nMB/s .*\ndelay .*\n$", text)
        and "in 3 runs" in text
        and "p99" in text
    )
    assert "only once" in call("bench @once --seconds 0.01 --warmup 0", 1)
    assert call("bench @empty", 1) == "python -m gristmill: the pipeline has no elements\n"


def test_tune_measures_settings_and_prints_the_best_as_code(folder, call):
    found = json.loads(call("tune @endless --seconds 0.02 --max-workers 1 --json"))
    settings = [(x["num_workers"], x["executor"], x["num_threads"]) for x in found["settings"]]
    alone = [(0, "processes", n) for n in (0, 1, 4, 16, 64)]
    assert settings == [*alone, *[(1, x, n) for x in ("threads", "processes") for n in (1, 16)]]
    assert all(
        [x["elements_per_second"] > 0 < x["first_output_seconds"] for x in found["settings"]]
    )
    fastest = max([x["elements_per_second"] for x in found["settings"]])
    assert found["best"] in found["settings"] and not found["not_measured"]
    assert found["best"]["elements_per_second"] >= 0.97 * fastest
    for name, ends in (("endless", "mp_prefetch(workers)"), ("loader", "workers=workers)")):
        sweep = Sweep(load_pipeline(f"cli_pipelines:{name}"), 2)
        *_, setting = sweep.settings()
        code = list(sweep.code(setting))
        assert (setting.num_workers, setting.executor) == (2, "processes")
        assert code[-1].endswith(ends)
        scope = {"grain": gristmill}
        exec("\n".join(line for line in code if line.startswith(("read_", "workers"))), scope)
        assert scope["workers"].num_workers == 2 and scope["read_options"].num_threads == 16


def test_tune_gives_the_elements_of_the_pipeline(folder):
    """Settings change no element and keep the lanes and the order that the pipeline has."""
    for name in ("in_lanes", "in_order", "found", "found_by_global"):
        pipeline = load_pipeline(f"cli_pipelines:{name}")
        sweep = Sweep(pipeline, 2)
        expected = [*map(str, pipeline)]
        for setting in sweep.settings():
            if setting.num_workers != 1 and setting.num_threads < 4:
                assert [*map(str, sweep.applied(setting))] == expected, setting
                code = "\n".join(sweep.code(setting))
                has_workers = setting.num_workers > 0 or name in ("in_lanes", "found")
                assert ("workers = " in code) == has_workers


def test_what_tune_cannot_measure(folder, call):
    text = call("tune @single --seconds 0.01 --max-workers 2")
    assert "\nnot measured: 2 threads, 2 processes: ValueError: num_workers in workers must" in text
    assert re.search(r"Best: no workers, \d+ threads that read\n", text)
    assert call("tune @empty", 1).endswith("python -m gristmill: the pipeline has no elements\n")
    assert "ZeroDivisionError" in call("tune @failing --seconds 0.01", 1)
    assert "MultiprocessingOptions in place of RayOptions" in call("tune @on_ray", 2)


@pytest.fixture
def saved(folder):
    def save(name, num):
        directory = folder / f"saved_{name}"
        directory.mkdir()
        with iter(load_pipeline(f"cli_pipelines:{name}")) as it:
            assert len([next(it) for _ in range(num)]) == num
            CheckpointHandler().save(directory, it)
        return directory

    return save


def test_state(saved, folder, call):
    directory = saved("images", 2)
    text = call(f"state {directory} --pipeline @images")
    assert f"written by  gristmill {gristmill.__version__}\nprocesses   1\n" in text
    assert "\n  next index: 16 of 20 in MapMapDataset (80%)\n" in text and text.endswith(
        "\ncli_pipelines:images would continue\n"
    )
    stages = ["RangeMapDataset(length=20, start=0, stop=20, step=1)", "MapMapDataset(length=20)"]
    stages += [
        "PrefetchDatasetIterator(allow_nones=False)",
        "BatchDatasetIterator(batch_size=8, drop_remainder=False)",
    ]
    assert "  of the pipeline\n" + "".join([f"    {stage}\n" for stage in stages]) in text
    text = call(f"state {saved('workers', 5)}/process_0-of-1.json --pipeline @workers")
    assert "RoundRobinIterator(num_lanes=2)" in text
    own = "next index: {} of about 10 in its share of MapMapDataset"
    assert (
        f"  next: lane 1\n  lane 0:\n    {own.format(3)}\n  lane 1:\n    {own.format(2)}\n" in text
    )
    (folder / "state.json").write_text('{"next_index": 13}')
    # nothing is read
    assert call("state state.json --pipeline @unread").endswith(
        "cli_pipelines:unread would continue\n"
    )
    for other, last in (("make", "PrefetchDatasetIterator"), ("loader", "Batch")):
        text = call(f"state {directory} --pipeline @{other}", 1)
        assert f"cli_pipelines:{other} would refuse to continue: " in text
        assert (
            f"the last stage was 'BatchDatasetIterator' when it was saved, and is '{last}' here."
            " Build" in text
        )
    for end, position, after in (("drop", 4, ""), ("pad", 2, ", 2 elements after")):
        shard = gristmill.ShardOptions(1, 2)
        it = iter(
            gristmill.MapDataset.range(40).global_batch(
                8, num_lanes=4, shard_options=shard, end=end
            )
        )
        assert [next(it), next(it)]
        (folder / "state.json").write_text(json.dumps(it.get_state()))
        lanes = "".join([f"\n  lane {i}{after}:\n    next index: {position}" for i in (2, 3)])
        assert f"  global batches of 8 rows: 2 steps; here are 2 of 4 lanes:{lanes}\n" in call(
            "state state.json"
        )
    (folder / "state.json").write_text('{"parent": {"next_index": 4}, "count_elements_read": 3}')
    text = call("state state.json --pipeline @images", 1)
    assert "checkpoint  state.json\nwritten by  not noted" in text and "processes" not in text
    assert (
        "  limited: 3 elements\n    next index: 4\n" in text
        and "would refuse to continue: the state of" in text
    )
    for file, content, *messages in (
        *(
            ("process", b'{"next_index": 12}', "its checksum is "),
            ("process", b'{"next_index": ', "must be JSON text"),
        ),
        *(
            ("process", b"\xff", "its bytes are no UTF-8"),
            ("process", b"[" * 100_000, "nested too deeply", "recursion"),
        ),
        *[
            ("pipeline", content, "pipeline_0-of-1.json cannot be read")
            for content in (b"[]", b"\xff")
        ],
    ):
        path = directory / f"{file}_0-of-1.json"
        right = path.read_bytes()
        path.write_bytes(content)
        text = call(f"state {directory} --pipeline @images", 1)
        assert text.startswith("checkpoint") and any([message in text for message in messages]), (
            text
        )
        assert "DAMAGED" in text and "would refuse" in text
        path.write_bytes(right)
    (folder / "empty").mkdir()
    for name in ("nothing", "empty", "cli_pipelines.py/nothing"):
        text = call(f"state {name}", 2)
        assert text.count("\n") == 1 and name in text


@pytest.mark.timeout(20)
def test_states_of_several_processes(saved, folder, call):
    directory = saved("images", 1)
    for kind in ("process", "pipeline"):
        file = directory / f"{kind}_0-of-1.json"
        for i in (0, 1):
            (directory / f"{kind}_{i}-of-3.json").write_bytes(file.read_bytes())
        file.unlink()
    text = call(f"state {directory}", 1)
    assert "processes   3, MISSING: process_2-of-3.json\n" in text
    assert text.count("next index: 8 of 20") == 2 and text.count("of the pipeline") == 1
    (directory / "process_2-of-3.json").write_text('{"next_index": 100}')
    text = call(f"state {directory} --pipeline @images")  # it is the pipeline of one of them
    assert "cli_pipelines:images would continue from process_0-of-3.json\n" in text
    assert (
        "cli_pipelines:images would refuse to continue from process_2-of-3.json: next_index" in text
    )
    for count in ("1000000000", "9" * 200):  # which is not believed
        (folder / count).mkdir()
        for k in (0, 3):
            (folder / count / f"process_{k}-of-{count}.json").write_text('{"next_index": 3}')
        names = ", ".join([f"process_{k}-of-{count}.json" for k in (1, 2, 4, 5)])
        text = call(f"state {count}", 1)
        assert f"processes   {count}, MISSING: {names}"[:900] in text and (
            "and 9" in text or len(count) > 100
        )
    for i, name in enumerate(("first", "second")):
        directory = saved(name, 1)
        for kind in ("process", "pipeline"):
            (directory / f"{kind}_0-of-1.json").rename(folder / f"{kind}_{i}-of-2.json")
    text = call(f"state {folder} --pipeline @Shard")  # they are merged
    assert text.count("would refuse") == 2 and "  shard 1 of 2\n    next: dataset " in text
    assert text.endswith("cli_pipelines:Shard would continue from all of them together\n")
    assert "would continue from process_1-of-2.json" in call(f"state {folder} --pipeline @second")


def test_checkpoints_of_orbax(folder, call):
    import orbax.checkpoint as ocp

    run = folder / "run"
    with iter(load_pipeline("cli_pipelines:loader")) as it, ocp.CheckpointManager(run) as manager:
        for step in (9, 10):
            next(it)
            items = {name: gristmill.checkpoint.CheckpointSave(it) for name in ("train", "eval")}
            manager.save(step, args=ocp.args.Composite(**items))
        manager.wait_until_finished()
    text = call(f"state {run}")
    assert text == call(f"state {run}/10")
    assert re.findall("^checkpoint .*", text, re.M) == [
        f"checkpoint  {run}/10/{name}" for name in ("eval", "train")
    ]
    assert text.count("read: 8 of 60 records (13%), in epoch 1 of 2") == 2
    assert "read: 4 of 60 records (6%)" in call(f"state {run}/9/train --pipeline @loader")
    # of Grain
    for path in [path for path in sorted((GOLDEN / "orbax").iterdir()) if path.is_dir()]:
        text = call(f"state {path}")
        assert "written by  not noted: Grain" in text and "form of its own" not in text


def golden():
    """All golden states with the descriptions that there are."""
    for file in sorted(GOLDEN.glob("gr*_*.json")):
        for name, case in json.loads(file.read_text()).items():
            if name != "written_by":
                yield from [(state[1], case.get("pipeline")) for state in case["states"]]


class Twice(gristmill.experimental.FlatMapTransform):
    max_fan_out = 2

    def flat_map(self, element):
        return [element] * 2


def test_words_of_positions():
    for state, description in golden():
        lines = position_lines(state, description)
        assert lines and not [line for line in lines if "form of its own" in line], (state, lines)
        assert not [
            line for line in lines for number in re.findall(r"(\d+)%", line) if int(number) > 100
        ], (state, lines)
    numbers = gristmill.MapDataset.range(10)
    mixed = gristmill.IterDataset.mix(
        {k: gristmill.MapDataset.range(9).to_iter_dataset() for k in "ab"}
    )
    for ds, num, *expected in (
        (
            numbers.repeat().to_iter_dataset(),
            25,
            "next index: 25 in RepeatMapDataset, without end, in epoch 3",
        ),
        (
            numbers.repeat(3).batch(5).to_iter_dataset(),
            4,
            "next index: 4 of 6 in BatchMapDataset (66%), in epoch 3 of 3",
        ),
        # An index in other orders, or of other elements, does not say the epoch of what was
        # repeated.
        *[
            (ds.to_iter_dataset(), 15, f"next index: 15 in {type(ds).__name__}, without end")
            for ds in (
                gristmill.MapDataset.mix(
                    [numbers.repeat(), gristmill.MapDataset.range(3).repeat()]
                ),
                gristmill.MapDataset.zip(numbers.repeat(), gristmill.MapDataset.range(3).repeat()),
                gristmill.experimental.FlatMapMapDataset(numbers.repeat(), Twice()),
            )
        ],
        (
            numbers.repeat(2)[::-1].to_iter_dataset(),
            5,
            "next index: 5 of 20 in SliceMapDataset (25%)",
        ),
        (
            numbers.repeat(2).shuffle(seed=1).to_iter_dataset(),
            5,
            "next index: 5 of 20 in ShuffleMapDataset (25%)",
        ),
        (
            gristmill.MapDataset.mix([numbers, numbers]).repeat(2).map(str).to_iter_dataset(),
            *(25, "next index: 25 of 40 in MapMapDataset (62%), in epoch 2 of 2"),
        ),
        (
            numbers.to_iter_dataset().repeat(2),
            12,
            "in epoch 2 of 2",
            "  next index: 2 of 10 in RangeMapDataset (20%)",
        ),
        (
            *(
                mixed,
                3,
                "mixed: 3 elements",
                "dataset a:",
                "  next index: 2 of 9 in RangeMapDataset (22%)",
            ),
            *("dataset b:", "  next index: 1 of 9 in RangeMapDataset (11%)"),
        ),
        (
            numbers.map(lambda x: 1 // x).tolerate(max_rate=None).to_iter_dataset(),
            *(1, "next index: 2 of 10 in TolerateMapDataset (20%)", "tolerated: 1 fault"),
        ),
    ):
        with iter(ds) as it:
            for _ in range(num):
                next(it)
            assert position_lines(it.get_state(), describe(it)) == expected
    of_shards = {"global_next_index": 8, "faults": [{"total": 1, "tried": 4}]}
    assert position_lines(of_shards, None) == [
        "next index of all shards: 8",
        "tolerated: 1 fault in 4 elements",
    ]
    shard = gristmill.sharding.ShardOptions(1, 3, drop_remainder=True)
    # 4 records in each epoch
    sampler = gristmill.samplers.IndexSampler(14, shard_options=shard, num_epochs=3)
    with iter(gristmill.DataLoader(data_source=range(14), sampler=sampler, operations=[])) as it:
        for num, epoch in ((1, 1), (5, 2), (9, 3)):
            it._set_next_index(num)
            for description in (it._gm_describe(), None):
                expected = f"read: {num} of 12 records ({100 * num // 12}%), in epoch {epoch} of 3"
                assert position_lines(json.loads(it.get_state()), description) == [expected]


def test_damaged_has_words_and_hostile_is_escaped(saved, capsys):
    directory, all_hostile = saved("images", 2), itertools.cycle(HOSTILE)
    for name in ("process_0-of-1.json", "pipeline_0-of-1.json"):
        content = json.loads((directory / name).read_text())
        for path in places(content):
            changed, hostile = [copy.deepcopy(content)], next(all_hostile)
            part(changed, [0, *path][:-1])[[0, *path][-1]] = hostile
            (directory / name).write_text(json.dumps(changed[0]))
            assert main(["state", str(directory), "--pipeline", "cli_pipelines:images"]) in (0, 1)
            captured = capsys.readouterr()
            assert [
                line for line in (captured.out + captured.err).split("\n") if not is_harmless(line)
            ] == []
        (directory / name).write_text(json.dumps(content))
    cases, rng = [*golden()], random.Random(0)
    states, descriptions = zip(*cases, strict=True)
    descriptions = [description for description in descriptions if description]
    for _ in range(500):
        state, description = rng.choice(cases)
        assert position_lines(
            damaged(state, rng, states), damaged(description or {}, rng, descriptions)
        )


def start(*args, stdout=subprocess.PIPE):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    # streams that show less
    environment |= {"PYTHONPATH": str(SUPPORT), "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "gristmill", *args]
    return subprocess.Popen(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment
    )


def test_workers_find_functions(folder):
    for file in ("types.py", "with.dot-and-dash.py"):
        (folder / "elsewhere").mkdir(exist_ok=True)
        (folder / "elsewhere" / file).write_text(PIPELINES)
        process = start("head", f"elsewhere/{file}:workers", "-n", "3")
        assert process.communicate(timeout=60) == ("0: int[]  0\n1: int[]  2\n2: int[]  4\n", "")
    process = start("inspect", "cli_pipelines:images")  # whose text has more than ASCII
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "") and "BatchIterDataset" in out


def test_closed_pipes(folder):
    reader, writer = os.pipe()
    os.close(reader)
    process = start("--help", stdout=writer)
    os.close(writer)
    assert (process.communicate(timeout=60)[1], process.returncode) == ("", 0)
    process = start("head", "cli_pipelines:many", "-n", "1000000000")
    assert process.stdout.readline() == "0: int[]  0\n"
    process.stdout.close()
    with process.stderr:
        assert (process.wait(30), process.stderr.read()) == (0, "")
