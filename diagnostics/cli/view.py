"""The command ``view``: pages that show what a pipeline gives."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from gristmill.diagnostics.cli.printing import say
from gristmill.diagnostics.cli.target import CommandError, load_function, load_pipeline
from gristmill.diagnostics.viewer import Viewer
from gristmill.diagnostics.viewer import view as serve

DEFAULT_PORT = 8765


def view(args: Namespace) -> int:
    """Serves until it is interrupted, which is how it ends."""
    pipeline = load_pipeline(args.pipeline)
    decoder = None
    if args.decoder is not None:
        decoder = load_function(args.decoder, "--decoder", "a list of token ids")
    with _viewer(args, pipeline, decoder) as viewer:
        say(viewer.url)
        say(f"shows {args.pipeline}; Ctrl-C ends it")
        try:
            viewer.wait()
        except KeyboardInterrupt:
            return 0
    return 0


def _viewer(args: Namespace, pipeline: Any, decoder: Any) -> Viewer:
    """Starts the viewer at the port asked for, or else at the usual one, or at any if that is
    taken.
    """
    ports = [DEFAULT_PORT, 0] if args.port is None else [args.port]
    for port in ports:
        try:
            return serve(
                pipeline,
                port=port,
                decoder=decoder,
                show_as=getattr(args, "as"),
                step=args.step,
                state=args.state,
                name=args.pipeline,
            )
        except OSError as error:
            problem = error
        except ValueError as error:
            raise CommandError(str(error).replace("show_as:", "--as:")) from error
    raise CommandError(
        f"--port {ports[-1]}: {problem.strerror or problem}; another one, or 0 for any that is free"
    )
