"""The pages of a pipeline: over real HTTP, and in a real browser where there is one."""

import http.client
import io
import random
import urllib.parse
import urllib.request

import numpy as np
import pytest
from html_page import Page
from PIL import Image
from users_datasets import Plain

import gristmill as gm
from gristmill import MapDataset
from gristmill.diagnostics.viewer.outputs import Outputs
from gristmill.diagnostics.viewer.steps import Step

NASTY = "</title><script>document.title='x'</script><img src=x onerror=alert(1)>\"'\x00\ud800 javascript:alert(1)"
GIGABYTE = 1 << 30
TONE = np.sin(np.arange(16_000) / 9).astype(np.float32)


def get(url, method="GET", **headers):
    """Status, headers and body of an answer, without following it anywhere."""
    address = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(address.netloc, timeout=30)
    try:
        connection.request(method, f"{address.path}?{address.query}", headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def page_at(url):
    status, _, body = get(url)
    return status, Page(body.decode())


def picture_at(url):
    status, headers, body = get(url)
    assert (status, headers["Content-Type"]) == (200, "image/png")
    return np.asarray(Image.open(io.BytesIO(body)))


def rich(i):
    rng = np.random.default_rng(i)
    return {
        "image": rng.integers(0, 256, (40, 24, 3), np.uint8),
        "audio": TONE * rng.random(dtype=np.float32),
        "tokens": np.frombuffer(b"to be or not" + bytes(20), np.uint8).astype(np.int32),
        "nested": {"label": i, "box": [1.5, 2.5], NASTY: {"deep": NASTY}},
        "values": rng.normal(size=(50, 30)),
        "raw": b"\x00\xff" * 500,
    }


def flipped(record):
    return {**record, "image": record["image"][:, ::-1]}


def fail_at_3(x):
    if x == 3:
        raise ValueError(NASTY)
    return x


def decode(ids):
    return bytes([i for i in ids if i]).decode()


RICH = MapDataset.range(30).seed(1).shuffle().map(rich).map(flipped)
SMALL = MapDataset.range(40).seed(3).shuffle()
LOADER = gm.DataLoader(data_source=range(9), sampler=gm.samplers.SequentialSampler(9, gm.sharding.NoSharding()))
PIPELINES = {
    "map": SMALL,
    "epochs": MapDataset.range(5).seed(1).shuffle().repeat(3),
    "stream": SMALL.to_iter_dataset(),
    "filtered": SMALL.to_iter_dataset().filter(lambda x: x % 3),
    "shuffled": gm.experimental.WindowShuffleIterDataset(SMALL.to_iter_dataset(), window_size=7, seed=1),
    "batched": SMALL.to_iter_dataset().batch(6),
    "loader": LOADER,
    "generator": Plain(12),
    "failing": MapDataset.range(7).map(fail_at_3).to_iter_dataset(),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_any_step_in_any_order_is_what_iterating_gives(name):
    expected = [None if x == 3 else x for x in range(7)] if name == "failing" else list(PIPELINES[name])
    rng, seen = random.Random(name), Outputs(PIPELINES[name])
    try:
        for number in [rng.randrange(len(expected) + 2) for _ in range(60)]:
            found = seen.at(Step(number))
            seen._kept.clear()  # so that it is read again
            if name == "map" or name == "epochs":
                expected += list(PIPELINES[name])[:0] or ([PIPELINES[name][number]] if number == len(expected) else [])
            if found.output.error is not None:
                assert (number, str(found.output.error)) == (3, NASTY)
            elif number >= len(expected) and not isinstance(PIPELINES[name], MapDataset):
                assert found.output.is_end and found.output.step == Step(len(expected))
            else:
                element = PIPELINES[name][number] if isinstance(PIPELINES[name], MapDataset) else expected[number]
                np.testing.assert_array_equal(found.output.element, element)
    finally:
        seen.close()
