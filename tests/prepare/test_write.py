"""Files are the same for all numbers of workers and hosts; reading gives what was written."""

import json
import threading

import numpy as np
import pytest
from refusing import assert_raises
from written import check_files_in_work, contents, element, packed, sparse, stream

import gristmill as grain
from gristmill.dataset.descriptions.equality import are_equal
from gristmill.prepare.files import ElementError
from gristmill.prepare.formats import NAMES
from gristmill.prepare.local import LocalFolder
from gristmill.prepare.manifest import ManifestError


def packed_one(ds):
    """A stream that is computed from its beginning."""
    return ds.to_iter_dataset().batch(1, batch_fn=lambda x: x[0])


def row(i):
    return {
        "id": i,
        "text": f"é {i}",
        "score": i / 3,
        "is_even": i % 2 == 0,
        "tokens": np.arange(i % 5, dtype=np.uint16),
        "image": np.full((2, 3), i, np.float32),
        "label": np.int8(i % 7),
        "flags": np.arange(i % 3) > 0,
        "parts": [{"name": "a", "sizes": [i, 1]}],
    }


def sample(i):
    picture = bytes([i]) * 700
    return {"jpg": picture, "cls": i, "txt": f"é {i}", "meta.json": {"a": [i, None]}}


def features(i):
    return {
        "id": i,
        "text": f"é {i}",
        "raw": bytes([i]),
        "image": np.full((2, 3), i, np.float32),
        "tokens": np.arange(i % 5, dtype=np.uint16),
        "label": np.int8(i % 7),
        "flags": np.arange(i % 3) > 0,
        "flag": np.bool_(i % 2),
    }


def packed_again(ds):
    """A stream that has no ranges."""
    return ds.to_iter_dataset().batch(1, batch_fn=lambda x: x[0])


def same(read, written):
    return are_equal(read, written) and [type(x) for x in read] == [type(x) for x in written]


PIPELINES = {"map with holes": sparse, "stream of ranges": stream, "stream": packed}


@pytest.mark.parametrize("make", PIPELINES.values(), ids=list(PIPELINES))
def test_the_same_bytes_for_any_number_of_workers(tmp_path, make):
    expected = list(make())
    for workers in (0, 1, 2):
        report = grain.write(make(), tmp_path / str(workers), records_per_file=17, workers=workers)
        assert contents(tmp_path / "0") == contents(tmp_path / str(workers))
        assert report.complete and report.records == report.new_records == len(expected)
        assert {file.name for file in report.files} | {"manifest.json"} == contents(
            tmp_path / "0"
        ).keys()
    assert len(report.files) > 1
    assert are_equal(list(grain.read(tmp_path / "2")), expected)


def test_slow_elements_are_computed_by_threads(tmp_path):
    threads, written_by = {}, threading.get_ident()

    def work(i):
        threads[i] = threading.get_ident()
        return {"id": i, "sum": sum(range(5_000)) if 200 <= i < 500 else 0}

    ds = grain.MapDataset.range(700).map(work)
    arguments = {"format": "jsonl", "records_per_file": 350}
    grain.write(ds, tmp_path / "whole", **arguments)
    assert [threads[i] == written_by for i in (0, 1, 350, 351)] == [True] * 4  # which are timed
    assert written_by not in [threads[i] for i in (*range(270, 350), *range(352, 500))]
    for workers in (1, 2):
        grain.write(ds, tmp_path / str(workers), workers=workers, **arguments)
        assert contents(tmp_path / str(workers)) == contents(tmp_path / "whole")
    assert are_equal(list(grain.read(tmp_path / "whole")), list(ds))


@pytest.mark.parametrize("make", [sparse, packed], ids=["ranges", "stream"])
def test_the_same_bytes_for_any_number_of_hosts(tmp_path, make):
    grain.write(make(), tmp_path / "1", records_per_file=9)
    for count in (2, 4):
        folder = tmp_path / str(count)
        for index in (*range(1, count), 1, 0):
            report = grain.write(
                make(), folder, records_per_file=9, shard=grain.ShardOptions(index, count)
            )
            assert report.complete == (index == 0)
        assert contents(folder) == contents(tmp_path / "1")


