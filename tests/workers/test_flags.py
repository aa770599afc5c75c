"""The absl flags of a program reach its workers."""

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("absl", reason="absl, which comes with the test extra, is not installed")


def run(tmp_path, code, *args):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(code))
    done = subprocess.run([sys.executable, str(script), *args], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.split("\n")[:-1]


def test_flags_of_the_main_module_and_of_others(tmp_path):
    (tmp_path / "settings.py").write_text(
        "from absl import flags\nflags.DEFINE_integer('offset', 0, '')\ndef shift(x):\n    return x + flags.FLAGS.offset\n"
    )
    code = """
        import enum
        from absl import app, flags
        import gristmill
        import settings

        class Mode(enum.Enum):
            TWICE = 2
            THRICE = 3

        FLAGS = flags.FLAGS
        SCALE = flags.DEFINE_integer("scale", 1, "")
        flags.DEFINE_enum_class("mode", Mode.TWICE, Mode, "")

        def main(_):
            for scaled in (lambda x: x * SCALE.value, lambda x: x * FLAGS.scale, lambda x: x * flags.FLAGS.scale):
                ds = gristmill.MapDataset.range(4).map(settings.shift).map(scaled)
                ds = ds.map(lambda x: (x, flags.FLAGS.mode is Mode.THRICE))
                print(list(ds.to_iter_dataset().mp_prefetch(gristmill.MultiprocessingOptions(num_workers=2))))

        app.run(main)
    """
    expected = [str([(10 * (x + 5), True) for x in range(4)])] * 3
    assert run(tmp_path, code, "--scale=10", "--offset=5", "--mode=thrice") == expected


def test_flags_that_were_never_parsed_are_not_needed(tmp_path):
    code = """
        import sys
        from absl import flags
        import gristmill

        flags.DEFINE_integer("scale", 7, "")
        ds = gristmill.MapDataset.range(2).map(lambda x: (x, "absl" in sys.modules)).to_iter_dataset()
        print(list(ds.mp_prefetch(gristmill.MultiprocessingOptions(num_workers=1))))
    """
    assert run(tmp_path, code) == ["[(0, False), (1, False)]"]
