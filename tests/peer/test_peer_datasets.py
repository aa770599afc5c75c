"""Random pipelines over the whole Dataset API, nested ones too, in Grain 0.2.18 and here."""

import concurrent.futures
import json
import os

import pytest
from peer_pipelines import Pipelines, smaller
from peer_process import needs_grain, run

pytestmark = needs_grain


def compare(specs):
    """What differs, as text, for every one of ``specs``; ``None`` if nothing does."""
    found = compare_once(specs)
    # "interleave_races": what differs by chance in Grain does not count.
    again = []
    for _ in range(3):
        if again:
            repeated = compare_once([specs[i] for i in again])
            for i, d in zip(again, repeated):
                found[i] = d and found[i]
            again = [i for i, d in zip(again, repeated, strict=True) if d]
    return found


def compare_once(specs):
    plain = [{key: value for key, value in spec.items() if key != "node"} for spec in specs]
    # Buffers have no effect on the results; but with none of them Grain's are left to chance: "race_without_buffer".
    peers = run("grain", [{**spec, "code": spec["code"].replace("buffer_size=0", "buffer_size=1")} for spec in plain])
    with_states = [{**spec, "states": states_to_restore(spec, peer)} for spec, peer in zip(plain, peers, strict=True)]
    ours = run("gristmill", with_states)
    return [difference(spec, peer, our) for spec, peer, our in zip(specs, peers, ours, strict=True)]