def numbers(dtype):
    return lambda i: np.arange(i % 4, dtype=dtype)


LEVEL = {"compression": "zstd:9", "group_size": 2}
FUNCTIONS = {"codec": (str.encode, bytes.decode)}
FORMATS = [
    pytest.param("array_record", element, {}, id="array_record"),
    pytest.param("array_record", lambda i: bytes([i]) * i, LEVEL, id="bytes"),
    pytest.param("array_record", lambda i: {"a": [i, "b"]}, {"codec": "json"}, id="json"),
    pytest.param("array_record", str, FUNCTIONS, id="functions"),
    pytest.param("jsonl", row, {}, id="jsonl"),
    pytest.param("jsonl", lambda i: [i, None], {"compression": "gzip"}, id="jsonl.gz"),
    pytest.param("jsonl", row, {"compression": "zstd"}, id="jsonl.zst"),
    pytest.param("parquet", row, {"row_group_size": 4}, id="parquet"),
    pytest.param("parquet", row, {"compression": "none"}, id="parquet plain"),
    pytest.param("parquet", lambda i: {"x": np.full((i, 2, 1, 3), i)}, {}, id="4 axes"),
    pytest.param("tar", sample, {}, id="tar"),
    pytest.param("tar", lambda i: {"__key__": f"a/{i}", "x.npy": np.eye(2) * i}, {}, id="keys"),
    pytest.param("megatron", numbers(np.uint16), {}, id="megatron"),
    pytest.param("npy", lambda i: np.full(5, i, np.int32), {}, id="npy"),
    pytest.param("tfrecord", features, {"codec": "example"}, id="tfrecord"),
    pytest.param("tfrecord", lambda i: bytes(i), {}, id="tfrecord bytes"),
    pytest.param("bagz", element, {}, id="bagz"),
    pytest.param("bagz", lambda i: bytes(i), {"compression": "none"}, id="bag"),
]


@pytest.mark.parametrize(("format", "make", "options"), FORMATS)
def test_reading_gives_what_was_written(tmp_path, format, make, options):
    ds = grain.MapDataset.range(30).map(make)
    report = grain.write(ds, tmp_path, format=format, records_per_file=8, **options)
    read = grain.read(tmp_path)
    assert same([*read], [*ds]) and same(
        [read[i] for i in (29, 0, 17)], [ds[i] for i in (29, 0, 17)]
    )
    manifest = json.loads((tmp_path / "manifest.json").read_bytes())
    assert [(file["name"], file["records"]) for file in manifest["files"]] == [
        (f.name, f.records) for f in report.files
    ]
    files = [file for file in report.files if file.records]  # those of Megatron have an index each
    assert [file.records for file in files] == [8, 8, 8, 6] and manifest["records"] == 30
    grain.verify_files(tmp_path)
    if isinstance(made := read[3], dict) and isinstance(made.get("image"), np.ndarray):
        made["image"][:] = 0  # elements may be changed in place
        assert are_equal(read[3], ds[3])
    [record] = grain.explain(read, step=13).records
    assert (record.source, record.record_key) == (str(tmp_path / files[1].name), 5)


def test_other_readers_find_what_they_expect(tmp_path):
    """MessagePack, written out by hand from its specification and Flax's extension types."""
    report = grain.write(
        grain.MapDataset.source([{"x": np.array([[1, 258, 3]], np.int16), "t": (True,)}]), tmp_path
    )
    [record] = grain.sources.ArrayRecordDataSource(tmp_path / report.files[0].name)
    array = b"\x93\x92\x01\x03\xa5int16\xc4\x06\x01\x00\x02\x01\x03\x00"  # [[1, 3], "int16", bytes]
    assert record == b"\x82\xa1x\xc7" + bytes([len(array), 1]) + array + b"\xa1t\xd5\x04\x91\xc3"


def test_examples_are_those_of_tensorflow(tmp_path):
    """An example, written out by hand from the definition of the message and of the frame."""
    ds = grain.MapDataset.source([{"a": np.array([1, 300])}])
    report = grain.write(ds, tmp_path, format="tfrecord", codec="example")
    [record] = grain.experimental.TFRecordIterDataset(str(tmp_path / report.files[0].name))
    assert record == b"\x0a\x0e\x0a\x0c\x0a\x01a\x12\x07\x1a\x05\x0a\x03\x01\xac\x02"


