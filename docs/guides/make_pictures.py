"""Makes the pictures of the guides to observing, of looking_at_data.md, and the texts after the
marks ``<!-- text: name -->`` of the guides.

Also those of the quality of shuffles, in shuffling_and_mixing.md.

The blocks of the guides are run in a folder of their own, and their outputs are shown. The
screenshots need a browser:

    pip install -e '.[test]' playwright && playwright install chromium
    python docs/guides/make_pictures.py

Without it the screenshots that are there stay. Those of looking_at_data.md alone need a Chromium,
and no playwright: ``python docs/guides/make_pictures.py --view``.
"""

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import gristmill
from gristmill.dataset import MapDataset
from gristmill.diagnostics import ExecutionSummary, shuffle_quality
from gristmill.diagnostics.drawing import graph_svg
from gristmill.diagnostics.graph.seen_specs import graph_that_ran

GUIDES = Path(__file__).parent
RUN = ("diagnose.md", "observing.md")  # in this order, in one namespace
LOOKING = GUIDES / "looking_at_data.md"
PICTURES = GUIDES / "pictures"
LINE_LENGTH = 84  # of texts that have no columns
WIDTH = 1280  # of the browser
MARGIN = 16
SCREENSHOTS = (  # file, what of it, name of the picture
    ("verdict.html", "section", "verdict"),
    ("report.html", "body", "report"),
    ("workers.html", ".times", "threads"),
)

VERDICT = """\
import time

import gristmill as grain


def tokenize(text):  # asks a server
    time.sleep(0.02)
    return [ord(character) for character in text]


texts = grain.MapDataset.source(["some text"] * 10_000).shuffle(seed=0).map(tokenize)
ds = texts.to_iter_dataset().batch(64, batch_fn=list)
"""

ERROR = """\
import gristmill as grain


def parse(record):
    return bytes.fromhex(record)


records = grain.MapDataset.source(["00ff", "7f7f", "0g00", "10ab"]).seed(7).shuffle().repeat(3)
parsed = records.map(parse).to_iter_dataset()
for element in parsed.mp_prefetch(grain.MultiprocessingOptions(num_workers=2)):
    pass
"""

STALL = """\
import logging
import sys
import time

import gristmill as grain

logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(name)s: %(message)s")


def ask_server(key):
    if key == 37:
        time.sleep(3)
    return key


def load(key):
    return ask_server(key)


def load_all(ds):
    with iter(ds) as it, grain.observe(it, stall_seconds=2):
        for element in it:
            pass


ds = grain.MapDataset.range(100).map(load)
"""
STALL_THREADS = (
    STALL + "load_all(ds.to_iter_dataset(grain.ReadOptions(num_threads=2)))\n"
)
STALL_WORKERS = (
    STALL + "ds = ds.to_iter_dataset(grain.ReadOptions(num_threads=0))\n"
    "load_all(ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=2)))\n"
)

WORKERS = """\
import itertools
import time

import numpy as np

import gristmill as grain


class Store:
    def __len__(self):
        return 10_000

    def __getitem__(self, key):
        time.sleep(0.004)
        return np.full((64, 64), key % 256, np.uint8)


def decode(image):
    for _ in range(3000):
        image = image[::-1].copy()
    return image


images = grain.MapDataset.source(Store()).map(decode)
batches = images.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=16)).batch(16)
it = iter(batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=2)))
with it, grain.observe(it) as view:
    for step, batch in enumerate(itertools.islice(it, 80)):
        time.sleep(0.04 if step < 40 else 0)
    view.save_html("workers.html")
"""


def run_guides(folder: Path) -> dict[str, Any]:
    """Runs the blocks of the guides in ``folder``, the first one as ``train.py``.

    Returns the names that they define, and as ``bar`` the text of the progress bar at its end.
    """
    pages = "".join((GUIDES / name).read_text() for name in RUN)
    blocks = re.findall(r"```python\n(.*?)```", pages, re.DOTALL)
    (folder / "train.py").write_text(blocks[0])
    module = ModuleType("observing")
    seen = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(seen):
        for block in blocks:
            exec(compile(block, folder / "train.py", "exec"), vars(module))
    return {**vars(module), "bar": re.split("[\r\n]", seen.getvalue().strip())[-1]}


def output_of(folder: Path, *arguments: str) -> str:
    """The output of a Python command, errors included, without paths of this machine."""
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    lines: list[str] = []
    for line in result.stdout.replace(f"{folder}{os.sep}", "").splitlines():
        cut = "  …" if line.startswith(f'  File "{os.sep}') else line
        if cut == line or lines[-1:] != [cut]:
            lines.append(cut)
    return "\n".join(lines)


def command(folder: Path, name: str, *options: str) -> str:
    """A command about the pipeline, and what it prints."""
    words = ["-m", "gristmill", name, "train.py:make_dataset", *options]
    return f"$ python {' '.join(words)}\n{output_of(folder, *words)}"


def output_of_program(folder: Path, program: str) -> str:
    (folder / "train.py").write_text(program)
    return output_of(folder, "train.py")


def heat(summary: ExecutionSummary) -> str:
    """A picture of the stages, with the share of the time that the consumer waited for each."""
    waited = summary.waited_ns / summary.elapsed_ns
    shares = {i: waited * node.wait_time_ratio for i, node in summary.items()}
    notes = {
        i: [f"waited for {share:.1%} of the time"]
        for i, share in shares.items()
        if share >= 0.0005
    }
    return graph_svg(
        graph_that_ran(summary), notes, {i: 0.6 * share for i, share in shares.items()}
    )


