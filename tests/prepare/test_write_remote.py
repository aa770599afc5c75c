"""Folders of an object store: the same files as in a local one, in any order of writers."""

import signal
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from refusing import assert_raises
from written import check_appends_at_once, check_files_in_work, contents, packed, sparse

import gristmill as grain
from gristmill.dataset.descriptions.equality import are_equal
from gristmill.prepare.manifest import ManifestError
from gristmill.prepare.remote import RemoteFolder

pytest.importorskip("obstore")
pytest.importorskip("moto")

from servers import CutConnections, retry_quickly, s3_bucket


@pytest.fixture(scope="module")
def bucket():
    with s3_bucket() as bucket:
        yield bucket


def table(num=100):
    return grain.MapDataset.range(num).map(lambda i: {"id": i, "text": f"é {i}"})


def tokens(num=100):
    return grain.MapDataset.range(num).map(lambda i: np.full(5, i, np.uint16))


def objects(bucket, prefix):
    """The contents of a folder of a bucket, by name."""
    import obstore

    store = obstore.store.from_url(bucket.url)
    pages = obstore.list(store, prefix)
    return {
        found["path"].removeprefix(f"{prefix}/"): bytes(obstore.get(store, found["path"]).bytes())
        for page in pages
        for found in page
    }


@pytest.mark.parametrize(
    ("make", "format"),
    [
        pytest.param(sparse, "array_record", id="ranges"),
        pytest.param(packed, "tfrecord", id="stream"),
        *[pytest.param(table, format, id=format) for format in ("parquet", "jsonl", "tar")],
        *[pytest.param(tokens, format, id=format) for format in ("megatron", "npy")],
        pytest.param(sparse, "bagz", id="bagz"),
    ],
)
def test_a_folder_of_a_bucket_is_like_a_local_one(tmp_path, bucket, monkeypatch, make, format):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = f"{bucket.url}/{format}"
    arguments = {"format": format, "records_per_file": 20}
    grain.write(make(), tmp_path / "local", **arguments)
    if make is sparse:
        shard = grain.ShardOptions(1, 2)
        assert not grain.write(make(), url, shard=shard, workers=1, **arguments).complete
    report = grain.write(make(), url, **arguments)
    assert report.complete and objects(bucket, format) == contents(tmp_path / "local")
    assert grain.write(make(), url, **arguments).new_files == 0
    grain.verify_files(url)
    expected = grain.read(tmp_path / "local")
    read = grain.read(url)
    assert are_equal([*read], [*expected])
    assert_raises(ManifestError, "of another pipeline", grain.write, make(30), url, **arguments)
    name = report.files[0].name
    bucket.put(f"{format}/{name}", objects(bucket, format)[name][:-1] + b"x")
    assert_raises(ManifestError, f"{name} was changed", grain.verify_files, url)
    assert grain.write(make(30), url, overwrite=True, **arguments).complete
    assert {*objects(bucket, format)} == {
        "manifest.json",
        *[x.name for x in grain.write(make(30), url, **arguments).files],
    }


def test_of_two_appends_at_once_one_is_refused(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    check_appends_at_once(f"{bucket.url}/appends")


def test_a_lost_connection_is_an_error_with_a_remedy(bucket, monkeypatch):
    retry_quickly(monkeypatch)
    ds = grain.MapDataset.range(40).map(lambda i: bytes([i]) * 20_000)
    arguments = {"format": "tfrecord", "records_per_file": 10}
    lost = f"{bucket.url}/lost"
    for what, limit in [("up", 500_000), ("down", 300_000)]:
        with CutConnections(bucket.endpoint, what, limit) as endpoint:
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
            text = "Check the address, .* call again: finished files stay"
            if what == "up":
                assert_raises(OSError, text, grain.write, ds, lost, **arguments)
            else:
                assert_raises(OSError, text, grain.verify_files, lost)
        monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)
        if what == "up":
            assert 0 < grain.write(ds, lost, **arguments).new_files < 4
        grain.verify_files(lost)


KILLED = """
import os, signal, sys
from gristmill.prepare.remote import RemoteFolder

with RemoteFolder(sys.argv[1]).workspace("part-000001") as folder:
    (folder / "left").write_bytes(bytes(100))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_files_of_killed_processes_are_removed(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    folder = RemoteFolder(f"{bucket.url}/work")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False)
    assert killed.returncode == -signal.SIGKILL and folder.unfinished_sizes() == [100]
    with folder.workspace("part-000002") as workspace:
        (workspace / "part").write_bytes(bytes(10))
        with RemoteFolder(str(folder)).workspace("part-000003"):
            assert sorted(folder.unfinished_sizes()) == [0, 10]
            assert RemoteFolder(f"{bucket.url}/other").unfinished_sizes() == []
    check_files_in_work(folder)
    assert [*tmp_path.iterdir()] == []


def test_a_store_that_cannot_be_written_is_named(bucket):
    message, folder = "s3://no-bucket/x/manifest.json: .*credentials", "s3://no-bucket/x"
    assert_raises(OSError, message, grain.write, sparse(), folder)