def test_files_end_where_the_arguments_say(tmp_path):
    ds = grain.MapDataset.range(1000).map(lambda i: bytes(100))
    by_bytes = grain.write(ds, tmp_path / "a", bytes_per_file=25_000)
    assert [file.records for file in by_bytes.files] == [250] * 4
    assert len(grain.write(ds, tmp_path / "b").files) == 1
    empty = grain.write(grain.MapDataset.source([]), tmp_path / "c")
    assert (empty.files, empty.complete, len(grain.read(tmp_path / "c"))) == ([], True, 0)
    holes = grain.MapDataset.range(30).filter(lambda i: i >= 20).map(lambda i: bytes([i]))
    assert [
        file.name for file in grain.write(holes, tmp_path / "d", records_per_file=10).files
    ] == ["part-000002.array_record"]
    assert [*grain.read(tmp_path / "d")] == [bytes([i]) for i in range(20, 30)]


def are_kept(before, folder):
    """True if all files but the manifest have the contents that they had before."""
    return all(contents(folder)[name] == before[name] for name in before if name[0] != "m")


def test_appending_leaves_files_of_before_as_they_are(tmp_path):
    old = grain.MapDataset.range(25).map(row)
    grain.write(old, tmp_path, format="parquet", records_per_file=10)
    before = contents(tmp_path)
    for new in (
        grain.MapDataset.range(5).map(row),
        grain.MapDataset.range(25, 40).map(row).to_iter_dataset().batch(1, batch_fn=lambda x: x[0]),
    ):
        report = grain.write(new, tmp_path, format="parquet", records_per_file=10, append=True)
        again = grain.write(new, tmp_path, format="parquet", records_per_file=10, append=True)
        assert (again.new_files, again.records) == (0, report.records)
    assert report.records == 45 and len(report.files) == 6
    assert are_kept(before, tmp_path)
    expected = [row(i) for i in (*range(25), *range(5), *range(25, 40))]
    assert are_equal([*grain.read(tmp_path)], expected)
    assert_raises(ManifestError, "format .*'parquet'", grain.write, old[:3], tmp_path, append=True)
    empty, options = old.map(lambda x: {}), {"format": "parquet", "append": True}
    assert_raises(ElementError, "element 0 .*columns", grain.write, empty, tmp_path, **options)

    assert len(grain.read(tmp_path)) == 45  # nothing was begun


@pytest.mark.parametrize("make", [lambda ds: ds, packed_again], ids=["ranges", "stream"])
def test_an_append_that_cannot_be_finished_is_given_up(tmp_path, make):
    arguments = {"format": "jsonl", "records_per_file": 20}
    grain.write(grain.MapDataset.range(25).map(lambda i: {"id": i}), tmp_path, **arguments)
    before = contents(tmp_path)
    odd = make(grain.MapDataset.range(90).map(lambda i: {"id": i if i < 70 else Odd()}))
    good = make(grain.MapDataset.range(90).map(lambda i: {"id": -i}))
    for overwrite in (False, False, True):
        again = {**arguments, "append": True, "overwrite": overwrite}
        assert_raises(ElementError, "element 70", grain.write, odd, tmp_path, **again)
        message = "give it up by overwrite=True with append=True"
        options = again | {"overwrite": False}
        assert_raises(ManifestError, message, grain.write, good, tmp_path, **options)
    report = grain.write(good, tmp_path, append=True, overwrite=True, **arguments)
    assert report.complete and are_kept(before, tmp_path)
    expected = [*range(25), *[-i for i in range(90)]]
    assert [x["id"] for x in grain.read(tmp_path)] == expected
    grain.write(good, tmp_path, append=True, overwrite=True, **arguments)  # it is finished
    assert len(grain.read(tmp_path)) == len(expected)


@pytest.mark.parametrize("format", NAMES)
def test_the_first_records_may_be_appended(tmp_path, format):
    row = np.ones(2, np.int32) if format in ("megatron", "npy") else {"id": 3}
    grain.write(grain.MapDataset.source([]), tmp_path, format=format)
    ds = grain.MapDataset.source([row] * 3)
    assert grain.write(ds, tmp_path, format=format, append=True).records == 3
    assert are_equal(grain.read(tmp_path)[2], row)


