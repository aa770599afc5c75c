"""The addresses of pages of steps and rows, pictures and sounds, and of navigation."""

from __future__ import annotations

import re
import secrets
import traceback
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import numpy as np

from gristmill.core.naming import one_line
from gristmill.diagnostics.html import asset
from gristmill.diagnostics.provenance import Provenance
from gristmill.diagnostics.viewer.history import RowHistory
from gristmill.diagnostics.viewer.leaves import ElementLeaf
from gristmill.diagnostics.viewer.looks import Looks
from gristmill.diagnostics.viewer.outputs import Outputs, Seen, Waiting
from gristmill.diagnostics.viewer.pages import (
    PageFrame,
    problem_page,
    row_page,
    step_page,
    waiting_page,
)
from gristmill.diagnostics.viewer.pictures import LARGE, SMALL, png_of
from gristmill.diagnostics.viewer.sounds import wav_of
from gristmill.diagnostics.viewer.steps import Step, step_number

_ADDRESS = re.compile(
    r"(?:since/(?P<since>\d{1,6})/)?step/(?P<step>\d{1,18})(?:/row/(?P<row>\d{1,15}))?(?:/stage/(?P<stage>\d{1,6}))?"
    r"(?:/leaf/(?P<leaf>\d{1,6})\.(?P<form>png|wav|file))?"
)
_MAX_NAME = 200
_AGAIN = {"Refresh": "1"}  # the browser asks again after a second


@dataclass(frozen=True)
class Answer:
    """The answer to a browser's request.

    Args:
        body: the bytes.
        media_type: what they are.
        status: of HTTP.
        headers: others than all answers have.
    """

    body: bytes
    media_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_media(self) -> bool:
        """True if the address is that of a picture or sound."""
        return self.media_type.startswith("audio/")