def states_to_restore(spec, peer):
    if "start" not in peer or not spec.get("restores", True):
        return []
    states = [peer["start"], *peer["run"]["states"]]
    n = len(states) - 1
    return [[position, states[position]] for position in (0, n // 2, n // 2, n)]


def difference(spec, peer, ours):
    if "error" in peer:
        found = ours.get("error") or (ours["run"]["end"] if spec["limit"] and not ours["run"]["elements"] else None)
        return None if found and peer["error"][0] in found else f"Grain refuses it: {peer['error'][0]}, we: {found}"
    if "error" in ours:
        run = peer.get("run", {"elements": [], "end": None})
        if not run["elements"] and run["end"] and run["end"][0] in [*ours["error"]]:
            return None
        return f"we refuse it: {ours['error'][0]}; Grain: {peer}"
    if ours.get("length") != peer.get("length"):
        return f"length {peer['length']} in Grain, {ours['length']} here"
    if "length" in peer and peer["length"] != spec["node"].length != -1:
        return f"length {peer['length']} in both, {spec['node'].length} expected"
    for index, theirs, mine in zip(spec["indices"], peer.get("indexed", ()), ours.get("indexed", ()), strict=False):
        if not same(mine, theirs) and not is_better(mine, theirs, index):
            return f"[{index}] is {theirs} in Grain, {mine} here"
    for name in ("element_spec",):
        if name in peer and not same(ours[name], peer[name]) and not is_more(ours[name], peer[name]):
            return f"{name} is {peer[name]} in Grain, {ours[name]} here"
    if "next_index" in peer:
        for i, (mine, theirs) in enumerate(zip(ours["next_index"], peer["next_index"], strict=False)):
            if is_error(mine) and mine["error"][0] == "NotImplementedError" and knows_no_index(spec):
                break
            if is_error(theirs):
                if not (is_error(mine) and same_end(mine["error"], theirs["error"])) and not is_more(mine, theirs):
                    return f"next_index, step {i}: {theirs} in Grain, {mine} here"
                break
            if mine != theirs:
                return f"next_index, step {i}: {theirs} in Grain, {mine} here"
    if spec["limit"]:
        return run_difference(spec, peer, ours)
    return None


def run_difference(spec, peer, ours):
    repeated = "repeated" in spec["node"].facts
    if not same_state(ours["start"], peer["start"], repeated):
        return f"initial state {peer['start']} in Grain, {ours['start']} here"
    found = follow_difference(ours["run"], peer["run"], 0, repeated, ours["start"])
    if found:
        return found
    mine = [ours["start"], *ours["run"]["states"]]
    theirs = [peer["start"], *peer["run"]["states"]]
    for position, restored in ours["restored"]:
        if "DataLoader" not in spec["code"] and text(mine[position]) != text(theirs[position]):
            continue
        if "error" in restored:
            return f"Grain's state {theirs[position]} at {position} is refused: {restored['error'][0]}"
        if not same_state(restored["state"], theirs[position], False):
            return f"Grain's state {theirs[position]} at {position} became {restored['state']}"
        found = follow_difference(restored, peer["run"], position, repeated, restored["state"])
        if found:
            return f"from Grain's state {theirs[position]} at {position}: {found}"
    return None


def follow_difference(mine, theirs, position, repeated, before):
    expected = theirs["elements"][position:]
    for i, (a, b) in enumerate(zip(mine["elements"], expected, strict=False)):
        if a != b:
            return f"element {position + i} is {b} in Grain, {a} here"
    if len(mine["elements"]) != len(expected) or not same_end(mine["end"], theirs["end"]):
        rest = [(len(run["elements"]), run["end"] and run["end"][0]) for run in (theirs, mine)]
        return f"from {position}, {rest[0]} elements and end in Grain, {rest[1]} here"
    for i, (a, b) in enumerate(zip(mine["states"], theirs["states"][position:], strict=False)):
        if not same_state(a, b, repeated):
            return f"state after element {position + i} is {b} in Grain, {a} here"
    if theirs["end"] is None:
        return None
    if theirs["end"][0] == "StopIteration":
        if not same_state(mine["end_state"], theirs["end_state"], repeated):
            return f"state at the end is {theirs['end_state']} in Grain, {mine['end_state']} here"
        if mine["again"] != theirs["again"]:
            return f"after the end: {theirs['again']} in Grain, {mine['again']} here"
    elif text(without(mine["end_state"], "next_index")) != text(without([before, *mine["states"]][-1], "next_index")):
        return f"state after an error is {mine['end_state']}, not that after the last element"
    return None


def text(value):
    return json.dumps(value, sort_keys=True)


def same_state(mine, theirs, repeated):
    if repeated:  # "third_epoch_of_interleave"
        mine, theirs = without(mine, "exhausted"), without(theirs, "exhausted")
    if isinstance(theirs, dict) and isinstance(mine, dict):
        mine = {key: value for key, value in mine.items() if key in theirs}
    return text(mine) == text(theirs)


def without(state, left_out):
    """``state`` without the values of a key, anywhere in it."""
    if isinstance(state, dict):
        return {key: without(value, left_out) for key, value in state.items() if key != left_out}
    return [without(value, left_out) for value in state] if isinstance(state, list) else state


def knows_no_index(spec):
    """Whether we do not number elements where Grain does: "indices_with_gaps", "indices_behind_threads"."""
    return "gaps" in spec["node"].facts or "refetch" in spec["code"]


def is_error(value):
    return isinstance(value, dict) and "error" in value


def same(mine, theirs):
    if is_error(theirs):
        return is_error(mine) and theirs["error"][0] in mine["error"]
    return mine == theirs


def same_end(mine, theirs):
    if mine is None or theirs is None:
        return mine == theirs
    return theirs[0] in mine or (theirs[0] == "ZeroDivisionError" and "IndexError" in mine)  # "empty_index"


def is_better(mine, theirs, index):
    if not is_error(theirs):
        return False
    kind = theirs["error"][0]
    if kind == "ZeroDivisionError":  # "empty_index"
        return is_error(mine) and "IndexError" in mine["error"]
    return kind == "OverflowError" and index < 0 and not is_error(mine)  # "random_map_at_negative_index"


def is_more(mine, theirs):
    return is_error(theirs) and theirs["error"][0] == "NotImplementedError"


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