def test_faults_are_in_the_manifest(tmp_path):
    def parsed(i):
        if i in (7, 23):
            raise ValueError("no JSON")
        return bytes([i])

    ds = grain.MapDataset.range(30).map(parsed)
    assert_raises(ValueError, "no JSON", grain.write, ds, tmp_path, records_per_file=10)
    assert contents(tmp_path).keys() == {"manifest.json", ".unfinished"}
    elements = ds.to_iter_dataset().tolerate(max_total=3, max_rate=None)
    for tolerant in (ds.tolerate(max_total=3), elements.batch(1, batch_fn=lambda x: x[0])):
        report = grain.write(tolerant, tmp_path, records_per_file=10, overwrite=True)
        assert report.faults["total"] == 2
        assert [x["record_key"] for x in report.faults["last"]] == [7, 23]
        manifest = json.loads((tmp_path / "manifest.json").read_bytes())
        assert manifest["parts"][0]["faults"] == report.faults
        assert "2 elements were skipped" in str(report) and len(grain.read(tmp_path)) == 28


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("make", [lambda ds: ds, packed_one], ids=["ranges", "stream"])
def test_larger_limits_continue_a_folder_that_exceeded_its(tmp_path, make, workers):
    def parsed(i):
        return bytes([1 // (i % 15 != 14), i])

    ds = make(grain.MapDataset.range(40).map(parsed))
    arguments = {"records_per_file": 10, "workers": workers}
    with pytest.raises(grain.FaultBudgetError) as raised:
        grain.write(ds.tolerate(max_total=0, max_rate=None), tmp_path, **arguments)
    text = "Look at the records, or allow more. Finished files stay. Call write again with larger"
    assert text in str(raised.value) and "it.skip" not in str(raised.value)
    assert raised.value.last[0].record_key == 14
    more = ds.tolerate(max_total=2, max_rate=None)
    assert grain.write(more, tmp_path, **arguments).records == 38


def test_another_pipeline_is_refused_with_what_differs(tmp_path):
    def scaled(factor):
        return grain.MapDataset.source(np.arange(30)).map(lambda x: bytes([x % factor]))

    grain.write(scaled(7), tmp_path, records_per_file=10)
    before = contents(tmp_path)
    other_source = grain.MapDataset.source(np.arange(1, 31)).map(bytes)
    other_stage = "the last stage was 'MapMapDataset' .* is 'SliceMapDataset' here. Use another"
    for ds, arguments, text in [
        (scaled(8), {}, "code or the data of MapMapDataset differ: .*<lambda>"),
        (other_source, {}, "code or the data of SourceMapDataset"),
        (scaled(7)[:20], {}, other_stage),
        (scaled(7), {"compression": "zstd"}, "options was"),
        (scaled(7), {"records_per_file": 11}, "records_per_file was 10, and is 11"),
        (scaled(7), {"format": "jsonl"}, "format was 'array_record', and is 'jsonl'"),
    ]:
        options = {"records_per_file": 10, **arguments}
        assert_raises(ManifestError, text, grain.write, ds, tmp_path, **options)
    assert contents(tmp_path) == before
    assert grain.write(scaled(7), tmp_path, records_per_file=10).new_files == 0
    assert grain.write(scaled(8), tmp_path, records_per_file=10, overwrite=True).new_files == 3


@pytest.mark.parametrize("is_complete", [True, False], ids=["complete", "unfinished"])
def test_files_that_were_changed_are_refused(tmp_path, is_complete):
    shards = [None] if is_complete else [grain.ShardOptions(0, 2)]
    for shard in shards:
        report = grain.write(sparse(), tmp_path, records_per_file=30, shard=shard)
    file = tmp_path / report.files[0].name
    content = file.read_bytes()
    for changed, text in [
        (content[:-1], "has .* bytes"),
        (b"x" + content[1:], "has another checksum"),
    ]:
        file.write_bytes(changed)
        message, options = f"{file.name} was changed .*{text}", {"records_per_file": 30}
        assert_raises(ManifestError, message, grain.write, sparse(), tmp_path, **options)
        if is_complete:
            assert_raises(ManifestError, text, grain.verify_files, tmp_path)
    file.write_bytes(content)
    assert grain.write(sparse(), tmp_path, records_per_file=30).complete


def test_progress_shows_files_in_work_and_how_to_read(tmp_path, capsys):
    check_files_in_work(LocalFolder(str(tmp_path)))
    for _ in range(2):
        report = grain.write(sparse(), tmp_path, records_per_file=30, progress=True)
        shown = capsys.readouterr().err
        assert "writing: " in shown or not report.new_files
        assert shown.endswith(f"{report}\n") and "read them with gristmill.read(" in shown


def test_files_of_others_stay(tmp_path):
    (tmp_path / "part-000001.array_record").write_bytes(b"of another program")
    message, options = "part-000001.* was not written here", {"records_per_file": 30}
    assert_raises(ManifestError, message, grain.write, sparse(), tmp_path, **options)
    grain.write(sparse(10), tmp_path, overwrite=True)
    assert (tmp_path / "part-000001.array_record").read_bytes() == b"of another program"


class Odd:
    pass


class Named(str):
    pass


def nested(depth):
    value = [1]
    for _ in range(depth):
        value = [value]
    return value


MASKED = np.ma.masked_array([1.0, 2.0], [False, True])


OBJECTS = np.array([None])
# The format, an element that it holds, one that it does not, and the text of the error.
ELEMENTS = [
    pytest.param("array_record", {"a": 1}, {"a": Odd()}, "Odd: make arrays", id="object"),
    pytest.param("array_record", {"a": 1}, {"a": OBJECTS}, "dtype object", id="array of objects"),
    pytest.param("array_record", {"a": 1}, {"a": 1 << 64}, "64 bits", id="large integer"),
    pytest.param("array_record", b"a", "a", "must be bytes", id="no bytes"),
    pytest.param("array_record", {"a": 1}, {"a": MASKED}, "mask as two arrays", id="mask"),
    pytest.param("array_record", [1], [nested(3000)], "deeply, .*: change it by", id="deep"),
    pytest.param("jsonl", {"a": 1.0}, {"a": float("nan")}, "no NaN", id="NaN in JSON"),
    pytest.param("jsonl", {"a": 1}, {"a": b"b"}, "bytes", id="bytes in JSON"),
    pytest.param("jsonl", {"a": 1}, {"a": (1, 2)}, "tuples to lists", id="tuple in JSON"),
    pytest.param("jsonl", {"a": np.int8(1)}, {"a": np.int16(1)}, "NumPy scalar .i2", id="dtype"),
    pytest.param("jsonl", [1], [Named("a")], "Named", id="subclass in JSON"),
    pytest.param("jsonl", [1], [nested(3000)], "deeply, .*: change it by", id="deep in JSON"),
    pytest.param("parquet", {"a": 1.5}, {"a": 1}, "is double in the first elements", id="integer"),
    pytest.param("parquet", {"a": 1}, {"a": None}, "None only", id="None among numbers"),
    pytest.param("parquet", {"a": {"b": 1}}, {"a": {}}, "cannot hold {}", id="struct, no field"),
    pytest.param("parquet", {"a": 1}, {"b": 1}, "must have the columns", id="other column"),
    pytest.param("parquet", {"a": np.eye(2)}, {"a": np.ones((2, 4))}, "any, 4", id="other shape"),
    pytest.param(
        "parquet", {"a": "a"}, {"a": "\ud800"}, "not valid Unicode: repair", id="surrogate"
    ),
    pytest.param("parquet", {"a": np.ones(2)}, {"a": MASKED}, "MaskedArray", id="mask, table"),
    pytest.param("parquet", {"a": 1}, {"a": OBJECTS}, "make arrays of numbers", id="objects"),
    pytest.param("tar", {"a": 1}, {"a": "1"}, "'text', and 'json' in the", id="other kind"),
    pytest.param("tar", {"a": 1}, {"A": 1}, "small letters", id="capital extension"),
    pytest.param("tar", {"a": 1}, {"a": 1.5}, "bytes, a text", id="float in tar"),
    pytest.param("tar", {"a": np.ones(2)}, {"a": MASKED}, "MaskedArray", id="mask in tar"),
    pytest.param("megatron", np.ones(2, "u2"), [70_000], "range of uint16", id="large token"),
    pytest.param("megatron", [1], [1.5], "array of integers", id="no token"),
    pytest.param("megatron", [1], [1 << 64], "64 bits, got .* a map before", id="no int64"),
    pytest.param("megatron", [1], [[1], [2, 3]], "one-dimensional .* a map before", id="ragged"),
    pytest.param("megatron", [1, 2], MASKED.astype(int), "MaskedArray", id="mask in megatron"),
    pytest.param("npy", [1, 2], [1], "2 tokens", id="short row"),
    pytest.param("npy", [1, 2], MASKED.astype(int), "MaskedArray", id="mask in npy"),
]


@pytest.mark.parametrize(("format", "good", "wrong", "text"), ELEMENTS)
def test_an_element_that_cannot_be_held_is_named(tmp_path, format, good, wrong, text):
    ds = grain.MapDataset.range(200).map(lambda i: wrong if i == 150 else good)
    shuffled = ds.map(lambda x: x).slice(slice(None, None, -1))
    message, options = f"element 49 \\(record 150\\) .*{text}", {"records_per_file": 20}
    assert_raises(ElementError, message, grain.write, shuffled, tmp_path, format=format, **options)
    names = sorted(name for name in contents(tmp_path) if name.startswith("part"))
    assert {name.partition(".")[0] for name in names} == {"part-000000", "part-000001"}


@pytest.mark.parametrize("wrong", [None, {"a": Odd()}], ids=["None", "object"])
def test_an_element_of_a_stream_is_named_with_its_records(tmp_path, wrong):
    ds = grain.MapDataset.range(60).seed(1).shuffle()
    skipped, odd, next_one = ds[41], ds[47], ds[48]

    def change(x):
        return wrong if x == odd else {"a": x}

    def fail_once(x):
        return x if x != skipped else 1 // 0

    ds = ds.map(fail_once).tolerate(max_total=1)
    elements = ds.to_iter_dataset().map(change)
    singles = elements.batch(1, batch_fn=lambda x: x[0])
    pairs = elements.batch(2, batch_fn=lambda pair: pair if all(pair) else None)
    cases = [
        (elements, f"element 6 of those at 40 to 49 \\(record {odd}\\)"),
        (singles, f"element 46 of the stream \\(record {odd}\\)"),
        (pairs, f"element 23 of the stream \\(records {odd}, {next_one}\\)"),
    ]
    if wrong is not None:  # None is a hole of a MapDataset
        cases.append((ds.map(change), f"element 6 of those at 40 to 49 \\(record {odd}\\)"))
    for i, (pipeline, name) in enumerate(cases):
        folder, options = tmp_path / str(i), {"records_per_file": 10}
        message = f"{name} cannot be written"
        assert_raises(ElementError, message, grain.write, pipeline, folder, **options)


ENDLESS = grain.MapDataset.range(3).repeat()
GROWING = grain.MapDataset.range(9).map(lambda i: {"a": np.ones((2, 1 + i // 6))})
WITH_SET = grain.MapDataset.range(9).map(lambda i: {"a": {1} if i == 4 else 1})
GROWN = r"element 6 \(record 6\) .* \(any, 2\), and an array <f8 \(any, 1\)"
HOSTS = {"overwrite": True, "shard": grain.ShardOptions(0, 2)}
NO_ROW = "element 0 .*must be a list or a one-dimensional array"
NO_AXIS = r"element 0 .*an array of dtype int64 and shape \(\)"


def of(element):
    return grain.MapDataset.source([element] * 3)


ARGUMENTS = [
    ({"ds": [1]}, TypeError, "MapDataset.source"),
    ({"ds": ENDLESS}, ValueError, "does not end"),
    ({"format": "csv"}, ValueError, "format must be one of .*'parquet'"),
    ({"group_sise": 2}, TypeError, "group_sise is no option .* group_size"),
    ({"format": "jsonl", "compression": "xz"}, ValueError, "compression must be"),
    ({"compression": "xz"}, ValueError, "Unknown option xz|compression must"),
    ({"format": "parquet", "codec": "json"}, ValueError, "codec must be None"),
    ({"codec": "yaml"}, ValueError, "codec must be one of"),
    ({"records_per_file": 0}, ValueError, "records_per_file"),
    ({"records_per_file": 1, "bytes_per_file": 1}, ValueError, "together"),
    ({"workers": -1}, ValueError, "workers"),
    ({"shard": 3}, TypeError, "ShardByJaxProcess"),
    ({"path": 3}, TypeError, "path must be a folder"),
    ({"path": "https://a/x"}, ValueError, "object store"),
    ({"path": "other://a/x"}, ValueError, "object store"),
    ({"path": "s3://bucket/a[0:3]"}, ValueError, "without empty parts, got"),
    ({"path": "s3://bucket/{a,b}"}, ValueError, "without empty parts, got"),
    ({"path": "s3://bucket/a*"}, ValueError, "without empty parts, got"),
    ({"path": "s3://bucket/a//b"}, ValueError, "without empty parts, got"),
    ({"path": ""}, ValueError, "path must be a folder"),
    ({"path": __file__}, ValueError, "got the file"),
    ({"path": f"{__file__}/x"}, OSError, "can be written to, got"),
    ({"overwrite": "no"}, TypeError, "overwrite must be True or"),
    ({"progress": 0}, TypeError, "True, False or None"),
    ({"path": "a,b", "format": "bagz"}, ValueError, "must have no comma"),
    (HOSTS, ValueError, "before the hosts start"),
    ({"format": "parquet", "compression": "xz"}, ValueError, "one of|compression must be 'none'"),
    ({"format": "parquet", "compression": "snappy:3"}, ValueError, "without a level"),
    ({"format": "parquet", "compression": "zstd:99"}, ValueError, r"level in \[-?\d+, 22\]"),
    ({"ds": GROWING, "format": "parquet"}, ElementError, GROWN),
    ({"ds": WITH_SET, "format": "parquet"}, ElementError, r"element 4 \(record 4\) .* type set"),
    ({"ds": of(3), "format": "megatron"}, ElementError, NO_ROW),
    ({"ds": of(np.array(3)), "format": "npy"}, ElementError, NO_AXIS),
    ({"ds": of({}), "format": "parquet"}, ElementError, "element 0 .*must have a column"),
]


@pytest.mark.parametrize(("arguments", "error", "text"), ARGUMENTS)
def test_arguments_that_are_wrong(tmp_path, arguments, error, text):
    given = {"ds": grain.MapDataset.range(3).map(lambda i: b"a"), "path": tmp_path, **arguments}
    assert_raises(error, text, grain.write, given.pop("ds"), given.pop("path"), **given)
    assert not [*tmp_path.glob("part*")]


def test_folders_that_cannot_be_read(tmp_path):
    assert_raises(ManifestError, "no manifest.json", grain.read, tmp_path)
    grain.write(sparse(), tmp_path, records_per_file=30, shard=grain.ShardOptions(0, 2))
    assert_raises(ManifestError, "not complete", grain.read, tmp_path)
    report = grain.write(sparse(), tmp_path, records_per_file=30)
    manifest, name = tmp_path / "manifest.json", report.files[0].name
    text = manifest.read_text()
    for old, new in [
        (text, "{"),
        (f'"{name}"', f'"../x/{name}"'),
        (f'"records": {report.files[0].records}', '"records": -1'),
        (f'"bytes": {report.files[0].bytes}', '"bytes": "1"'),
    ]:
        assert old in text
        manifest.write_text(text.replace(old, new))
        for function in (grain.read, grain.verify_files):
            assert_raises(ManifestError, "damaged.*Use another folder", function, tmp_path)


def test_a_tilde_is_the_folder_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    report = grain.write(grain.MapDataset.range(3).map(lambda i: b"a"), "~/written")
    assert report.path == str(tmp_path / "written") and len(grain.read("~/written")) == 3
    assert len(list(grain.MapDataset.range(3).cache("~/kept"))) == 3
    assert (tmp_path / "kept").is_dir() and grain.verify_files("~/written") is None
