"""Chromium without a screen, by the DevTools protocol over a pipe: pages as they are on a desk or a
telephone.
"""

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
_SECONDS = 30


class Browser:
    """A browser with one page. A context manager."""

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        their_input, self._input = os.pipe()
        self._output, their_output = os.pipe()
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            "--disable-dev-shm-usage",
        ]
        flags += ["--no-first-run", "--mute-audio", "--autoplay-policy=no-user-gesture-required"]
        command = [CHROMIUM, *flags, f"--user-data-dir={self._folder.name}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{their_input} 4>&{their_output}', "bash", *command],
            pass_fds=(their_input, their_output),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_input)
        os.close(their_output)
        self._numbers, self._rest, self._session, self.problems = itertools.count(1), b"", None, []
        target = next(
            x for x in self.call("Target.getTargets")["targetInfos"] if x["type"] == "page"
        )
        self._session = self.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *exception):
        self._process.kill()
        self._process.wait()
        os.close(self._input)
        os.close(self._output)
        self._folder.cleanup()

    def _message(self, deadline):
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._output], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            self._rest += os.read(self._output, 1 << 20)
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def call(self, method, **parameters):
        """Calls a method of the protocol; notes what the page complains about meanwhile."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._input, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _SECONDS
        while True:
            found = self._message(deadline)
            if found.get("id") == number:
                assert "error" not in found, found["error"]
                return found["result"]
            self._note(found)

    def _note(self, event):
        what, parameters = event.get("method"), event.get("params", {})
        if what == "Runtime.exceptionThrown":
            self.problems.append(parameters["exceptionDetails"])
        elif what == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(parameters["entry"])
        elif what in ("Runtime.consoleAPICalled", "Page.javascriptDialogOpening"):
            self.problems.append(parameters)

    def show(self, url, width=1280, height=900, scheme="light"):
        """Opens a page and waits until it, with all of its pictures, is there."""
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1 + phone,
            mobile=phone,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.call("Page.navigate", url=url)
        self.settle()

    def settle(self):
        """Waits for the page that is there, or coming."""
        ready = (
            "document.readyState === 'complete' && [...document.images].every(i => i.complete ||"
            " i.loading === 'lazy')"
        )
        ready += (
            " && location.href !== 'about:blank' &&"
            " performance.getEntriesByType('navigation')[0].responseStatus !== 202"
        )
        deadline, is_ready = time.monotonic() + _SECONDS, False
        while not is_ready:
            assert time.monotonic() < deadline, "the page does not come"
            with contextlib.suppress(AssertionError):  # the one before is going
                is_ready = self.run(ready)
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, expression):
        """The value of an expression in the page."""
        result = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key, end):
        """Presses a key, which leads to a page whose address has that end."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)
        deadline = time.monotonic() + _SECONDS
        while not self._is_at(end):
            assert time.monotonic() < deadline, f"{key} does not lead to {end}"
        self.settle()

    def _is_at(self, end):
        with contextlib.suppress(AssertionError):  # the one before is going
            return self.run("location.pathname").endswith(end)

    def picture(self, path, whole=False):
        """Writes a screenshot as PNG."""
        Path(path).write_bytes(
            base64.b64decode(
                self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
            )
        )
