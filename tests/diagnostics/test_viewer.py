"""The pages of a pipeline: over real HTTP, and in a real browser where there is one."""

import contextlib
import functools
import http.client
import io
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import wave

import numpy as np
import pytest
from browser import CHROMIUM, Browser
from html_page import Page
from PIL import Image
from refusing import assert_raises
from users_datasets import Plain

import gristmill as gm
from gristmill import MapDataset
from gristmill.diagnostics.cli import main
from gristmill.diagnostics.viewer import outputs
from gristmill.diagnostics.viewer.outputs import Outputs, Waiting
from gristmill.diagnostics.viewer.steps import Step

NASTY = (
    "</title><script>document.title='x'</script><img src=x onerror=alert(1)>\"'\x00\ud800"
    " javascript:alert(1)"
)
TONE = np.sin(np.arange(16_000) / 9).astype(np.float32)


def get(url, method="GET", waits=True, **headers):
    """Status, headers and body of an answer; with ``waits``, when it is there."""
    address = urllib.parse.urlsplit(url)
    with contextlib.closing(http.client.HTTPConnection(address.netloc, timeout=30)) as connection:
        connection.request(method, f"{address.path}?{address.query}", headers=headers)
        answer = connection.getresponse()
        found = answer.status, dict(answer.getheaders()), answer.read()
    return get(url, method, **headers) if found[0] == 202 and waits else found


def page_at(url, status=200):
    found, headers, body = get(url)
    assert (found, headers["Content-Type"]) == (status, "text/html; charset=utf-8"), body
    assert len(body) < 500_000
    page = Page(body.decode())
    assert not page.named("style") and not [
        names for _, names in page.tags if {"style", "onclick", "onerror"} & names.keys()
    ]
    assert [names["src"].rpartition("/")[2] for names in page.named("script")] == ["script.js"]
    return page


def picture_at(url):
    status, headers, body = get(url)
    assert (status, headers["Content-Type"]) == (200, "image/png")
    return np.asarray(Image.open(io.BytesIO(body)))


