"""Writes ``grain_<release>.json``: states that a release of Grain wrote, and the elements that follow. They restore for ever.

Run as ``python make_golden.py [pipeline ...]`` in an environment with that release, JAX and pyarrow; ``GOLDEN_SECONDS=0.7``
lets one of the pipelines take longer than the 3 seconds after which releases before 0.2.16 noted the states of workers anew.
What another release than the newest one cannot make is left out.
"""

import importlib.metadata
import itertools
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

from golden_pipelines import pipelines, plain

HERE = Path(__file__).parent
NEWEST = "0.2.18"
NUM_OF_ENDLESS = 12
# What is kept of other releases: ``DataLoader`` and ``mp_prefetch``, and what looks like something else today.
OF_OTHERS = """
    loader loader_operations loader_shared_memory loader_endless loader_workers_3 loader_dry_worker loader_flat_map_workers
    workers_3 workers_files workers_repeated workers_noted nested mix interleave interleave_by_name interleave_all
    window_shuffle threads_2 threads_of_files
"""


def positions(name, n, *, is_newest):
    """Those among ``n`` elements of which states are kept; restoring those with worker processes takes longest."""
    if not is_newest:
        return {0, 1, n // 2, n // 2 + 1, n}
    if "worker" in name:
        return {0, 1, 2, n // 2, n // 2 + 1, n - 1, n}
    if n <= 12:
        return set(range(n + 1))
    return {0, 1, 2, 3, 4, n // 3, n // 3 + 1, n // 2, n // 2 + 1, 2 * n // 3, n - 2, n - 1, n}


def follow(name, make, *, is_newest):
    """All elements, and states by how many elements came before them; the last one is from after the end."""
    it, is_endless = iter(make()), "endless" in name
    elements, states = [], [as_json(it.get_state())]
    for element in itertools.islice(it, NUM_OF_ENDLESS) if is_endless else it:
        elements.append(plain(element))
        states.append(as_json(it.get_state()))
    kept = [[i, states[i]] for i in sorted(positions(name, len(elements), is_newest=is_newest))]
    if not is_endless:
        kept.append([len(elements), as_json(it.get_state())])
    if hasattr(it, "close"):
        it.close()
    return {"elements": elements, "states": kept}


def as_json(state):
    text = state.decode() if isinstance(state, bytes) else json.dumps(state, indent=4)
    value = json.loads(text)
    assert json.dumps(value, indent=4) == text, text
    return value


def import_grain():
    try:
        import grain.python as old
        from absl import flags

        flags.FLAGS(sys.argv[:1])  # workers need them parsed
    except ImportError:
        old = None
    import grain

    names = {name: getattr(grain, name) for name in dir(grain)}
    if "MultiprocessingOptions" not in names and old is not None:
        names.update(MultiprocessingOptions=old.MultiprocessingOptions, ReadOptions=old.ReadOptions)
    return SimpleNamespace(**names)


def write_file(path, header, found):
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(golden)}" for name, golden in found.items())
    path.write_text(f"{{\n{json.dumps('written_by')}: {json.dumps(header)},\n{lines}\n}}\n")


def main():
    os.chdir(HERE)
    release = importlib.metadata.version("grain")
    made = pipelines(import_grain())
    found = {}
    is_newest = release == NEWEST
    for name in sys.argv[1:] or (made if is_newest else OF_OTHERS.split()):
        try:
            found[name] = follow(name, made[name], is_newest=is_newest)
            print(name, len(found[name]["elements"]), flush=True)
        except Exception as error:
            if is_newest:
                raise
            print(f"{name} is left out: {error!r:.100}", flush=True)
    write_file(HERE / f"grain_{release}.json", f"grain {release}", found)


if __name__ == "__main__":
    main()
