"""Writes ``gristmill_<version>.json``: states and descriptions of pipelines that this version writes. They restore for ever.

Run as ``python make_own_golden.py`` for a version that writes something else than the one before. Files of versions that were
released are never written again.
"""

import json
import os
import tempfile
from pathlib import Path

from golden_pipelines import plain
from make_golden import HERE, NUM_OF_ENDLESS, positions, write_file
from own_pipelines import pipelines

import gristmill
from gristmill.checkpoint import CheckpointHandler


def files(it):
    """The state and the rest of the checkpoint, as they are in its files."""
    with tempfile.TemporaryDirectory() as directory:
        CheckpointHandler().save(directory, item=it)
        state, pipeline = [json.loads((Path(directory) / f"{kind}_0-of-1.json").read_text()) for kind in ("process", "pipeline")]
    return state, pipeline


def follow(name, ds):
    """All elements; by how many came before them, the states with their checksums; and the description of the pipeline."""
    elements, found = [], []
    with iter(ds) as it:
        found.append(files(it))
        for element in it:
            elements.append(plain(element))
            found.append(files(it))
            if "endless" in name and len(elements) == NUM_OF_ENDLESS:
                break
        kept = sorted(positions(name, len(elements), is_newest=False))
        states = [[i, found[i][0], found[i][1]["state_crc32"]] for i in kept]
        if "endless" not in name:
            state, pipeline = files(it)
            states.append([len(elements), state, pipeline["state_crc32"]])
    description = found[0][1]
    assert all(pipeline["pipeline"] == description["pipeline"] for _, pipeline in found)
    return {"pipeline": description["pipeline"], "elements": elements, "states": states}


def main():
    os.chdir(HERE)
    library = f"gristmill {gristmill.__version__}"
    found = {name: follow(name, make()) for name, make in pipelines(gristmill).items()}
    write_file(HERE / f"{library.replace(' ', '_')}.json", library, found)


if __name__ == "__main__":
    main()
