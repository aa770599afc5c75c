"""``verify``: every planted bug is named, and no pipeline that is deterministic is said not to
be.
"""

import gc
import itertools
import json
import random
import subprocess
import sys
import time

import numpy as np
import planted
import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from new_seed import SEED
from programs import output
from refusing import assert_raises
from stage_table import ITER_ENTRIES, MAP_ENTRIES
from stream_model import Endless, build, failing_trees, outcomes, trees

import gristmill as grain
from gristmill.dataset.descriptions.equality import difference, digest_of, leaves_of
from gristmill.diagnostics.verification import Check, Report
from gristmill.diagnostics.verification.conditions import Fresh, Lanes, WorkersInStreamOrder
from gristmill.diagnostics.verification.fresh import ColdCopies
from gristmill.diagnostics.verification.verifier import Verifier
from gristmill.testing import assert_deterministic

ENTRIES = [*ITER_ENTRIES, *MAP_ENTRIES]
STEPS = 25


class InThisProcess(Verifier):
    """Runs each condition on the pipeline itself, without processes, which take a second."""

    def __init__(self, ds, *args):
        super().__init__(ds, *args)
        self._copies = ColdCopies(ds, NotImplementedError())

    def _conditions(self):
        return [
            x
            for x in super()._conditions()
            if not isinstance(x, Fresh | WorkersInStreamOrder | Lanes)
        ]


def check_planted(name, verify=grain.verify):
    make, stage, reason = {**planted.HERE, **planted.COLD, **planted.IN_PROCESSES}[name]
    report = verify(make(), steps=30)
    assert not report.ok and stage in report.stage and reason in report.reason, f"{report}"
    assert json.loads(json.dumps(report.to_dict()))["stage"] == report.stage
    assert [check.status for check in report.checks].count("failed") == 1
    assert "NOT deterministic" in str(report) and report.stage in str(report)


OTHERS = ["coarse cache", *[*planted.IN_PROCESSES][2:]]  # similar to those that always run


@pytest.fixture
def timed_garbage():
    """Measures the collection of garbage, as Hypothesis does, in whichever function that
    happens.
    """

    def measure(phase, info):
        time.perf_counter()

    gc.callbacks.append(measure)
    yield
    gc.callbacks.remove(measure)


@pytest.mark.usefixtures("timed_garbage")
@pytest.mark.parametrize("name", planted.HERE)
def test_planted_bugs_that_show_in_this_process_are_named(name):
    check_planted(name, lambda ds, steps: InThisProcess(ds, steps, 60).report())


@pytest.mark.parametrize(
    "name", ["numpy", *[x for x in planted.COLD if x not in OTHERS], "set", "process"]
)
def test_planted_bugs_are_named(name):
    check_planted(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_more_planted_bugs_that_other_processes_show_are_named(name):
    check_planted(name)


@pytest.mark.parametrize(
    "entries",
    [ENTRIES[::5], pytest.param(ENTRIES[1::3], marks=pytest.mark.slow)],
    ids=["some", "more"],
)
def test_no_alarm_on_the_table_of_stages(entries):
    for entry in entries:
        report = InThisProcess(entry.make(), STEPS, 60).report()
        assert report.ok, f"{entry.name}: {report}"


@pytest.mark.slow
def test_no_alarm_on_some_stages_in_processes():
    for entry in random.Random(SEED).sample(ENTRIES, 5):
        assert_deterministic(entry.make(), steps=STEPS)


@pytest.mark.slow
@seed(SEED)
@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[*HealthCheck],
    phases=[Phase.explicit, Phase.generate],
)
@given(trees | failing_trees, st.sampled_from([*[InThisProcess] * 15, Verifier]))
def test_no_alarm_on_random_pipelines(tree, kind):
    try:
        list(itertools.islice(outcomes(tree), 60))
    except Endless:
        assume(False)
    report = kind(build(tree), STEPS, 60).report()
    assert report.ok, f"{report}"


