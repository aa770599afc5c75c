"""Classes that derive from Grain's private ones to read TFRecord files of an object store, as MaxText's do."""

from programs import output
from tfrecords import framed

RECORDS = [b"record %d" % i * i for i in range(8)]

PIPELINE = """
import grain.python as grain
from grain._src.python.dataset.sources.tfrecord_dataset import _TFRecordDatasetIterator, _TFRecordReader
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

PROGRAM = """
import gc, warnings
import gristmill
gristmill.install_as_grain()
warnings.simplefilter("ignore", DeprecationWarning)
import grain.python as grain
import pipeline

it, local = iter(pipeline.BlobDataset("gs://bucket/0")), iter(grain.experimental.TFRecordIterDataset("bucket/0"))
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
    paths = grain.MapDataset.source([f"{prefix}bucket/{i}" for i in range(3)]).shuffle(seed=1).repeat(2)
    ds = grain.experimental.InterleaveIterDataset(paths.map(cls), cycle_length=2)
    return grain.experimental.WindowShuffleIterDataset(ds, window_size=5, seed=0).batch(4, batch_fn=list)

blobs, files = dataset(pipeline.BlobDataset, "gs://"), dataset(grain.experimental.TFRecordIterDataset, "")
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
        (bucket / f"{i}").write_bytes(b"".join(map(framed, RECORDS[i:])))
    first, second, third = map(framed, [b"first", b"second", b"third"])
    (bucket / "damaged").write_bytes(first + second[:-1] + b"x" + third)
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    program = f"import os; os.chdir({str(tmp_path)!r})\n{PROGRAM}"
    assert output(tmp_path, program) == [
        "the end 9",
        "[False] BlobIterator(gs://bucket/0)",
        "[True, True]",
        "b'first' True ValueError: gs://bucket/damaged is damaged or not a valid TFRecord file: "
        "the record at byte 21 has a wrong checksum of its data",
        "b'third' None ValueError: BlobIterator(gs://bucket/damaged) is closed",
        "FileNotFoundError: [Errno 2] No such file or directory: 'bucket/missing'",
        "42",
    ]
