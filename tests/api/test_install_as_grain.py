"""Programs that were written for Grain, after ``install_as_grain`` or under ``run-as-grain``."""

import subprocess
import sys

import pytest
from programs import output
from tfrecords import framed


def check(folder, script, *arguments):
    assert output(folder, script, *arguments) == []


def test_modules_and_names_are_ours_also_in_pickles(tmp_path):
    script = """
        import importlib, importlib.util, pickle
        import gristmill
        gristmill.install_as_grain()
        gristmill.install_as_grain()
        from absl import flags
        from grain import *
        assert MapDataset is gristmill.MapDataset and experimental is gristmill.experimental
        import grain
        import grain.python as pygrain
        import grain.samplers
        from grain import transforms
        from grain.python import experimental
        from grain.python.experimental import index_shuffle
        assert (
            grain.MapDataset is gristmill.MapDataset
            and pygrain is gristmill.python
            and transforms is gristmill.transforms
        )
        assert (
            experimental is pygrain.experimental
            and index_shuffle is gristmill.experimental.index_shuffle
        )
        assert [batch.tolist() for batch in grain.load([1, 2, 3], num_epochs=1, batch_size=2)] == [
            [1, 2],
            [3],
        ]
        assert (grain.__version__, grain.__version_info__) == (
            "0.2.18",
            (0, 2, 18),
        ) and gristmill.__version__ != "0.2.18"
        flags.FLAGS(["program", "--grain_py_debug_mode", "--grain_tf_lookup_batch_size=3"])
        found = (
            grain.config.py_debug_mode,
            grain.config.tf_lookup_batch_size,
            grain.config.py_traceback_filtering,
        )
        assert found == (True, 3, "auto")
        assert "diagnose" in dir(grain) and not hasattr(grain, "no_such")
        assert not importlib.util.find_spec("grain.no_such") and not importlib.util.find_spec(
            "grain.core"
        )
        grain.monitoring.Counter("name").IncrementBy(3)
        for name in ("grain.core", "grain.no_such_module", "grain.samplers.index", "grainy"):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                assert error.name == name
            else:
                raise AssertionError(name)
        sampler = grain.samplers.IndexSampler(5, shuffle=True, seed=1)
        text = pickle.dumps(sampler)
        assert b"gristmill" in text and repr(pickle.loads(text)) == repr(sampler)
        for module in (grain.constants, pygrain, grain):
            name = module.__name__
            assert importlib.reload(module).__name__ == name == module.__spec__.name
        assert pickle.dumps(grain.Record).decode("latin1").count("gristmill") == 1
    """
    check(tmp_path, script)


@pytest.mark.parametrize("names", [("grain", "gristmill"), ("gristmill", "grain")])
def test_every_public_module_is_the_same_under_both_names(names, tmp_path):
    script = """
        import importlib, sys
        import gristmill
        gristmill.install_as_grain()
        first, second = sys.argv[1:]
        for name in (
            ".checkpoint",
            ".constants",
            ".experimental",
            ".monitoring",
            ".multiprocessing",
            ".python",
            ".python.experimental",
            ".samplers",
            ".sharding",
            ".sources",
            ".transforms",
        ):
            one, other = (
                importlib.import_module(first + name),
                importlib.import_module(second + name),
            )
            assert one is other, name
            assert one.__name__ == one.__spec__.name == "gristmill" + name, one.__spec__
            assert sys.modules["grain" + name] is sys.modules["gristmill" + name]
    """
    check(tmp_path, script, *names)