class Site:
    """Answers requests for the pages of a pipeline. Used by any thread.

    Args:
        pipeline: a dataset or a ``DataLoader``.
        name: of it, for the title.
        looks: the way to show leaves.
        restore: sets an iterator to the position of the checkpoint at a path.
        first: the step that is shown first.
    """

    def __init__(
        self,
        pipeline: Any,
        name: str,
        looks: Looks,
        restore: Callable[[str, Any], None],
        first: Step | None = None,
    ) -> None:
        self.token = secrets.token_urlsafe(18)
        self.outputs = Outputs(pipeline)
        self.first = first or Step(0)
        self._looks = looks
        self._restore = restore
        self._view = PageFrame(self.outputs, f"/{self.token}", one_line(name, _MAX_NAME), looks)

    def answer(self, path: str, query: Mapping[str, str]) -> Answer:
        """Returns the answer for an address below the token; errors become pages, too."""
        try:
            return self._answer(path, query)
        except BaseException as error:  # of a user's object, which may raise anything
            lines = "".join(traceback.format_exception(error))[-20_000:]
            text = f"{type(error).__name__}: {error}"
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            return self._problem(status, "This cannot be shown", text, lines)

    def _answer(self, path: str, query: Mapping[str, str]) -> Answer:
        assets = {
            "style.css": lambda: _file("text/css", "base.css", "viewer.css"),
            "script.js": lambda: _file("text/javascript", "viewer.js"),
            "icon.png": lambda: Answer(_icon(), "image/png"),
            "go": lambda: self._go(query.get("to", "")),
            "": lambda: _moved(self._view.address(self.first)),
        }
        if path in assets:
            return assets[path]()
        found = _ADDRESS.fullmatch(path)
        if found is None:
            text = "The address is not one of those that pages here lead to."
            return self._problem(HTTPStatus.NOT_FOUND, "There is no such page", text)
        numbers = {
            name: None if found[name] is None else int(found[name])
            for name in ("row", "stage", "leaf")
        }
        step = Step(int(found["step"]), int(found["since"] or 0))
        if step.since >= len(self._view.since):
            text = "It was given to another run of this server."
            return self._problem(HTTPStatus.NOT_FOUND, "There is no such state", text)
        seen = self.outputs.at(step)
        if isinstance(seen, Waiting):
            return _page(waiting_page(self._view, step, seen), HTTPStatus.ACCEPTED, _AGAIN)
        if seen.output.step != step and seen.output.is_end:  # there are fewer
            return _moved(self._view.address(seen.output.step))
        row = numbers["row"]
        if row is not None and row >= (seen.num_rows or 0):
            return _moved(self._view.address(step))
        if numbers["leaf"] is not None:
            leaves = self._leaves(seen, row, numbers["stage"])
            return self._media(leaves, numbers["leaf"], found["form"], query)
        return self._page_of(seen, row, query)

    def _problem(self, status: HTTPStatus, title: str, text: str, lines: str = "") -> Answer:
        return _page(problem_page(self._view, title, one_line(text, 2000), lines), status)

    def _leaves(self, seen: Seen, row: int | None, stage: int | None) -> Sequence[ElementLeaf]:
        if stage is None:
            return seen.row(row)
        found = self.outputs.stage(seen, row, stage)
        return found.leaves if found is not None else ()

    def _page_of(self, seen: Seen, row: int | None, query: Mapping[str, str]) -> Answer:
        view, first = self._view, step_number(query.get("first", "")) or 0
        provenance: Provenance | str | Waiting | None = None
        history: RowHistory | Waiting | None = None
        is_row = row is not None or not (seen.num_rows and view.is_batched)
        if is_row and seen.output.error is None and not seen.output.is_end:
            provenance = self.outputs.provenance(seen)
            history = self.outputs.history(seen, row)
        elif query.get("records") == "1":
            provenance = self.outputs.provenance(seen)
        page = (
            step_page(view, seen, first, query.get("whole") == "1", provenance, history)
            if row is None
            else row_page(view, seen, row, first, provenance, history)
        )
        if isinstance(provenance, Waiting) or isinstance(history, Waiting):
            return _page(page, HTTPStatus.ACCEPTED, _AGAIN)
        return _page(page)

    def _media(
        self, leaves: Sequence[ElementLeaf], number: int, form: str, query: Mapping[str, str]
    ) -> Answer:
        """Returns a picture or a sound of a leaf, if it is one."""
        look = self._looks.of(leaves[number], leaves) if number < len(leaves) else None
        if look is not None and look.kind == "image" and form == "png":
            size = SMALL if query.get("size") == str(SMALL) else LARGE
            frame = min(step_number(query.get("frame", "")) or 0, look.value.num_frames - 1)
            return Answer(look.value.png(frame, size), "image/png")
        if look is not None and look.kind == "audio" and form == "wav":
            return Answer(wav_of(look.value, look.rate), "audio/wav")
        if look is not None and look.kind == "file" and form == "file":
            return Answer(look.value, look.media_type)
        return Answer(b"There is no such picture or sound.", status=HTTPStatus.NOT_FOUND)

    def _go(self, text: str) -> Answer:
        """Goes to a step, or to the position of a checkpoint."""
        number = step_number(text.strip())
        if number is not None:
            return _moved(self._view.address(Step(number)))
        if not text.strip():
            return _moved(f"/{self.token}/")
        try:
            step = self.go_to_checkpoint(text.strip())
        except Exception as error:
            return self._problem(HTTPStatus.BAD_REQUEST, "It cannot go there", str(error))
        if isinstance(step, Waiting):
            return _page(waiting_page(self._view, Step(0), step), HTTPStatus.ACCEPTED, _AGAIN)
        return _moved(self._view.address(step))

    def go_to_checkpoint(self, path: str) -> Step | Waiting:
        """Returns the step that follows a checkpoint.

        Raises:
            Exception: there is no leaf at that path, or it does not fit the pipeline.
        """
        step = self.outputs.restore(lambda it: self._restore(path, it))
        if isinstance(step, Step) and step.since >= len(self._view.since):
            self._view.since.append(path)
        return step

    def begin_at(self, path: str) -> None:
        """Begins with the outputs after a checkpoint; errors are those of ``go_to_checkpoint``."""
        step = self.go_to_checkpoint(path)
        while isinstance(step, Waiting):
            step = self.go_to_checkpoint(path)
        self.first = step

    def close(self) -> None:
        """Closes the iterator."""
        self.outputs.close()


def _page(
    text: str, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Answer:
    return Answer(text.encode(), "text/html; charset=utf-8", status, headers or {})


def _file(media_type: str, *names: str) -> Answer:
    return Answer("".join(map(asset, names)).encode(), f"{media_type}; charset=utf-8")


def _moved(address: str) -> Answer:
    return Answer(
        b"",
        status=HTTPStatus.SEE_OTHER,
        headers={"Location": urllib.parse.quote(address, safe="/?=&")},
    )


def _icon() -> bytes:
    """Three bars."""
    pixels = np.zeros((32, 32, 4), np.uint8)
    for left, top in ((4, 14), (13, 5), (22, 18)):
        pixels[top:28, left : left + 6] = (84, 121, 245, 255)
    return png_of(pixels)