def test_loaders_and_errors_are_compared_and_time_is_bounded():
    loader = grain.load(
        [*range(40)], num_epochs=1, shuffle=True, seed=1, batch_size=3, worker_count=1
    )
    report = grain.verify(loader, steps=5)
    assert report.ok and {check.status for check in report.checks} == {"passed", "skipped"}
    failing = grain.MapDataset.range(9).map(lambda x: 1 // (x - 5))
    report = InThisProcess(failing, 20, 60).report()
    assert report.ok and report.num_steps == 5 and "ZeroDivisionError" in report.note
    once = iter([ValueError("first"), *[KeyError("later")] * 99])
    report = InThisProcess(
        grain.MapDataset.range(3).map(lambda x: [][0] if x else fail(next(once))), 3, 60
    ).report()
    assert not report.ok and report.values == (
        "raised ValueError: first",
        "raised KeyError: 'later'",
    )
    report = grain.verify(grain.MapDataset.range(10), seconds=0.001)
    assert report.ok and "there was no time left" in {check.note for check in report.checks}
    for arguments, error in (({"steps": 0}, ValueError), ({"seconds": "1"}, TypeError)):
        assert_raises(error, None, grain.verify, grain.MapDataset.range(3), **arguments)
    assert_raises(TypeError, "ds must be", grain.verify, iter(grain.MapDataset.range(3)))
    assert_raises(
        AssertionError, "NOT deterministic", assert_deterministic, planted.with_generator()
    )


def fail(error):
    raise error


class Own:
    def __init__(self, name):
        self.name, self.number = name, random.random()

    def __eq__(self, other):
        return self.name == other.name


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        ({"a": [1, 2.0], "b": None}, {"b": None, "a": [1, 2.0]}, None),
        ({"a": [1, 2.0]}, {"a": [1, 2]}, ("['a'][1]", "2.0", "2")),
        (
            np.array([[1.0, np.nan], [0, 3]]),
            np.array([[1.0, np.nan], [0, 4]]),
            ("[1, 1]", 3.0, 4.0),
        ),
        (np.array([0.0]), np.array([-0.0]), ("[0]", 0.0, -0.0)),
        (float("nan"), -float("nan"), None),
        (np.zeros(1, np.int32), np.zeros(1, np.int64), ("", "int32[1] '[0]'", "int64[1] '[0]'")),
        (np.arange(10**6), np.arange(10**6)[::-1][::-1], None),
        ({"k" * 200: 1}, {"k" * 201: 1}, ("", "dict of 1", "dict of 1")),
        ({1: "x"}, {1: "x", 2: "y"}, ("", "dict of 1", "dict of 2")),
        ({"x", "y"}, {"y", "x"}, None),
        (Own("x"), Own("x"), None),
        (np.array(["a", [1]], object), np.array(["a", [2]], object), ("[1][0]", 1, 2)),
    ],
)
def test_values_are_compared_exactly_and_the_leaf_is_found(a, b, found):
    got = difference(leaves_of(a), leaves_of(b))
    assert (got and repr(got)) == (found and repr(found))
    assert isinstance(a, Own) or (digest_of(a) == digest_of(b)) == (found is None)


def test_definitions_of_a_script_are_verified_without_a_rerun(tmp_path):
    code = """
        import gristmill as grain

        class Words(grain.transforms.Map):
            def map(self, x):
                return sorted({f"{x}{letter}" for letter in "abc"})

        print("once")
        report = grain.verify(grain.MapDataset.range(9).map(Words()), steps=5)
        print(report.ok, {check.status for check in report.checks})

        class Sum(Words):
            total = [0]

            def map(self, x):
                self.total[0] += x
                return self.total[0]

        before = Sum.map, Sum.total
        print(grain.verify(grain.MapDataset.range(9).map(Sum()), steps=5).reason)
        print(before == (Sum.map, Sum.total), Sum.map.__globals__ is globals())
    """
    kept = "state is kept between calls: the attribute total of Sum"
    assert output(tmp_path, code) == ["once", "True {'passed'}", kept, "True True"]


def test_every_check_says_how_many_steps_it_had():
    report = grain.verify(grain.MapDataset.range(9).map(planted.squared), steps=5)
    steps = {check.name: (check.num_steps, check.num_wanted) for check in report.checks}
    assert report.ok and set(steps.values()) == {(5, 5)}, f"{report}"
    for check in report.checks:
        assert f"{check.name} " in str(report) and check.as_dict()["num_steps"] == 5
    assert str(report).count("  5 steps") == len(report.checks)
    partial = Check("ds[i]", "passed", 3, "", 5), Check("16 threads", "skipped", 0, "no time")
    assert [check.steps for check in partial] == ["3 of 5 steps", "0 steps"]
    assert "ds[i]       3 of 5 steps\n" in str(Report(True, partial, 5, 0.1))


def test_the_command_says_it_and_exits_with_one(tmp_path):
    (tmp_path / "pipeline.py").write_text(
        "import gristmill as grain\nmade_of_a_set = lambda:"
        " grain.MapDataset.source(list(set('abcdefgh'))).map(str).shuffle(seed=1)\nnumbers ="
        " grain.MapDataset.range(9).map(lambda x: print('noise') or x)\n"
    )

    def run(*arguments):
        command = [sys.executable, "-m", "gristmill", "verify", *arguments]
        process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        return process.returncode, process.stdout

    code, text = run("pipeline.py:made_of_a_set", "--json")
    found = json.loads(text)
    assert (code, found["ok"], found["stage"]) == (1, False, "SourceMapDataset(source=list)")
    assert "a set is iterated" in found["reason"] and len(found["values"]) == 2
    code, text = run("pipeline.py:numbers", "--steps", "5", "--seconds", "20")
    assert code == 0 and text.startswith("deterministic, as far as 5 steps show\n")
