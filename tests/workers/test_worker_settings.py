"""Logging and absl flags of workers are those of the program."""

import textwrap

import pytest
from programs import output

LOGS = """
import logging, os, sys
import gristmill
os.dup2(1, 2)
{setup}
log = logging.getLogger("train.data")
log.setLevel(logging.INFO)
def tell(x):
    log.info("element %d", x)
    log.debug("not this one")
    logging.getLogger("other").info("nor this one")
    return x
def init(index, count):
    {init}
options = gristmill.MultiprocessingOptions({workers}, executor="processes")
ds = gristmill.MapDataset.range(4).map(tell).to_iter_dataset().mp_prefetch(options, init)
assert list(ds) == [0, 1, 2, 3]
"""
PLAIN = "logging.basicConfig(format='%(message)s')"


def logged(folder, setup, *, workers=1, init="pass"):
    return sorted(output(folder, LOGS.format(setup=setup, init=init, workers=workers)))


def test_format_and_levels_are_those_of_the_program(tmp_path):
    lines = logged(
        tmp_path, "logging.basicConfig(format='%(levelname)s %(name)s: %(message)s')", workers=2
    )
    assert lines == [f"[worker {i % 2}] INFO train.data: element {i}" for i in (0, 2, 1, 3)]
    for style in ("format='{name}: {message}', style='{'", "format='$name: $message', style='$'"):
        # the only one
        assert (
            logged(tmp_path, f"logging.basicConfig({style})")[0] == "[worker] train.data: element 0"
        )
    # What users set up there stays.
    init = "logging.basicConfig(level=logging.INFO, format='mine: %(message)s')"
    assert logged(tmp_path, PLAIN, init=init)[0] == "mine: element 0"
    assert logged(tmp_path, "") == []  # a program that does not log has quiet workers


SETTINGS = """
from absl import flags
flags.DEFINE_integer('offset', 0, '')
def shift(x):
    return x + flags.FLAGS.offset
"""
FLAGS = """
    import sys
    from absl import app, flags
    import gristmill
    import settings
    FLAGS = flags.FLAGS
    SCALE = flags.DEFINE_integer("scale", 7, "")
    def show(ds):
        print(
            list(
                ds.to_iter_dataset().mp_prefetch(
                    gristmill.MultiprocessingOptions(num_workers=2, executor="processes")
                )
            )
        )
    def main(_):
        for scaled in (
            lambda x: x * SCALE.value,
            lambda x: x * FLAGS.scale,
            lambda x: x * flags.FLAGS.scale,
        ):
            show(gristmill.MapDataset.range(4).map(settings.shift).map(scaled))
    # flags are not parsed, and not needed
    show(gristmill.MapDataset.range(2).map(lambda x: (x, "absl" in sys.modules)))
    app.run(main)
"""


def test_flags_of_the_main_module_and_of_others(tmp_path):
    pytest.importorskip("absl", reason="absl, which comes with the test extra, is not installed")
    (tmp_path / "settings.py").write_text(textwrap.dedent(SETTINGS))
    expected = ["[(0, False), (1, False)]"] + ["[50, 60, 70, 80]"] * 3
    assert output(tmp_path, FLAGS, "--scale=10", "--offset=5") == expected
