"""Random pipelines over the whole Dataset API, nested ones too, and of the DataLoader, in Grain
0.2.18 and here.

Lengths, elements, errors, states at every step, indices and element specs are compared, and we
continue from Grain's states. The pipelines keep away from where we differ on purpose, or the
comparison knows it: ``test_peer.py``. ``GRISTMILL_PEER_SEED`` and ``GRISTMILL_PEER_COUNT`` make
``test_random_datasets`` try others, and more.
"""

import concurrent.futures
import json
import os
import re

import pytest
from peer_driver import known, same_state
from peer_pipelines import Pipelines
from peer_process import needs_grain, run

pytestmark = needs_grain
STOP = ["StopIteration", "Exception", "BaseException", "object"]
OVERFLOW = ["OverflowError", "ArithmeticError", "Exception", "BaseException", "object"]
BATCH = 100  # pipelines of a process


class Different(Exception):
    """The difference between Grain's result and ours, in words."""


def compare(specs):
    """Grain's results for each of ``specs``, and the differences, if any."""
    # Buffers have no effect on the results, but without one Grain's are left to chance: its threads
    # and its consumer race.
    peers = run(
        "grain",
        [
            {**spec, "code": spec["code"].replace("buffer_size=0", "buffer_size=1")}
            for spec in specs
        ],
    )
    codes = [in_lanes(spec["code"]) if spec.get("in_lanes") else spec["code"] for spec in specs]
    same = zip(specs, codes, peers, strict=True)
    ours = run(
        "gristmill", [{**spec, "code": code, **to_restore(spec, peer)} for spec, code, peer in same]
    )
    found = []
    for spec, peer, our in zip(specs, peers, ours, strict=True):
        try:
            found.append((peer, check(spec, peer, our)))
        except Different as difference:
            found.append((peer, f"{spec['code']}\n    {difference}"))
    return found


def in_lanes(code):
    return re.sub(
        r"(MultiprocessingOptions\(|worker_count=)(\d)",
        lambda found: f"{found[1]}{int(found[2]) // 2}, num_lanes={found[2]}",
        code,
    )