def test_private_names_are_public_objects_and_warn(tmp_path):
    script = """
        import importlib, operator, warnings
        import gristmill
        gristmill.install_as_grain()
        from gristmill.grain_src import _NAMES
        for path, names in _NAMES.items():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                module = importlib.import_module(f"grain._src.{path}")
                importlib.import_module(f"grain._src.{path}")
                for name, (public, where) in names.items():
                    found = getattr(module, name)
                    if (
                        public
                        == f"{where.removeprefix('gristmill').removeprefix('.')}.{name}".lstrip(".")
                    ):
                        assert found is operator.attrgetter(public)(gristmill), name
            (warning,) = [w for w in caught if "grain._src" in str(w.message)]
            assert warning.category is DeprecationWarning and "use " in str(warning.message)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from grain._src.core import tree
            from grain._src.python import data_loader
            from grain._src.python.dataset import dataset, stats
            from grain._src.python.dataset.transformations.prefetch import (
                MultiprocessPrefetchIterDataset,
            )
        assert (
            dataset.MapDataset is gristmill.MapDataset
            and data_loader._determine_worker_count(3) == 3
        )
        assert (
            tree.flatten({"b": 1, "a": [2, None]}) == [2, 1]
            and tree.flatten_with_path([5])[0][1] == 5
        )
        assert tree.unflatten_as({"a": [2, None], "b": 1}, [3, 4]) == {"a": [3, None], "b": 4}
        assert tree.map_structure(lambda x, y: x + y, {"a": (1, 2)}, {"a": (3, 4)}) == {"a": (4, 6)}
        assert not isinstance(gristmill.IterDataset.mp_prefetch, type)
        assert MultiprocessPrefetchIterDataset.__name__ == "MultiprocessPrefetchIterDataset"

        class Mine(dataset.MapDataset):
            @stats.record_next_duration_if_output
            def __len__(self):
                return 2

            @stats.trace_input_pipeline(stage_category="mine")
            def __getitem__(self, index):
                with self._stats.record_self_time(num_elements=1):
                    return self._stats.record_output_spec(index)

        assert (
            list(Mine()) == [0, 1]
            and stats.make_stats(stats.StatsConfig(name="x"), []).report() is None
        )

        def check_error(kind, text, call, *args):
            try:
                call(*args)
            except kind as error:
                assert text in str(error), error
                return error
            raise AssertionError(text)

        for name in ("grain._src.nothing", "grain._src.python.dataset.nothing"):
            error = check_error(
                ModuleNotFoundError,
                "What is public: grain.MapDataset",
                importlib.import_module,
                name,
            )
            assert error.name == name
        private = "is private in Grain, and gristmill has of it only MapDataset"
        check_error(AttributeError, private, getattr, dataset, "_Nothing")
        check_error(
            ValueError, "Structures are not the same:", tree.assert_same_structure, [1], (1,)
        )
    """
    check(tmp_path, script)


PROGRAM = """
import sys
import grain
import other

def square(x):
    return x * x

if __name__ == "__main__":
    ds = grain.MapDataset.range(4).map(square).to_iter_dataset()
    print(grain.MapDataset.__module__, sys.argv[1:], other.WORD)
    print(list(ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=1))))
    sys.exit(3)
"""