def rich(i):
    rng = np.random.default_rng(i)
    return {
        "image": rng.integers(0, 256, (40, 24, 3), np.uint8),
        "audio": TONE * np.float32(0.2 + 0.02 * i),
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
STREAM = SMALL.map(lambda x: {"x": x, "image": np.full((9, 9, 3), x, np.uint8)}).to_iter_dataset()
FAILING = MapDataset.range(7).map(fail_at_3).to_iter_dataset()
PIPELINES = {
    "map": SMALL,
    "stream": SMALL.to_iter_dataset(),
    "filtered": SMALL.to_iter_dataset().filter(lambda x: x % 3),
    "shuffled": gm.experimental.WindowShuffleIterDataset(
        SMALL.to_iter_dataset(), window_size=7, seed=1
    ),
    "batched": SMALL.to_iter_dataset().batch(6),
    "loader": gm.DataLoader(
        data_source=range(9),
        sampler=gm.samplers.IndexSampler(9, shuffle=True, seed=1, num_epochs=1),
    ),
    "without states": Plain(12),
    "failing": FAILING,
}


@pytest.mark.parametrize("name", PIPELINES)
def test_any_step_in_any_order_is_what_iterating_gives(name):
    expected = (
        [None if x == 3 else x for x in range(7)] if name == "failing" else list(PIPELINES[name])
    )
    rng = random.Random(name)
    with contextlib.closing(Outputs(PIPELINES[name])) as seen:
        for number in [rng.randrange(len(expected) + 2) for _ in range(60)]:
            while isinstance(found := seen.at(Step(number)), Waiting):
                pass
            found = found.output
            seen._kept.clear()  # so that it is read again
            if number >= len(expected):
                assert (
                    found.element == SMALL[number]
                    if name == "map"
                    else found.is_end and found.step == Step(len(expected))
                )
            elif found.error is not None:
                assert (name, number, str(found.error)) == ("failing", 3, NASTY)
            else:
                np.testing.assert_array_equal(found.element, expected[number])


def test_who_does_not_know_the_address_sees_nothing():
    with gm.view(RICH.batch(4), name=NASTY) as viewer:
        address = urllib.parse.urlsplit(viewer.url)
        root, token = f"http://{address.netloc}", address.path.strip("/")
        assert address.hostname == "127.0.0.1" and len(token) >= 20
        for path in (
            "/",
            "/favicon.ico",
            "/step/0",
            f"/{token[:-1]}x/step/0",
            f"/{token}x",
            "/%00/",
            f"/..;/{token}/",
        ):
            status, _, body = get(root + path)
            assert status == 404 and token.encode() not in body, path
        assert get(f"{viewer.url}step/0", Host="localhost:9000")[0] == 200  # a forwarded port
        for host in (
            "evil.example",
            "127.0.0.1.evil.example:80",
            "localhost.evil.example",
            "",
            "[::]:80",
        ):
            assert get(f"{viewer.url}step/0", Host=host)[0] == 403, host
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert get(f"{viewer.url}step/0", method)[0] == 501
        status, headers, body = get(f"{viewer.url}step/0", "HEAD")
        assert status == 200 and not body and int(headers["Content-Length"]) > 1000
        for path, status in (
            ("step/0", 200),
            ("nothing", 404),
            ("step/0/row/0/leaf/9.png", 404),
            ("step/0/leaf/1.wav", 404),
        ):
            found, headers, _ = get(viewer.url + path)
            assert found == status
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
            assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == (
                "nosniff",
                "no-referrer",
            )
        with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
            connection.sendall(b"nonsense\r\n\r\n")
            assert b"400" in connection.recv(1000)
        page_at(f"{viewer.url}step/0")
        assert viewer._server.socket.getsockname()[0] == "127.0.0.1"


def test_pictures_and_sounds_are_what_the_arrays_hold():
    with gm.view(RICH.batch(4), decoder=decode) as viewer:
        rows = [RICH[i] for i in range(8, 12)]
        page = page_at(f"{viewer.url}step/2")
        assert (
            "to be or not" in page.text
            and "float32[4, 16000]" in page.text
            and NASTY[:20] in page.text
        )
        numbers = {
            names["src"].partition("?")[0].rpartition("/")[2]
            for names in page.named("img") + page.named("audio")
        }
        image, sound = sorted(numbers, key=lambda name: name.endswith("wav"))
        for i, row in enumerate(rows):
            np.testing.assert_array_equal(
                picture_at(f"{viewer.url}step/2/row/{i}/leaf/{image}"), row["image"]
            )
            status, headers, body = get(
                f"{viewer.url}step/2/row/{i}/leaf/{sound}", Range="bytes=44-143"
            )
            whole = get(f"{viewer.url}step/2/row/{i}/leaf/{sound}")[2]
            assert (status, body, headers["Content-Range"]) == (
                206,
                whole[44:144],
                f"bytes 44-143/{len(whole)}",
            )
            with wave.open(io.BytesIO(whole)) as file:
                assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (
                    16_000,
                    1,
                    2,
                )
                samples = np.frombuffer(file.readframes(20_000), np.int16)
            np.testing.assert_allclose(samples / 32767, row["audio"], atol=1e-4)
        page = page_at(f"{viewer.url}step/2/row/1")
        stages = [names["src"] for names in page.named("img") if "/stage/" in names["src"]]
        before, after = [picture_at(urllib.parse.urljoin(viewer.url, source)) for source in stages]
        np.testing.assert_array_equal(before, rows[1]["image"][:, ::-1])
        np.testing.assert_array_equal(after, rows[1]["image"])
        assert f"\n{gm.explain(RICH, step=9).rows[0].records[0].record_key}\n" in page.text
    shapes = {
        "gray": (30, 20),
        "chw": (3, 30, 20),
        "hwc": (30, 20, 4),
        "frames": (5, 30, 20, 3),
        "truth": (30, 20),
    }
    for kind, shape in shapes.items():
        pixels = (
            np.random.default_rng(0).random(shape) < 0.5
            if kind == "truth"
            else np.random.default_rng(0).random(shape)
        )
        with gm.view(MapDataset.source([{"x": pixels}]), show_as=["image=x"]) as viewer:
            expected = (
                np.moveaxis(pixels, 0, -1)
                if kind == "chw"
                else pixels[-1]
                if kind == "frames"
                else pixels
            )
            found = picture_at(f"{viewer.url}step/0/leaf/0.png?frame=4")
            np.testing.assert_array_equal(found, np.rint(expected * 255), err_msg=kind)


def is_even(record):
    return record["nested"]["label"] % 2 == 0


@pytest.mark.parametrize(
    "ds",
    [
        RICH.batch(3),
        RICH.to_iter_dataset().map(flipped).filter(is_even).batch(3),
        RICH.batch(3).to_iter_dataset(),
        gm.IterDataset.mix(
            [RICH.to_iter_dataset(), RICH.map(flipped).to_iter_dataset().filter(is_even)], [1, 2]
        ).batch(3),
        RICH.to_iter_dataset().map(flipped).batch(3).mp_prefetch(gm.MultiprocessingOptions(2)),
    ],
    ids=["map", "stream", "batched", "mixed", "workers"],
)
def test_the_story_of_a_row_ends_with_the_row(ds):
    with contextlib.closing(Outputs(ds)) as seen:
        while isinstance(found := seen.at(Step(3)), Waiting):
            pass
        for row in range(3):
            while isinstance(story := seen.history(found, row), Waiting):
                pass
            last = [stage.element for stage in story.stages if not stage.is_same][-1]
            np.testing.assert_equal(last["image"], found.output.element["image"][row])
            assert (
                not story.reason
                and last["nested"]["label"] == found.output.element["nested"]["label"][row]
            )


def test_documents_of_packed_rows_are_apart():
    documents = [np.arange(1, 4), np.arange(4, 6), np.arange(6, 11)]
    ds = MapDataset.source(documents).map(lambda x: {"ids": x}).to_iter_dataset()
    ds = gm.experimental.FirstFitPackIterDataset(
        ds, length_struct={"ids": 6}, num_packing_bins=2, shuffle_bins=False
    )
    for decoder, texts in (
        (None, ("1 2 3", "4 5")),
        (lambda ids: "".join([chr(96 + i) for i in ids]), ("abc", "de")),
    ):
        with gm.view(ds.batch(2), decoder=decoder) as viewer:
            text = page_at(f"{viewer.url}step/0").text
            assert "\n1\n{}\n2\n{}\npadding, 1 cell\n".format(*texts) in text, text
            text = page_at(f"{viewer.url}step/0/row/0").text
            assert texts[0] in text and "\n0\u20132\n" in text and "\n3\u20134\n" in text


def test_nothing_is_too_large():
    huge = {
        "zeros": np.broadcast_to(np.float32(0), (1 << 15, 1 << 15)),
        "image": np.broadcast_to(np.arange(40_000, dtype=np.uint8)[:, None], (40_000, 40_000)),
        "audio": np.broadcast_to(np.float32(0.5), (1 << 30,)),
        "many dimensions": np.zeros((2,) * 24, bool),
        "text": "long " * 2_000_000,
        "bytes": b"<b>" * 2_000_000,
        "leaves": {f"leaf {i}": {"x": i} for i in range(30_000)},
        "nan": np.array([np.nan, np.inf, -np.inf, 1e308, -1e308] * 9),
        "number": 10**5000,
    }
    deep = functools.reduce(lambda inner, _: [inner], range(500), [])
    records = [huge, deep, np.zeros((100_000, 3)), ["y"] * 200_000]
    with gm.view(MapDataset.range(4).map(lambda i: records[i])) as viewer:
        page = page_at(f"{viewer.url}step/0")
        assert "of 32,768 values at random places, of 1,073,741,824" in page.text
        assert "20,000+ values" in page.text and "of 10,000,000 characters" in page.text
        assert max(picture_at(f"{viewer.url}step/0/leaf/1.png").shape) <= 1280
        assert len(get(f"{viewer.url}step/0/leaf/2.wav")[2]) < 4_000_000
        assert "leaf 5000" in page_at(f"{viewer.url}step/0?first=5000").text
        for step in (1, 2, 3):
            page_at(f"{viewer.url}step/{step}")
            page_at(f"{viewer.url}step/{step}?whole=1&first=99999999")
    with gm.view(MapDataset.range(10**9).batch(10**4)) as viewer:
        assert "\n9,999\n" in page_at(f"{viewer.url}step/0?first=9990").text and page_at(
            f"{viewer.url}step/0?records=1"
        )
        assert "\n29,998\n" in page_at(f"{viewer.url}step/2/row/9998").text


def test_errors_and_ends_are_pages():
    class Broken:
        shape = property(lambda self: 1 // 0)
        __repr__ = __str__ = __len__ = __getattr__ = lambda self, *name: 1 // 0

    with gm.view(FAILING) as viewer:
        assert NASTY[:30] in page_at(f"{viewer.url}step/3").text
        assert "\n4\n" in page_at(f"{viewer.url}step/4").text
        status, headers, _ = get(f"{viewer.url}step/90")
        assert (status, headers["Location"].rpartition("/")[2]) == (
            303,
            "7",
        ) and "The end" in page_at(f"{viewer.url}step/7").text
        assert "There is no such page" in page_at(f"{viewer.url}step/x", 404).text
        assert "no file or directory" in page_at(f"{viewer.url}go?to=/no/where", 400).text
    with gm.view(MapDataset.range(3).map(lambda i: {"x": Broken(), "y": i})) as viewer:
        assert "ZeroDivisionError" in page_at(f"{viewer.url}step/1").text
    with gm.view(MapDataset.range(9).filter(lambda x: x % 2), decoder=lambda ids: 1 // 0) as viewer:
        assert "There is no element here" in page_at(f"{viewer.url}step/2").text
    assert_raises(TypeError, "pipeline must be a dataset or a DataLoader", gm.view, range(3))
    assert_raises(ValueError, "show_as: it must be KIND=NAME", gm.view, SMALL, show_as=["video=x"])
    assert_raises(Exception, "there is no file or directory", gm.view, SMALL, state="/no/where")
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("gristmill-view")
    ]


def test_a_page_that_waits_says_what_for(monkeypatch):
    monkeypatch.setattr(outputs, "_WAIT_SECONDS", 0.3)
    monkeypatch.setattr(outputs, "_READ_SECONDS", 0.2)
    go_on = threading.Event()

    def wait(x):
        time.sleep(0.001)
        return x if x < 600 or go_on.wait(30) else None

    with gm.view(
        MapDataset.range(10_000)
        .map(wait)
        .to_iter_dataset(gm.ReadOptions(num_threads=0))
        .filter(lambda x: True)
    ) as viewer:
        status, headers, body = get(f"{viewer.url}step/700", waits=False)
        assert (status, headers["Refresh"]) == (202, "1") and b"On the way to step 700" in body
        while b"Waiting for the pipeline" not in body:
            status, _, body = get(f"{viewer.url}step/700", waits=False)
        assert status == 202 and b"wait" in body
        go_on.set()
        while status == 202:
            status, _, body = get(f"{viewer.url}step/700", waits=False)
        assert "\n700\n" in Page(body.decode()).text


def test_checkpoints_lead_to_their_step(tmp_path):
    state = tmp_path / "state.json"
    for ds, where in (
        (STREAM, "/step/5"),
        (STREAM.filter(lambda x: x["x"] % 2), "/since/1/step/0"),
    ):
        it = iter(ds)
        for _ in range(5):
            next(it)
        state.write_text(json.dumps(it.get_state()))
        with gm.view(ds, state=state) as viewer:
            first = get(viewer.url)[1]["Location"]
            assert first.endswith(where)
            assert f"\n{next(it)['x']}\n" in page_at(urllib.parse.urljoin(viewer.url, first)).text
            assert (
                get(f"{viewer.url}go?to={urllib.parse.quote(str(state))}")[1]["Location"] == first
            )
            assert get(f"{viewer.url}go?to=1,234")[1]["Location"].endswith("/step/1234")


def test_the_command_prints_the_address_and_ends_silently(tmp_path, capsys):
    (tmp_path / "train.py").write_text(
        "import gristmill as grain\nds = grain.MapDataset.range(9).to_iter_dataset()\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["view", f"{tmp_path}/train.py:ds", "--port", str(port)]) == 2
    assert f"--port {port}: Address already in use; another one, or 0" in capsys.readouterr().err
    assert main(["view", f"{tmp_path}/train.py:ds", "--as", "x"]) == 2
    assert "--as: it must be KIND=NAME" in capsys.readouterr().err
    command = [
        sys.executable,
        "-m",
        "gristmill",
        "view",
        "train.py:ds",
        "--port",
        "0",
        "--step",
        "4",
    ]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        url = process.stdout.readline().strip()
        assert (
            get(url)[1]["Location"].endswith("/step/4") and "\n5\n" in page_at(f"{url}step/5").text
        )
        assert process.stdout.readline() == "shows train.py:ds; Ctrl-C ends it\n"
        process.send_signal(signal.SIGINT)
        assert (process.wait(20), process.stderr.read(), process.stdout.read()) == (0, "", "")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_pages_in_a_browser():
    with (
        Browser() as browser,
        gm.view(RICH.batch(4), decoder=decode, name=NASTY) as viewer,
        gm.view(FAILING) as other,
    ):
        urls = [
            f"{viewer.url}step/1",
            f"{viewer.url}step/1/row/2",
            f"{other.url}step/3",
            f"{viewer.url}step/1?whole=1&records=1",
        ]
        for width, scheme in ((1280, "light"), (390, "dark"), (390, "light"), (1280, "dark")):
            for url in urls[: 4 if (width, scheme) == (390, "dark") else 2]:
                browser.show(url, width, scheme=scheme)
                assert browser.run("document.documentElement.scrollWidth") <= width, url
                assert (
                    browser.run("document.title") != "x"
                    and browser.run("getComputedStyle(document.body).fontSize") == "14px"
                )
                is_dark = (
                    browser.run("getComputedStyle(document.body).backgroundColor")
                    == "rgb(13, 17, 23)"
                )
                assert is_dark == (scheme == "dark")
                assert (
                    browser.run(
                        "[...document.images].filter(i => i.complete && !i.naturalWidth).length"
                    )
                    == 0
                )
        browser.show(f"{viewer.url}step/1/row/2")
        keys = {
            "j": "row/3",
            "k": "row/2",
            "ArrowRight": "step/2/row/2",
            "Escape": "step/2",
            "ArrowLeft": "step/1",
        }
        for key, end in keys.items():
            browser.press(key, end)
        audio = "document.querySelector('audio')"
        browser.run(
            f"new Promise(done => {{ {audio}.onended = done; {audio}.playbackRate = 16;"
            f" {audio}.play() }}).then(() => 1)"
        )
        assert browser.problems == []
