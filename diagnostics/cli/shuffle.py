"""The command ``shuffle``: how well elements are mixed."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from gristmill.diagnostics.cli.printing import say
from gristmill.diagnostics.cli.target import CommandError, errors_of, load_pipeline
from gristmill.diagnostics.cli.words import in_options
from gristmill.diagnostics.diagnosis.mixture_shares import mixture_shares
from gristmill.diagnostics.diagnosis.shuffle_quality import shuffle_quality
from gristmill.diagnostics.graph.spec_text import spec_text

_OPTIONS = ("key", "batch_size", "block_size", "max_batches")


def shuffle(args: Namespace) -> int:
    """Yields the figures, and writes a picture to a file."""
    pipeline = load_pipeline(args.pipeline)
    try:
        quality = shuffle_quality(
            pipeline,
            _key(args.key),
            args.batch_size,
            block_size=args.block_size,
            max_batches=args.max_batches,
        )
    except (TypeError, ValueError) as error:
        if hasattr(error, "__notes__"):  # it is about the pipeline, not about the request
            raise
        words = "a function of an element", "the name of the entry that is their class"
        raise CommandError(in_options(str(error).replace(*words), *_OPTIONS)) from error
    mixtures = mixture_shares(pipeline, args.batch_size)
    if args.json:
        parts = [mixture.as_dict() for mixture in mixtures]
        say(json.dumps({**quality.to_dict(), "mixtures": parts}))
    else:
        say("\n".join(map(str, [quality, *mixtures])))
    if args.output is not None:
        with errors_of("--output"):
            quality.save_svg(args.output)
    return 0


def _key(name: str | None) -> Callable[[Any], Any] | None:
    if name is None:
        return None

    def key(element: Any) -> Any:
        try:
            value = element[int(name) if isinstance(element, list | tuple) else name]
        except (LookupError, TypeError, ValueError):
            raise CommandError(
                f"--key must be the name or number of an entry of the elements, got {name!r};"
                f" an element is {spec_text(element)}"
            ) from None
        return value.item() if hasattr(value, "item") else value

    return key
