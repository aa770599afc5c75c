"""``python -m gristmill``: mostly called in this process; where processes matter, in one of its own."""

import copy
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import gristmill
from gristmill.checkpoint import CheckpointHandler
from gristmill.diagnostics.cli import _parser, main
from gristmill.diagnostics.cli.elements import element_lines
from gristmill.diagnostics.cli.position import position_lines
from gristmill.diagnostics.cli.target import load_pipeline

CHECKPOINTS = Path(__file__).parents[1] / "checkpoint"
GOLDEN = CHECKPOINTS / "golden"
COMMANDS = ["inspect", "head", "diagnose", "bench", "state"]

PIPELINES = """
import numpy as np

import gristmill as grain
from gristmill.transforms import Batch, Map


class Untouchable:
    '''A source that must not be read.'''

    def __len__(self):
        return 12

    def __getitem__(self, index):
        raise AssertionError("read")

    def __repr__(self):
        return "Untouchable()"


class Countdown(grain.DatasetIterator):
    made = []
    closed = 0

    def __init__(self):
        super().__init__()
        self.left = 3
        self.made.append(self)  # so that nothing but close() closes it

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left

    def get_state(self):
        return {"left": self.left}

    def set_state(self, state):
        self.left = state["left"]

    def close(self):
        Countdown.closed += 1
        super().close()


class CountdownDataset(grain.IterDataset):
    def __iter__(self):
        return Countdown()


class Generated(grain.IterDataset):
    def __iter__(self):
        yield from range(5)


class Once(grain.IterDataset):
    def __init__(self):
        super().__init__()
        self.elements = iter(range(3))

    def __iter__(self):
        return self.elements


def number(x):
    seen.append(x)
    return x


def double(x):
    return 2 * x


def make(size=20):
    return grain.MapDataset.range(size).seed(1).shuffle()


def make_of(size):
    return make(size)


def broken():
    raise RuntimeError("cannot make it")


seen = []
numbers = grain.MapDataset.range(20).map(number)
images = grain.MapDataset.range(20).map(lambda i: {"image": np.full((4, 4), i, np.uint8), "label": i}).to_iter_dataset().batch(8)
odd = grain.MapDataset.range(20).filter(lambda x: x % 2)
empty = grain.MapDataset.range(0)
failing = grain.MapDataset.range(5).map(lambda x: 1 // (x - 2))
unread = grain.MapDataset.source(Untouchable()).repeat(2).to_iter_dataset()
countdown = CountdownDataset()
generated = Generated()
once = Once()
workers = grain.MapDataset.range(20).map(double).to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(2))
loader = grain.DataLoader(
    data_source=np.arange(30),
    sampler=grain.samplers.IndexSampler(30, shuffle=True, seed=1, num_epochs=2),
    operations=[Batch(4)],
)
text = "no pipeline"


class holder:
    ds = numbers
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a module of pipelines, as ``python -m`` has it; afterwards nothing of it is imported."""
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
    """Calls a command and returns its code, what it printed, and its errors."""

    def called(*args):
        code = main([*map(str, args)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return called


def start(*args, **options):
    command = [sys.executable, "-m", "gristmill", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def assert_prints(expected, *args, **options):
    """That a process ends well, with an output that has ``expected`` in it."""
    process = start(*args, **options)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert expected in out


class TestHelp:
    def test_names_all_commands(self, capsys):
        with pytest.raises(SystemExit) as end:
            main(["--help"])
        out = capsys.readouterr().out
        assert end.value.code == 0
        assert out.startswith("usage: python -m gristmill ")
        assert all([f"\n    {command} " in out for command in COMMANDS])
        assert "examples:" in out and "exit codes:" in out

    @pytest.mark.parametrize("command", COMMANDS)
    def test_of_a_command_has_examples_that_can_be_parsed(self, command, capsys):
        with pytest.raises(SystemExit) as end:
            main([command, "--help"])
        assert end.value.code == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        examples = [words[3:] for words in lines if words[:4] == ["python", "-m", "gristmill", command]]
        assert examples
        assert all([_parser().parse_args(example).command for example in examples])

    @pytest.mark.parametrize(
        ("args", "what"),
        [
            ([], "COMMAND"),
            (["nothing"], "nothing"),
            (["head", "x:y", "-n", "-1"], "'-1'"),
            (["bench", "x:y", "--seconds", "0"], "more than 0"),
            (["bench", "x:y", "--seconds", "inf"], "'inf'"),
            (["bench", "x:y", "--repeat", "0"], "at least 1"),
            (["diagnose", "x:y", "--consumer-ms", "some"], "'some'"),
        ],
    )
    def test_wrong_arguments(self, args, what, capsys):
        with pytest.raises(SystemExit) as end:
            main(args)
        assert end.value.code == 2
        assert what in capsys.readouterr().err


class TestNames:
    @pytest.mark.parametrize(
        "name",
        [
            "cli_pipelines:numbers",
            "cli_pipelines.py:numbers",
            "./cli_pipelines.py:numbers",
            "cli_pipelines:holder.ds",
            "cli_pipelines:make",
            "cli_pipelines:CountdownDataset",
            "cli_pipelines:loader",
        ],
    )
    def test_pipelines(self, name, call):
        code, out, err = call("head", name, "-n", "1")
        assert (code, err) == (0, "")
        assert out.startswith("0: ")

    @pytest.mark.parametrize(
        ("name", "parts"),
        [
            ("cli_pipelines:nothing", ["has no nothing", "numbers, images, odd", "make, broken"]),
            ("cli_pipelines:holder.nothing", ["has no holder.nothing"]),
            ("cli_pipelines", ["cli_pipelines:<attribute>", "numbers, images"]),
            ("cli_pipelines:", ["cli_pipelines:<attribute>"]),
            ("cli_pipelines:make_of", ["without a default, size"]),
            ("cli_pipelines:text", ["'no pipeline' of type str", "numbers, images"]),
            ("cli_pipelines:dict", ["has no dict"]),
            ("cli_piplines:numbers", ["there is no module cli_piplines"]),
            ("cli_pipelines.deeper:numbers", ["there is no module cli_pipelines.deeper"]),
            ("nothing.py:numbers", ["there is no file nothing.py", "cli_pipelines.py"]),
            (":numbers", ["module:attribute"]),
            ("json:loads", ["without a default, s", "it has no pipelines"]),
        ],
    )
    def test_wrong_ones_say_what_there_is(self, name, parts, call):
        code, out, err = call("head", name)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert all([part in err for part in parts]), err

    def test_file_in_a_package(self, folder, call):
        (folder / "some_package").mkdir()
        (folder / "some_package" / "__init__.py").touch()
        (folder / "some_package" / "parts.py").write_text("size = 2\n")
        source = "import gristmill\nfrom .parts import size\nds = gristmill.MapDataset.range(size)\n"
        (folder / "some_package" / "pipeline.py").write_text(source)
        assert call("head", "some_package/pipeline.py:ds", "-n", "1") == (0, "0: int[]  0\n", "")
        assert load_pipeline("some_package/pipeline.py:ds") is load_pipeline("some_package.pipeline:ds")

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ("import gristmill\nraise KeyError('in my module')\n", "KeyError: 'in my module'"),
            ("import a_module_that_is_missing\n", "No module named 'a_module_that_is_missing'"),
            ("def f(:\n", "SyntaxError"),
        ],
    )
    @pytest.mark.parametrize("name", ["faulty:ds", "faulty.py:ds"])
    def test_errors_of_the_module_are_shown_from_its_first_line_on(self, source, message, name, folder, call):
        (folder / "faulty.py").write_text(source)
        code, out, err = call("inspect", name)
        assert (code, out) == (1, "")
        assert message in err and "faulty.py" in err
        assert "importlib" not in err and "cli" not in err.replace(str(folder), "")

    def test_errors_of_what_makes_it(self, call):
        code, _, err = call("inspect", "cli_pipelines:broken")
        assert code == 1
        assert err.startswith("Traceback") and err.endswith("RuntimeError: cannot make it\n")
        assert err.count("File ") == 1

    def test_errors_of_the_pipeline(self, call):
        code, out, err = call("head", "cli_pipelines:failing")
        assert (code, out) == (1, "0: int[]  -1\n1: int[]  -1\n")
        assert "ZeroDivisionError" in err and "at element 2" in err
        assert "cli_run" not in err


class TestInspect:
    def test_without_reading(self, call):
        code, out, err = call("inspect", "cli_pipelines:unread")
        assert (code, err) == (0, "")
        assert "RepeatMapDataset" in out
        assert "source:   SourceMapDataset(source=Untouchable)  12 elements\n" in out
        assert out.endswith("element:  not known before the first one: --run reads it\n")

    def test_run_reads_the_first_element(self, folder, call):
        code, out, _ = call("inspect", "cli_pipelines:images", "--run")
        spec = "{'image': 'uint8[8, 4, 4]', 'label': 'int64[8]'}"
        assert code == 0
        assert out.count(spec) == 2  # in the graph, and below it
        assert out.count("{'image': 'uint8[4, 4]', 'label': 'int[]'}") == 2  # after the map, and after reading ahead
        assert out.endswith(f"element:  {spec}\n")
        out += call("inspect", "cli_pipelines:workers", "--run", "--output", "graph.txt")[1]
        out += (folder / "graph.txt").read_text()
        assert "before the first" not in out and "not seen" not in out

    def test_length_and_static_spec(self, call):
        out = call("inspect", "cli_pipelines:make")[1]
        source = "RangeMapDataset(start=0, stop=20, step=1)  20 elements"
        assert out.endswith(f"\n\nlength:   20 elements\nsource:   {source}\nelement:  int64[]\n")

    def test_of_nothing(self, call):
        assert call("inspect", "cli_pipelines:empty", "--run")[1].endswith("element:  there is none\n")

    @pytest.mark.parametrize(
        ("ending", "beginning"), [("svg", "<svg"), ("html", "<!"), ("dot", "digraph"), ("json", "{"), ("txt", "Grain")]
    )
    def test_output(self, ending, beginning, folder, call):
        code, _, err = call("inspect", "cli_pipelines:images", "--output", f"graph.{ending}")
        assert (code, err) == (0, "")
        assert (folder / f"graph.{ending}").read_text().lstrip().lower().startswith(beginning.lower())

    @pytest.mark.parametrize("name", ["graph.png", "no/such/folder/graph.svg"])
    def test_output_that_cannot_be(self, name, call):
        code, out, err = call("inspect", "cli_pipelines:images", "--output", name)
        assert (code, out) == (2, "")
        assert err.startswith("python -m gristmill: --output: ") and err.count("\n") == 1


class TestHead:
    def test_elements_are_readable(self, call):
        assert call("head", "cli_pipelines:images", "-n", "1", "--skip", "2") == (
            0,
            "2: dict\n  'image': uint8[4, 4, 4]  [16 16 16 … 19 19 19]\n  'label': int64[4]  [16 17 18 19]\n",
            "",
        )

    def test_spec_only(self, call):
        out = call("head", "cli_pipelines:images", "--spec-only")[1]
        spec = "{{'image': 'uint8[{0}, 4, 4]', 'label': 'int64[{0}]'}}"
        assert out.splitlines() == [
            *[f"{i}: {spec.format(n)}" for i, n in enumerate((8, 8, 4))],
            "(the end: there are 3 elements)",
        ]

    def test_nothing_else_is_computed(self, call):
        assert call("head", "cli_pipelines:numbers", "-n", "2", "--skip", "7")[1] == "7: int[]  7\n8: int[]  8\n"
        assert sys.modules["cli_pipelines"].seen == [7, 8]

    def test_skip_counts_elements_where_some_are_left_out(self, call):
        assert call("head", "cli_pipelines:odd", "-n", "1", "--skip", "3")[1] == "3: int[]  7\n"

    @pytest.mark.parametrize("name", ["numbers", "odd", "countdown", "generated", "loader"])
    def test_skip_is_as_if_they_were_not_shown(self, name, call):
        everything = call("head", f"cli_pipelines:{name}", "-n", "100")[1].splitlines()
        for skip in (1, 2, len(everything) - 1, len(everything) + 5):
            rest = call("head", f"cli_pipelines:{name}", "-n", "100", "--skip", skip)[1].splitlines()
            assert rest == everything[min(skip, len(everything) - 1) :]

    def test_iterators_are_closed(self, call):
        call("head", "cli_pipelines:countdown", "-n", "1")
        assert sys.modules["cli_pipelines"].Countdown.closed == 1

    def test_of_nothing(self, call):
        assert call("head", "cli_pipelines:empty") == (0, "(the end: there are 0 elements)\n", "")

    def test_lines_of_elements_are_short(self):
        class Unshowable:
            def __repr__(self):
                raise RuntimeError("no")

        deep = [1]
        for _ in range(100):
            deep = [deep, "x"]
        element = {"text": "x" * 10**6, "bytes": bytes(10**5), "many": [{"a": 1}] * 10**4, "deep": deep, "bad": Unshowable()}
        lines = element_lines(element, "0:")
        assert len(lines) < 100 and max(map(len, lines)) < 400
        assert any(["(1,000,000 characters)" in line for line in lines])


class TestDiagnose:
    def test_says_what_binds_it(self, call):
        code, out, err = call("diagnose", "cli_pipelines:loader", "--seconds", "0.3", "--consumer-ms", "5")
        assert (code, err) == (0, "")
        assert out.startswith("Bound by the consumer")
        assert "percent" in out and "SampledMapDataset" in out

    def test_files(self, folder, call):
        args = ["--seconds", "0.1", "--html", "report.html", "--trace", "trace.json", "--json"]
        code, out, err = call("diagnose", "cli_pipelines:images", *args)
        assert (code, err) == (0, "")
        found = json.loads(out)
        assert {"bound_by", "sentence", "elements_per_second", "recommendations", "delay_ns", "summary"} <= found.keys()
        assert "<html" in (folder / "report.html").read_text()
        trace = json.loads((folder / "trace.json").read_text())
        assert [event for event in trace["traceEvents"] if event["ph"] == "X"]

    def test_file_that_cannot_be_written(self, call):
        code, _, err = call("diagnose", "cli_pipelines:images", "--seconds", "0.05", "--html", "no/such/folder/report.html")
        assert code == 2
        assert err.startswith("python -m gristmill: --html: ")

    def test_of_nothing(self, call):
        code, out, err = call("diagnose", "cli_pipelines:empty")
        assert (code, out) == (1, "")
        assert "no elements" in err


class TestBench:
    @pytest.mark.parametrize("name", ["images", "loader", "countdown", "generated"])
    def test_json(self, name, call):
        args = ["--seconds", "0.03", "--warmup", "0.01", "--repeat", "3", "--json"]
        code, out, err = call("bench", f"cli_pipelines:{name}", *args)
        assert (code, err) == (0, "")
        found = json.loads(out)
        rates = found["elements_per_second_of_runs"]
        assert len(rates) == 3 and sorted(rates)[1] == found["elements_per_second"] > 0
        assert found["num_elements"] > 30  # more than there are: it begins anew
        assert 0 < found["delay_ns"]["50"] <= found["delay_ns"]["95"] <= found["delay_ns"]["99"]
        if name == "images":  # batches of 8, 8 and 4
            assert 4 * (16 + 8) <= found["bytes_per_element"] <= 8 * (16 + 8)

    def test_text(self, call):
        out = call("bench", "cli_pipelines:images", "--seconds", "0.02", "--warmup", "0")[1]
        assert [line.split()[0] for line in out.splitlines()] == ["elements/s", "MB/s", "delay"]
        assert "in 3 runs" in out and "p99" in out

    def test_of_what_cannot_begin_anew(self, call):
        code, _, err = call("bench", "cli_pipelines:once", "--seconds", "0.01", "--warmup", "0")
        assert code == 1
        assert "only once" in err

    def test_of_nothing(self, call):
        assert call("bench", "cli_pipelines:empty") == (1, "", "python -m gristmill: the pipeline has no elements\n")


@pytest.fixture
def saved(folder):
    """Writes a checkpoint of one of the pipelines after some elements."""

    def save(name, num, directory="saved"):
        it = iter(load_pipeline(f"cli_pipelines:{name}"))
        for _ in range(num):
            next(it)
        (folder / directory).mkdir(parents=True, exist_ok=True)
        CheckpointHandler().save(folder / directory, it)
        it.close()
        return folder / directory

    return save


class TestState:
    def test_of_a_dataset(self, saved, call):
        code, out, err = call("state", saved("images", 2), "--pipeline", "cli_pipelines:images")
        assert (code, err) == (0, "")
        assert f"written by  gristmill {gristmill.__version__}\nprocesses   1\n" in out
        assert "\n  next index: 16 of 20 in MapMapDataset (80%)\n" in out
        stages = ["RangeMapDataset(length=20, start=0, stop=20, step=1)", "MapMapDataset(length=20)"]
        stages += ["PrefetchDatasetIterator(allow_nones=False)", "BatchDatasetIterator(batch_size=8, drop_remainder=False)"]
        assert "  of the pipeline\n" + "".join([f"    {stage}\n" for stage in stages]) in out
        assert out.endswith("\ncli_pipelines:images would go on\n")

    def test_of_a_loader(self, saved, call):
        code, out, _ = call("state", saved("loader", 9), "--pipeline", "cli_pipelines:loader")
        assert code == 0
        assert "\n  read: 36 of 60 records (60%), in epoch 2 of 2\n" in out

    def test_of_workers(self, saved, call):
        code, out, _ = call("state", saved("workers", 5) / "process_0-of-1.json", "--pipeline", "cli_pipelines:workers")
        assert code == 0
        own = "next index: {} of about 10 in its share of MapMapDataset"
        assert f"  next: worker 1\n  worker 0:\n    {own.format(3)}\n  worker 1:\n    {own.format(2)}\n" in out

    def test_nothing_is_read(self, saved, folder, call):
        (saved("numbers", 0) / "process_0-of-1.json").write_text('{"next_index": 13}')
        (folder / "saved" / "pipeline_0-of-1.json").unlink()
        code, out, _ = call("state", "saved", "--pipeline", "cli_pipelines:unread")
        assert code == 0
        assert out.endswith("cli_pipelines:unread would go on\n")

    @pytest.mark.parametrize(
        ("other", "difference"),
        [
            ("make", "stage of PrefetchDatasetIterator (the last stage) was 'BatchDatasetIterator'"),
            ("loader", "another pipeline: stage of Batch (the last stage) was 'BatchDatasetIterator'"),
        ],
    )
    def test_of_another_pipeline(self, other, difference, saved, call):
        code, out, _ = call("state", saved("images", 2), "--pipeline", f"cli_pipelines:{other}")
        assert code == 1
        assert f"cli_pipelines:{other} would refuse to go on: " in out and difference in out

    def test_bare_state(self, folder, call):
        (folder / "state.json").write_text('{"parent": {"next_index": 4}, "count_elements_read": 3}')
        code, out, _ = call("state", "state.json", "--pipeline", "cli_pipelines:images")
        assert code == 1
        assert "checkpoint  state.json\nwritten by  not noted" in out and "processes" not in out
        assert "  limited: 3 elements\n    next index: 4\n" in out
        assert "would refuse to go on: the state of" in out and "next_index" in out

    @pytest.mark.parametrize(
        ("file", "content", "message"),
        [
            ("process_0-of-1.json", b'{"next_index": 12}', "its checksum is "),
            ("process_0-of-1.json", b'{"next_index": ', "must be JSON text"),
            ("process_0-of-1.json", b"\xff", "its bytes are no UTF-8"),
            ("process_0-of-1.json", b"[" * 100_000, "nested too deeply|recursion"),
            ("pipeline_0-of-1.json", b"[]", "pipeline_0-of-1.json cannot be read"),
            ("pipeline_0-of-1.json", b"\xff", "pipeline_0-of-1.json cannot be read"),
        ],
    )
    def test_damaged(self, file, content, message, saved, call):
        directory = saved("images", 1)
        (directory / file).write_bytes(content)
        code, out, err = call("state", directory, "--pipeline", "cli_pipelines:images")
        assert (code, err) == (1, "")
        assert any([part in out for part in message.split("|")]), out
        assert "DAMAGED" in out and "would refuse" in out

    @pytest.mark.parametrize("path", ["nothing", "empty", "cli_pipelines.py/nothing"])
    def test_no_checkpoint(self, path, folder, call):
        (folder / "empty").mkdir()
        code, out, err = call("state", path)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1 and path in err

    def test_of_several_processes(self, saved, folder, call):
        directory = saved("images", 1)
        for kind in ("process", "pipeline"):
            file = directory / f"{kind}_0-of-1.json"
            for i in (0, 1):
                (directory / f"{kind}_{i}-of-3.json").write_bytes(file.read_bytes())
            file.unlink()
        code, out, _ = call("state", directory)
        assert code == 1
        assert "processes   3, MISSING: process_2-of-3.json\n" in out
        assert out.count("next index: 8 of 20") == 2 and out.count("of the pipeline") == 1
        (directory / "process_2-of-3.json").write_text('{"next_index": 100}')
        code, out, _ = call("state", directory, "--pipeline", "cli_pipelines:images")
        assert code == 0  # it is the pipeline of one of them
        assert "cli_pipelines:images would go on from process_0-of-3.json\n" in out
        assert "cli_pipelines:images would refuse to go on from process_2-of-3.json: next_index" in out

    def test_shards_that_are_merged(self, folder, call):
        source = """
            import gristmill as grain
            from gristmill.experimental import ElasticIterator, InterleaveIterDataset

            def shard(index, count):
                files = [grain.MapDataset.range(10 * k, 10 * k + 3).to_iter_dataset() for k in range(4)]
                return ElasticIterator(InterleaveIterDataset(files, cycle_length=2), 0, grain.sharding.ShardOptions(index, count))

            class Whole(grain.IterDataset):
                def __iter__(self):
                    return shard(0, 1)

            class Half(grain.IterDataset):
                def __iter__(self):
                    return shard(1, 2)
        """
        (folder / "elastic.py").write_text(textwrap.dedent(source))
        load_pipeline("elastic:Half")
        for i in (0, 1):
            it = sys.modules["elastic"].shard(i, 2)
            next(it)
            CheckpointHandler().save(folder, it)
            for kind in ("process", "pipeline"):
                (folder / f"{kind}_0-of-1.json").rename(folder / f"{kind}_{i}-of-2.json")
        code, out, _ = call("state", folder, "--pipeline", "elastic:Whole")
        assert code == 0
        assert out.count("would refuse") == 2
        assert out.endswith("elastic:Whole would go on from all of them together\n")
        assert "  shard 1 of 2\n    next: dataset " in out
        code, out, _ = call("state", folder, "--pipeline", "elastic:Half")
        assert code == 0
        assert "would go on from process_1-of-2.json" in out

    def test_with_orbax(self, folder, call):
        import orbax.checkpoint as ocp

        it = iter(load_pipeline("cli_pipelines:loader"))
        with ocp.CheckpointManager(folder / "run") as manager:
            for step in (9, 10):
                next(it)
                items = {name: gristmill.checkpoint.CheckpointSave(it) for name in ("train", "eval")}
                manager.save(step, args=ocp.args.Composite(**items))
            manager.wait_until_finished()
        it.close()
        run, step = call("state", folder / "run"), call("state", folder / "run" / "10")
        assert run[0] == step[0] == 0
        assert run[1] == step[1]
        assert [line for line in run[1].splitlines() if line.startswith("checkpoint")] == [
            f"checkpoint  {folder}/run/10/{name}" for name in ("eval", "train")
        ]
        assert run[1].count("read: 8 of 60 records (13%), in epoch 1 of 2") == 2
        code, out, _ = call("state", folder / "run" / "9" / "train", "--pipeline", "cli_pipelines:loader")
        assert code == 0
        assert "read: 4 of 60 records (6%)" in out

    @pytest.mark.parametrize("name", [path.name for path in sorted((GOLDEN / "orbax").iterdir()) if path.is_dir()])
    def test_golden_checkpoints_of_grain(self, name, call):
        code, out, err = call("state", GOLDEN / "orbax" / name)
        assert (code, err) == (0, "")
        assert "written by  not noted: Grain" in out and "form of its own" not in out


def golden():
    """All golden states with the descriptions that there are."""
    for file in sorted(GOLDEN.glob("gr*_*.json")):
        for name, case in json.loads(file.read_text()).items():
            if name != "written_by":
                yield from [(state[1], case.get("pipeline")) for state in case["states"]]


class TestPositions:
    def test_all_golden_states_have_words(self):
        for state, description in golden():
            lines = position_lines(state, description)
            assert lines and not [line for line in lines if "form of its own" in line], (state, lines)
            percents = [int(number) for line in lines for number in re.findall(r"(\d+)%", line)]
            assert all([percent <= 100 for percent in percents]), (state, lines)

    @pytest.mark.parametrize(
        ("ds", "num", "expected"),
        [
            (
                gristmill.MapDataset.range(10).repeat().to_iter_dataset(),
                25,
                ["next index: 25 in RepeatMapDataset, without end, in epoch 3"],
            ),
            (
                gristmill.MapDataset.range(10).repeat(3).batch(5).to_iter_dataset(),
                4,
                ["next index: 4 of 6 in BatchMapDataset (66%), in epoch 3 of 3"],
            ),
            (
                gristmill.MapDataset.range(10).to_iter_dataset().repeat(2),
                12,
                ["in epoch 2 of 2", "  next index: 2 of 10 in RangeMapDataset (20%)"],
            ),
            (
                gristmill.IterDataset.mix({k: gristmill.MapDataset.range(9).to_iter_dataset() for k in "ab"}),
                3,
                [
                    *["mixed: 3 elements", "dataset a:", "  next index: 2 of 9 in RangeMapDataset (22%)"],
                    *["dataset b:", "  next index: 1 of 9 in RangeMapDataset (11%)"],
                ],
            ),
        ],
        ids=["endless", "batches", "repeated", "mixed"],
    )
    def test_words(self, ds, num, expected):
        from gristmill.dataset.telling.description import describe

        it = iter(ds)
        for _ in range(num):
            next(it)
        assert position_lines(it.get_state(), describe(it)) == expected
        it.close()

    def test_epochs_of_a_shard(self):
        shard = gristmill.sharding.ShardOptions(1, 3, drop_remainder=True)
        sampler = gristmill.samplers.IndexSampler(14, shard_options=shard, num_epochs=3)  # 4 records in each epoch
        loader = gristmill.DataLoader(data_source=range(14), sampler=sampler, operations=[])
        it = iter(loader)
        for num, epoch in ((1, 1), (5, 2), (9, 3)):
            it._set_next_index(num)
            for description in (it._describe(), None):
                expected = f"read: {num} of 12 records ({100 * num // 12}%), in epoch {epoch} of 3"
                assert position_lines(json.loads(it.get_state()), description) == [expected]
        it.close()

    def test_damaged_states_have_words_too(self, monkeypatch):
        monkeypatch.setattr(sys, "path", [*sys.path, str(CHECKPOINTS)])
        from state_damage import damaged

        cases = [*golden()]
        states, descriptions = zip(*cases, strict=True)
        descriptions = [description for description in descriptions if description]
        rng = random.Random(0)
        for _ in range(500):
            state, description = rng.choice(cases)
            assert position_lines(damaged(state, rng, states), damaged(description or {}, rng, descriptions))

    def test_what_is_hostile_in_a_checkpoint_does_not_reach_the_terminal(self, saved, call, monkeypatch):
        monkeypatch.setattr(sys, "path", [*sys.path, str(CHECKPOINTS)])
        from state_damage import HOSTILE, is_harmless, part, places

        directory, all_hostile = saved("images", 2), itertools.cycle(HOSTILE)
        for name in ("process_0-of-1.json", "pipeline_0-of-1.json"):
            content = json.loads((directory / name).read_text())
            for path in places(content):
                changed, hostile = copy.deepcopy(content), next(all_hostile)
                if path:
                    part(changed, path[:-1])[path[-1]] = hostile
                (directory / name).write_text(json.dumps(changed if path else hostile))
                code, out, err = call("state", directory, "--pipeline", "cli_pipelines:images")
                assert code in (0, 1)
                assert [line for line in (out + err).split("\n") if not is_harmless(line)] == []
            (directory / name).write_text(json.dumps(content))

    @pytest.mark.timeout(20)
    @pytest.mark.parametrize("count", ["1000000000", "9" * 200])
    def test_a_number_of_processes_is_not_believed(self, count, folder, call):
        for k in (0, 3):
            (folder / f"process_{k}-of-{count}.json").write_text('{"next_index": 3}')
        code, out, _ = call("state", folder)
        assert code == 1
        names = ", ".join([f"process_{k}-of-{count}.json" for k in (1, 2, 4, 5)])
        assert f"processes   {count}, MISSING: {names}"[:900] in out and ("and 9" in out or len(count) > 100)


class TestProcesses:
    """What only shows in a process of its own."""

    @pytest.mark.parametrize("file", ["types.py", "with.dot-and-dash.py"])
    def test_workers_find_the_functions_of_a_file(self, file, tmp_path):
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / file).write_text(PIPELINES)
        assert_prints("0: int[]  0\n1: int[]  2\n2: int[]  4\n", "head", f"elsewhere/{file}:workers", "-n", "3", cwd=tmp_path)

    def test_module_in_the_working_directory(self, tmp_path):
        (tmp_path / "cli_pipelines.py").write_text(PIPELINES)
        assert_prints("elements/s", "bench", "cli_pipelines:workers", "--seconds", "0.1", "--warmup", "0", cwd=tmp_path)

    def test_closed_pipe(self):
        reader, writer = os.pipe()
        os.close(reader)
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
        command = [sys.executable, "-m", "gristmill", "--help"]
        with os.fdopen(writer, "w") as output:
            process = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=60, env=environment)
        assert (process.returncode, process.stderr) == (0, "")

    def test_pipe_that_is_closed_later(self, tmp_path):
        (tmp_path / "cli_pipelines.py").write_text(PIPELINES + "\nmany = grain.MapDataset.range(10**9)\n")
        process = start("head", "cli_pipelines:many", "-n", "1000000000", cwd=tmp_path)
        assert process.stdout.readline() == "0: int[]  0\n"
        process.stdout.close()
        assert process.wait(30) == 0
        with process.stderr:
            assert process.stderr.read() == ""

    def test_interrupt(self, tmp_path):
        source = "import threading\n\ndef wait(x):\n    if x:\n        threading.Event().wait()\n    return x\n"
        (tmp_path / "cli_pipelines.py").write_text(f"{PIPELINES}\n{source}\nwaiting = grain.MapDataset.range(9).map(wait)\n")
        process = start("head", "cli_pipelines:waiting", cwd=tmp_path)
        assert process.stdout.readline() == "0: int[]  0\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.communicate(timeout=30) == ("", "")
        assert process.returncode == 130

    def test_streams_that_show_less(self, tmp_path):
        (tmp_path / "cli_pipelines.py").write_text(PIPELINES)
        environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
        assert_prints("BatchIterDataset", "inspect", "cli_pipelines:images", cwd=tmp_path, env=environment)