def shuffles() -> dict[str, str]:
    """Pictures of how well shuffles mix records that are sorted by class."""
    sorted_records = MapDataset.range(64_000).map(lambda i: i // 1000)
    made = {
        "block_shuffle": sorted_records.block_shuffle(64, group_size=256, seed=1),
        "block_window": sorted_records.window_shuffle(64 * 256, seed=1),
    }
    return {
        name: shuffle_quality(ds, lambda label: label, batch_size=128).svg() + "\n"
        for name, ds in made.items()
    }


def wrapped(line: str) -> list[str]:
    if len(line) <= LINE_LENGTH:
        return [line]
    return textwrap.wrap(
        line, LINE_LENGTH, subsequent_indent="    ", break_long_words=False
    )


def insert(texts: dict[str, str]) -> None:
    """Puts the texts after their marks in the guides."""
    for name, text in texts.items():
        mark = f"<!-- text: {name} -->\n```text\n"
        (guide,) = [page for page in GUIDES.glob("*.md") if mark in page.read_text()]
        before, _, after = guide.read_text().partition(mark)
        lines = text.strip("\n").splitlines()
        if name not in ("table", "repr"):
            lines = [part for line in lines for part in wrapped(line)]
        made = "\n".join([line.rstrip() for line in lines])
        guide.write_text(f"{before}{mark}{made}\n```{after.partition('```')[2]}")


def take_screenshots(folder: Path, chromium: str | None) -> None:
    """Shows the reports in a browser, light and dark."""
    try:
        from PIL import Image
        from playwright.sync_api import Error, sync_playwright
    except ImportError as error:
        print(f"The screenshots stay as they are: {error}. What they need: see --help.")
        return
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=chromium)
        except Error as error:
            print(f"The screenshots stay as they are: {error}")
            return
        for scheme in ("light", "dark"):
            page = browser.new_page(
                color_scheme=scheme, viewport={"width": WIDTH, "height": 800}
            )
            for report, part, name in SCREENSHOTS:
                page.goto((folder / report).as_uri())
                box = page.locator(part).first.bounding_box()
                clip = {"x": box["x"] - MARGIN, "y": box["y"] - MARGIN}
                clip |= {
                    "width": box["width"] + 2 * MARGIN,
                    "height": box["height"] + 2 * MARGIN,
                }
                picture = Image.open(
                    io.BytesIO(page.screenshot(full_page=True, clip=clip))
                )
                picture.quantize(128).save(
                    PICTURES / f"{name}-{scheme}.png", optimize=True
                )
        browser.close()


def picture_view() -> None:
    """Shows the pipeline of looking_at_data.md in a browser, light and dark."""
    sys.path.append(str(GUIDES.parents[1] / "tests/diagnostics"))
    from browser import CHROMIUM, Browser
    from PIL import Image

    if CHROMIUM is None:
        print("The screenshots of looking_at_data.md stay: there is no Chromium.")
        return
    module = ModuleType("train")
    blocks = re.findall(r"```python\n(.*?)```", LOOKING.read_text(), re.DOTALL)
    exec(compile(blocks[0], "train.py", "exec"), vars(module))
    with (
        Browser() as browser,
        gristmill.view(module.make_dataset(), name="train.py:ds") as viewer,
    ):
        for scheme in ("light", "dark"):
            path = PICTURES / f"view-{scheme}.png"
            browser.show(f"{viewer.url}step/2", WIDTH, 760, scheme)
            browser.picture(path)
            Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chromium", help="another browser than playwright's own")
    parser.add_argument(
        "--view", action="store_true", help="only those of looking_at_data.md"
    )
    arguments = parser.parse_args()
    chromium = arguments.chromium
    PICTURES.mkdir(exist_ok=True)
    picture_view()
    if arguments.view:
        return
    for name, picture in shuffles().items():
        (PICTURES / f"{name}.svg").write_text(picture)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "my", "project").resolve()
        folder.mkdir(parents=True)
        with contextlib.chdir(folder):
            names = run_guides(folder)
        before, after = names["before"], names["after"]
        (PICTURES / "before.svg").write_text(heat(before.snapshot.summary))
        (PICTURES / "after.svg").write_text(heat(after.snapshot.summary))
        (PICTURES / "mixture.svg").write_text((folder / "mixture.svg").read_text())
        texts = {
            "before": str(before),
            "after": str(after),
            "table": str(before.snapshot.summary),
            "postfix": names["bar"],
            "repr": repr(names["numbers"]),
            "commands": "\n\n".join(
                [
                    command(folder, "head", "-n", "1"),
                    command(folder, "bench", "--seconds", "2"),
                ]
            ),
            "error": output_of_program(folder, ERROR),
            "stall": output_of_program(folder, STALL_THREADS),
            "stall-worker": output_of_program(folder, STALL_WORKERS),
        }
        insert(texts)
        output_of_program(folder, WORKERS)
        (folder / "train.py").write_text(VERDICT)
        output_of(
            folder,
            "-m",
            "gristmill",
            "diagnose",
            "train.py:ds",
            "--seconds",
            "2",
            "--html",
            "verdict.html",
        )
        take_screenshots(folder, chromium)


if __name__ == "__main__":
    main()