def check_equal(specs):
    batches = [specs[i : i + BATCH] for i in range(0, len(specs), BATCH)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = [pair for batch in pool.map(compare, batches) for pair in batch]
    assert not any(difference for _, difference in found), "\n".join(
        difference for _, difference in found if difference
    )
    return [peer for peer, _ in found]


def to_restore(spec, peer):
    """Grain's states, for us to continue from."""
    if "run" not in peer or is_error(peer["start"]) or not spec.get("restores", True):
        return {}
    run, n = peer["run"], len(peer["run"]["states"])
    states = [peer["start"], *run["states"]] + ([run["end_state"]] if run["end"] == STOP else [])
    # A full cache stays full when its iterator goes back, so that states are others then, in Grain
    # as well.
    return {
        "states": states,
        "restore": [0, n // 2, n // 2, n],
        "in_place": "CacheIterDataset" not in spec["code"],
    }


def check(spec, peer, ours):
    if "hangs" in peer:  # Grain repeats the empty shard of a thread forever
        expect("end", True, "Repeat" in spec["code"] and "multithread_prefetch" in spec["code"])
        return
    if "error" in peer:
        # Grain makes the first datasets of an interleave when its state is asked for.
        if "error" not in ours and "lambda: " in spec["code"]:
            return
        expect("construction", peer, ours)
        return
    if "error" in ours:
        # We refuse some at construction that Grain refuses at the first element.
        run = peer.get("run", {"elements": None})
        expect(
            "construction",
            {"error": run["end"]} if run["elements"] == [] and run["end"] else "accepted",
            ours,
        )
        return
    if "length" in peer:
        expect("length", peer["length"], ours["length"])
        expect("length by the rules", spec["length"], ours["length"])
        for index, theirs, mine in zip(
            spec["indices"], peer["indexed"], ours["indexed"], strict=True
        ):
            # "random_map_at_negative_index"
            if theirs != {"error": OVERFLOW} or "andom" not in spec["code"]:
                expect(f"[{index}]", theirs, mine)
    if "element_spec" in peer and not lacks(peer["element_spec"]):
        expect("element spec", peer["element_spec"], ours["element_spec"])
    check_next_indices(spec, peer, ours)
    if "run" in peer:
        check_run(spec, peer, ours)


def check_next_indices(spec, peer, ours):
    facts = spec["facts"]
    if "gaps" in facts:  # "indices_with_gaps"
        return
    for step, (theirs, mine) in enumerate(
        zip(peer.get("next_index", ()), ours.get("next_index", ()), strict=False)
    ):
        # "indices_behind_threads"
        if lacks(theirs) or (lacks(mine) and ("refetch" in spec["code"] or "interleaved" in facts)):
            return
        if is_error(theirs) and mine is None:  # "index_of_the_end"
            expect("set_next_index", theirs, {"error": ["IndexError"]})
            return
        # "index_behind_a_limit"
        if theirs is None and is_error(mine) and mine["error"][0] == "StateIndexError":
            return
        if theirs == 0 and "interleaved" in facts:  # "index_of_interleave_at_its_end"
            return
        expect(f"step {step} of next indices", theirs, mine)
        if is_error(theirs):
            return


def check_run(spec, peer, ours):
    facts = spec["facts"]
    # "caches_that_are_full"
    has_full_caches = "CacheIterDataset" in spec["code"] and "RepeatIterDataset" in spec["code"]
    theirs, mine = peer["run"], ours["run"]
    if is_error(peer["start"]):  # a dataset of an interleave could not be made
        return
    # "random_map_at_negative_index", "datasets_that_cannot_be_made"
    is_too_early = theirs["end"] == OVERFLOW and "andom" in spec["code"]
    is_too_early |= theirs["end"] not in (None, STOP) and "lambda: " in spec["code"]
    if is_too_early and len(mine["elements"]) > len(theirs["elements"]):
        expect("elements", theirs["elements"], mine["elements"][: len(theirs["elements"])])
        return
    expect_elements(theirs, mine, 0)
    if mine["end"] == STOP:
        if "ends" not in facts:
            expect("what follows the end", theirs["again"], mine["again"])
    elif mine["end"]:
        # What was skipped may count as delivered or not.
        last = without([ours["start"], *mine["states"]][-1], "next_index")
        expect("state after an error", last, without(mine["end_state"], "next_index"))
    their_states, my_states = all_states(peer["start"], theirs), all_states(ours["start"], mine)
    unlike = [
        i
        for i, (a, b) in enumerate(zip(their_states, my_states, strict=True))
        if not same_state(b, a)
    ]
    if "repeated" in facts:  # "third_epoch_of_interleave"
        for i in unlike if "ends" not in facts else ():
            expect(
                f"state {i}",
                without(their_states[i], "exhausted"),
                without(my_states[i], "exhausted"),
            )
    elif unlike and "ends" not in facts and not has_full_caches:  # "states_at_the_end"
        expect(f"state {unlike[0]}", their_states[unlike[0]], my_states[unlike[0]])
    for position, restored in ours["restored"]:
        if position in unlike and "repeated" in facts:
            continue
        if (
            restored["end"] not in (STOP, theirs["end"])
            and "filter_raise_threshold_ratio" in spec["code"]
        ):
            continue  # what earlier restores read counts, here and in Grain
        place = f"after restoring state {position}, {json.dumps(their_states[position])}: "
        expect(place + "success", True, "error" not in restored or restored)
        expect_state(place + "state", their_states[position], restored["state"])
        position = min(position, len(theirs["elements"]))  # that of the end
        expect_elements(theirs, restored, position, place)
        if position not in unlike and not has_full_caches:
            common = [
                known(mine, theirs) for mine, theirs in zip(my_states, their_states, strict=True)
            ]
            following = list(
                zip(common[position + 1 :], all_states(None, restored)[1:], strict=True)
            )
            for a, b in following[:-1] if "ends" in facts else following:
                expect_state(place + "following state", a, b)


def all_states(start, run):
    return [start, *run["states"]] + ([run["end_state"]] if run["end"] == STOP else [])


def expect_elements(theirs, mine, start, place=""):
    for i, (a, b) in enumerate(zip(theirs["elements"][start:], mine["elements"], strict=False)):
        expect(f"{place}element {start + i}", a, b)
    expect(f"{place}number of elements", len(theirs["elements"]) - start, len(mine["elements"]))
    ends = [{"error": run["end"]} if run["end"] else None for run in (theirs, mine)]
    expect(f"{place}end", *ends)


def expect_state(what, theirs, mine):
    if not same_state(mine, theirs):
        expect(what, theirs, mine)


def expect(what, theirs, mine):
    """Errors must be of Grain's class."""
    if is_error(theirs) and is_error(mine):
        kind = theirs["error"][0]
        # "empty_index"
        if kind in mine["error"] or (kind == "ZeroDivisionError" and "IndexError" in mine["error"]):
            return
    if json.dumps(theirs, sort_keys=True) != json.dumps(mine, sort_keys=True):
        raise Different(f"{what}: {brief(theirs)} in Grain, {brief(mine)} here")


def brief(value):
    text = value["error"][0] if is_error(value) else json.dumps(value)
    return text if len(text) < 1000 else text[:1000] + "..."


def is_error(value):
    return isinstance(value, dict) and "error" in value


def lacks(value):
    return is_error(value) and value["error"][0] == "NotImplementedError"


def without(state, left_out):
    """``state`` without the values of a key, anywhere in it."""
    if isinstance(state, dict):
        return {key: without(value, left_out) for key, value in state.items() if key != left_out}
    return [without(value, left_out) for value in state] if isinstance(state, list) else state


def random_specs(seed, count):
    rng = Pipelines(seed)
    return [rng.next_spec() for _ in range(count)]


def test_random_datasets():
    seed = os.environ.get("GRISTMILL_PEER_SEED", "20261120")
    peers = check_equal(random_specs(seed, int(os.environ.get("GRISTMILL_PEER_COUNT", "100"))))
    # Most have to work, or the comparison means little.
    assert sum("error" not in peer for peer in peers) > 0.9 * len(peers)
    runs = [peer["run"] for peer in peers if "run" in peer]
    assert sum(len(found["elements"]) > 2 for found in runs) > 0.5 * len(runs)
    assert sum(found["end"] in (None, STOP) for found in runs) > 0.8 * len(runs)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_random_datasets():
    check_equal(random_specs("many", 120))


@pytest.mark.slow
@pytest.mark.timeout(900)  # Grain's processes take their time to start
def test_random_datasets_with_workers():
    rng = Pipelines("workers")
    specs = [*[rng.workers_spec() for _ in range(2)], *[rng.files_spec() for _ in range(2)]]
    check_equal([{**spec, "in_lanes": i % 2 == 0} for i, spec in enumerate(specs)])
