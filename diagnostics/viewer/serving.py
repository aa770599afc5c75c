"""``view``: a pipeline as pages in a browser."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from os import PathLike, fspath
from typing import Any, Self

from gristmill.core.errors import as_int
from gristmill.core.state import shown
from gristmill.core.uninterrupted import uninterrupted
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.map import MapDataset
from gristmill.diagnostics.cli.state import restore_checkpoint
from gristmill.diagnostics.viewer.cells import leaf_html
from gristmill.diagnostics.viewer.looks import Looks
from gristmill.diagnostics.viewer.server import HOST, Server
from gristmill.diagnostics.viewer.site import Site
from gristmill.diagnostics.viewer.steps import Step
from gristmill.loader import DataLoader


def view(
    pipeline: Any,
    *,
    port: int = 0,
    decoder: Callable[[list[int]], str] | None = None,
    show_as: Sequence[str] = (),
    step: int | None = None,
    state: str | PathLike[str] | None = None,
    name: str | None = None,
) -> Viewer:
    """Returns a server of pages that show what a pipeline gives: pictures, sounds, texts, tokens,
    tables, trees of arrays.

    The address is ``url``. It answers this machine alone, and only requests with the secret in the
    address. It reads an iterator of its own, up to the pages that are viewed; elements are computed
    in this process. Nothing that they contain is run. It serves until it is closed.

    Args:
        pipeline: a dataset or a ``DataLoader``.
        port: of the address 127.0.0.1; 0 for any that is free.
        decoder: makes text of a list of token ids.
        show_as: what values are whose names and shapes do not say it: ``"image=NAME"``,
            ``"audio:16000=NAME"`` (with samples per second), ``"tokens=NAME"``, ``"array=NAME"``. A
            name is that of a value, those of containers before it with dots between them, and may
            have ``*`` in it.
        step: shown first, counted from 0; of a ``MapDataset`` its index.
        state: a checkpoint; the outputs after it are shown first.
        name: of the pipeline, for the pages.

    Raises:
        ImportError: Jinja2 is not installed, which the extra ``view`` installs.
        TypeError: an argument has the wrong type.
        ValueError: ``show_as`` or ``port`` is not allowed, or both ``step`` and ``state`` are
            given.
        OSError: the port is taken.

    Example:
        >>> with view(MapDataset.range(100).batch(10), step=3) as viewer:
        ...     viewer.url.startswith("http://127.0.0.1:")
        True
    """
    if not isinstance(pipeline, MapDataset | IterDataset | DataLoader):
        raise TypeError(
            f"pipeline must be a dataset or a DataLoader, got {shown(pipeline)} of type"
            f" {type(pipeline).__name__}"
        )
    if decoder is not None and not callable(decoder):
        raise TypeError(f"decoder must be a callable of a list of token ids, got {shown(decoder)}")
    if step is not None and state is not None:
        raise ValueError("step and state both say what is shown first: give one of them")
    if not 0 <= as_int("port", port) < 1 << 16:
        raise ValueError(f"port must be from 0 to 65535, got {port}")
    first = Step(0 if step is None else as_int("step", step, minimum=0))
    try:
        looks = Looks([show_as] if isinstance(show_as, str) else show_as, decoder)
    except ValueError as error:
        raise ValueError(f"show_as: {error}") from None
    leaf_html()  # raises here what each page would raise
    title = type(pipeline).__name__ if name is None else name
    server = Server(Site(pipeline, title, looks, restore_checkpoint, first), port)
    return Viewer(server, None if state is None else fspath(state))


class Viewer:
    """Serves the pages of a pipeline until it is closed. A context manager.

    Args:
        server: which listens already.
        state: a checkpoint to go to first.
    """

    def __init__(self, server: Server, state: str | None) -> None:
        self._server = server
        self._closed = False
        self._thread = threading.Thread(
            target=server.serve_forever, args=(0.1,), name="gristmill-view", daemon=True
        )
        uninterrupted(self._thread.start)
        if state is not None:
            try:
                server.site.begin_at(state)
            except BaseException:
                self.close()
                raise

    @property
    def url(self) -> str:
        """The address for a browser. It gives access to the pipeline."""
        return f"http://{HOST}:{self._server.server_port}/{self._server.site.token}/"

    def wait(self) -> None:
        """Returns when the server is closed, by another thread, or by an interrupt, which is
        raised.
        """
        while self._thread.is_alive():
            self._thread.join(1)

    def close(self) -> None:
        """Ends the server and what the pipeline does for it. May be called again."""
        if not self._closed:
            self._closed = True
            self._server.shutdown()
            self._server.server_close()
            self._server.site.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Viewer({self.url if not self._closed else 'closed'})"

    def _repr_html_(self) -> str:
        return (
            repr(self)
            if self._closed
            else f'<a href="{self.url}" target="_blank" rel="noopener">{self.url}</a>'
        )
