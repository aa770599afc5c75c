"""Random pipelines over the whole Dataset API, nested ones too, in Grain 0.2.18 and here."""

import concurrent.futures
import json
import os

import pytest
from peer_driver import same_state
from peer_pipelines import Pipelines, smaller
from peer_process import needs_grain, run

pytestmark = needs_grain

STOP = ["StopIteration", "Exception", "BaseException", "object"]


class Different(Exception):
    """What differs between Grain and us, in words."""


def compare(specs):
    """What differs, for every one of ``specs``; ``None`` if nothing does."""
    plain = [{key: value for key, value in spec.items() if key != "node"} for spec in specs]
    # Buffers have no effect on the results, but without one Grain's are left to chance: "race_without_buffer".
    peers = run("grain", [{**spec, "code": spec["code"].replace("buffer_size=0", "buffer_size=1")} for spec in plain])
    ours = run("gristmill", [{**spec, **to_restore(spec, peer)} for spec, peer in zip(plain, peers, strict=True)])
    found = []
    for spec, peer, our in zip(specs, peers, ours, strict=True):
        try:
            check(spec, peer, our)
        except Different as difference:
            found.append(str(difference))
        else:
            found.append(None)
    return found


def to_restore(spec, peer):
    """Grain's states, for us to go on from."""
    if "run" not in peer or is_error(peer["start"]) or not spec.get("restores", True):
        return {}
    run, n = peer["run"], len(peer["run"]["states"])
    states = [peer["start"], *run["states"]] + ([run["end_state"]] if run["end"] == STOP else [])
    # A full cache stays full when its iterator goes back, so that states are others then, in Grain as well.
    return {"states": states, "restore": [0, n // 2, n // 2, n], "in_place": "CacheIterDataset" not in spec["code"]}


def check(spec, peer, ours):
    if "error" in peer:
        # Grain makes the first datasets of an interleave when its state is asked for.
        if "error" not in ours and "lambda: " in spec["code"]:
            return
        expect("construction", peer, ours)
        return
    if "error" in ours:
        # We refuse some at construction that Grain refuses at the first element.
        run = peer.get("run", {"elements": None})
        expect("construction", {"error": run["end"]} if run["elements"] == [] and run["end"] else "accepted", ours)
        return
    if "length" in peer:
        expect("length", peer["length"], ours["length"])
        if not spec.get("shrunk"):
            expect("length by the rules", spec["node"].length, ours["length"])
        for index, theirs, mine in zip(spec["indices"], peer["indexed"], ours["indexed"], strict=True):
            is_overflow = is_error(theirs) and theirs["error"][0] == "OverflowError"
            if not (is_overflow and "andom" in spec["code"] and not is_error(mine)):  # "random_map_at_negative_index"
                expect(f"[{index}]", theirs, mine)
    if "element_spec" in peer and not lacks(peer["element_spec"]):
        expect("element spec", peer["element_spec"], ours["element_spec"])
    check_next_indices(spec, peer, ours)
    if "run" in peer:
        check_run(spec, peer, ours)


def check_next_indices(spec, peer, ours):
    if "gaps" in spec["node"].facts:  # "indices_with_gaps"
        return
    for step, (theirs, mine) in enumerate(zip(peer.get("next_index", ()), ours.get("next_index", ()), strict=False)):
        if lacks(theirs) or (lacks(mine) and "refetch" in spec["code"]):  # "indices_behind_threads"
            return
        if is_error(mine) and "IndexError" in mine["error"] and theirs is None:  # "indices_behind_the_end"
            return
        expect(f"step {step} of next indices", theirs, mine)
        if is_error(theirs):
            return


def check_run(spec, peer, ours):
    facts = spec["node"].facts
    theirs, mine = peer["run"], ours["run"]
    if is_error(peer["start"]):  # a dataset of an interleave could not be made
        return
    expect_elements(theirs, mine, 0)
    if mine["end"] == STOP:
        expect("what follows the end", theirs["again"], mine["again"])
    elif mine["end"]:
        # What was left out may count as delivered or not.
        last = without([ours["start"], *mine["states"]][-1], "next_index")
        expect("state after an error", last, without(mine["end_state"], "next_index"))
    their_states, my_states = all_states(peer["start"], theirs), all_states(ours["start"], mine)
    unlike = [i for i, (a, b) in enumerate(zip(their_states, my_states, strict=True)) if not same_state(b, a)]
    if "repeated" in facts:  # "third_epoch_of_interleave"
        for i in unlike:
            expect(f"state {i}", without(their_states[i], "exhausted"), without(my_states[i], "exhausted"))
    elif unlike and "ends" not in facts and not ("Cache" in spec["code"] and "Repeat" in spec["code"]):
        # "states_at_the_end", "caches_that_are_full"
        expect(f"state {unlike[0]}", their_states[unlike[0]], my_states[unlike[0]])
    for position, restored in ours["restored"]:
        if position in unlike and "repeated" in facts:
            continue
        place = f"after restoring state {position}, {json.dumps(their_states[position])}: "
        expect(place + "success", True, "error" not in restored or restored)
        expect_state(place + "state", their_states[position], restored["state"])
        position = min(position, len(theirs["elements"]))  # that of the end
        expect_elements(theirs, restored, position, place)
        if position not in unlike:
            following = list(zip(my_states[position + 1 :], all_states(None, restored)[1:], strict=True))
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
        if kind in mine["error"] or (kind == "ZeroDivisionError" and "IndexError" in mine["error"]):  # "empty_index"
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


def found_differences(seed, count):
    batches = [Pipelines(f"{seed}.{i}") for i in range(-(-count // 100))]
    specs = [[rng.next_spec() for _ in range(100)] for rng in batches]
    found = []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for batch, differences in zip(specs, pool.map(compare, specs), strict=True):
            found += [(spec, d) for spec, d in zip(batch, differences, strict=True) if d]
    return found


def test_random_datasets():
    seed = os.environ.get("GRISTMILL_PEER_SEED", "20261120")
    found = found_differences(seed, int(os.environ.get("GRISTMILL_PEER_COUNT", "200")))
    assert not found, "\n".join(f"{spec['code']}\n    {d}" for spec, d in found)