def test_programs_that_cannot_be_edited(tmp_path):
    (tmp_path / "other.py").write_text("WORD = 'found beside it'\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    for how in ([str(tmp_path / "program.py")], ["-m", "program"]):
        command = [sys.executable, "-m", "gristmill", "run-as-grain", *how, "--an-option", "x"]
        process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert process.returncode == 3, process.stderr
        first = "gristmill.dataset.bases.map ['--an-option', 'x'] found beside it"
        assert process.stdout.splitlines() == [first, "[0, 1, 4, 9]"]


def test_another_grain_matters_if_it_was_imported(tmp_path):
    (tmp_path / "grain").mkdir()
    (tmp_path / "grain" / "__init__.py").write_text("it_is = 'another grain'\n")
    script = """
        import sys
        import grain
        import gristmill
        try:
            gristmill.install_as_grain()
        except RuntimeError as error:
            print(error)
        print(grain.it_is, any("gristmill" in type(finder).__module__ for finder in sys.meta_path))
    """
    error, *rest = output(tmp_path, script)
    for part in (
        "real grain has been imported already",
        str(tmp_path),
        "before the first import of grain",
    ):
        assert part in error
    assert rest == ["another grain False"]
    (tmp_path / "grain" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    script = """
        import gristmill
        gristmill.install_as_grain()
        import grain.python
        assert grain.python is gristmill.python
    """
    check(tmp_path, script)


# Classes that derive from Grain's private ones to read TFRecord files of an object store, as
# MaxText's do.
BLOB_RECORDS = [b"record %d" % i * i for i in range(8)]

BLOB_PIPELINE = """
import grain.python as grain
from grain._src.python.dataset.sources.tfrecord_dataset import (
    _TFRecordDatasetIterator,
    _TFRecordReader,
)
from grain.experimental import TFRecordIterDataset

opened = []

class BlobReader(_TFRecordReader):
    def __init__(self, path: str):
        self._reader = open(path.removeprefix("gs://"), "rb")
        opened.append(self._reader)

class BlobIterator(_TFRecordDatasetIterator):
    def __init__(self, path: str):
        grain.DatasetIterator.__init__(self)
        self._reader = BlobReader(path)

class BlobDataset(TFRecordIterDataset):
    def __iter__(self) -> grain.DatasetIterator:
        return BlobIterator(self._path)
"""

BLOBS = """
import gc, warnings
import gristmill
gristmill.install_as_grain()
warnings.simplefilter("ignore", DeprecationWarning)
import grain.python as grain
import pipeline

it, local = (
    iter(pipeline.BlobDataset("gs://bucket/0")),
    iter(grain.experimental.TFRecordIterDataset("bucket/0")),
)
states = [it.get_state()]
for record in local:
    assert next(it) == record
    states.append(it.get_state())
    assert states[-1] == local.get_state()
print(next(it, "the end"), len(states))
for state in reversed(states):
    it.set_state(state)
    local.set_state(state)
    assert it.get_state() == state and list(it) == list(local)
print([file.closed for file in pipeline.opened], it)
it.close()
it.close()
dropped = iter(pipeline.BlobDataset("gs://bucket/0"))
next(dropped)
del dropped
gc.collect()
print([file.closed for file in pipeline.opened])

def failure(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}".partition(" (")[0]

it = iter(pipeline.BlobDataset("gs://bucket/damaged"))
print(next(it), failure(it.__next__) == failure(it.__next__), failure(it.__next__))
it.skip_failed()
print(next(it), it.close(), failure(it.__next__))
print(failure(lambda: iter(pipeline.BlobDataset("gs://bucket/missing"))))

def dataset(cls, prefix):
    paths = (
        grain.MapDataset.source([f"{prefix}bucket/{i}" for i in range(3)]).shuffle(seed=1).repeat(2)
    )
    ds = grain.experimental.InterleaveIterDataset(paths.map(cls), cycle_length=2)
    return grain.experimental.WindowShuffleIterDataset(ds, window_size=5, seed=0).batch(
        4, batch_fn=list
    )

blobs, files = (
    dataset(pipeline.BlobDataset, "gs://"),
    dataset(grain.experimental.TFRecordIterDataset, ""),
)
assert list(blobs) == list(files)
gristmill.testing.assert_equal_output_after_checkpoint(blobs)
options = grain.MultiprocessingOptions(num_workers=2)
assert list(blobs.mp_prefetch(options)) == list(files.mp_prefetch(options))
print(sum(map(len, blobs)))
"""


def test_subclasses_that_open_blobs_by_themselves(tmp_path):
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    for i in range(3):
        (bucket / f"{i}").write_bytes(b"".join(map(framed, BLOB_RECORDS[i:])))
    first, second, third = map(framed, [b"first", b"second", b"third"])
    (bucket / "damaged").write_bytes(first + second[:-1] + b"x" + third)
    (tmp_path / "pipeline.py").write_text(BLOB_PIPELINE)
    program = f"import os; os.chdir({str(tmp_path)!r})\n{BLOBS}"
    assert output(tmp_path, program) == [
        "the end 9",
        "[False] BlobIterator(gs://bucket/0)",
        "[True, True]",
        (
            "b'first' True ValueError: gs://bucket/damaged is damaged or not a valid TFRecord file:"
            " the record at byte 21 has a wrong checksum of its data"
        ),
        "b'third' None ValueError: BlobIterator(gs://bucket/damaged) is closed",
        "FileNotFoundError: [Errno 2] No such file or directory: 'bucket/missing'",
        "42",
    ]
