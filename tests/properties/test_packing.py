"""Packing against its definition, written as naively as possible, and laws that need no
definition.
"""

import json

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill import MapDataset, ReadOptions
from gristmill.experimental import (
    BestFitPackIterDataset,
    BOSHandling,
    ConcatThenSplitIterDataset,
    FirstFitPackIterDataset,
)

BOS_ID = 10**6
QUICK = settings(max_examples=90, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def stream(elements):
    return MapDataset.source(elements).to_iter_dataset(ReadOptions(num_threads=0))


def plain(element):
    if isinstance(element, dict):
        return {key: plain(value) for key, value in element.items()}
    return element.tolist() if hasattr(element, "tolist") else element


def check_states(ds):
    """Every position restores, through JSON, on a fresh and on a used iterator; returns the
    elements.
    """
    it = iter(ds)
    states, rows = [it.get_state()], []
    for row in it:
        rows.append(plain(row))
        states.append(it.get_state())
    used = iter(ds)
    for position, state in reversed(list(enumerate(states))):
        for again in (iter(ds), used):
            again.set_state(json.loads(json.dumps(state)))
            assert again.get_state() == state
            assert [plain(row) for row in again] == rows[position:]
            assert again.get_state() == states[-1]
    return rows


@st.composite
def sequences(draw, most, lengths):
    """Elements, each with at most ``most`` tokens of each feature; one token may be a scalar."""
    elements = []
    for i in range(draw(st.integers(0, most))):
        element = {"k": f"element {i}"}
        for f, length in lengths.items():
            n = draw(st.integers(0, length))
            element[f] = 100 * i if n == 1 and draw(st.booleans()) else 100 * i + np.arange(n)
        elements.append(element)
    return elements


@st.composite
def bin_cases(draw):
    lengths = {"x": draw(st.integers(1, 9))}
    if draw(st.booleans()):
        lengths["y"] = draw(st.integers(1, 9))
    meta = draw(st.sampled_from([[], ["k"], *[["y"], ["y", "k"]] * ("y" in lengths)]))
    elements = draw(sequences(25, lengths))
    optional = {
        "pack_alignment_struct": st.fixed_dictionaries(
            {}, optional={f: st.integers(1, 4) for f in lengths}
        ),
        "padding_struct": st.fixed_dictionaries(
            {}, optional={f: st.sampled_from([None, -1, 7]) for f in lengths}
        ),
        "max_sequences_per_bin": st.integers(1, 4),
        "shuffle_bins_group_by_feature": st.sampled_from(list(lengths)),
        "seed": st.integers(0, 2**40),
        "shuffle_bins": st.booleans(),
    }
    return elements, {
        "length_struct": lengths,
        "num_packing_bins": draw(st.integers(1, 6)),
        "meta_features": meta,
        **draw(st.fixed_dictionaries({}, optional=optional)),
    }


def pack(
    elements,
    best,
    length_struct,
    num_packing_bins,
    meta_features,
    seed=0,
    shuffle_bins=True,
    **more,
):
    """All rows, and for each the numbers of the elements in it."""
    limit = more.get("max_sequences_per_bin")
    batches, batch = [], None
    for i, element in enumerate(elements):
        sequences = {f: np.atleast_1d(element[f]) for f in length_struct}
        for _ in range(2):
            if batch is None:
                batch = [
                    {"marks": dict.fromkeys(length_struct, 0), "elements": [], "starts": []}
                    for _ in range(num_packing_bins)
                ]
                batches.append(batch)
            suited = [
                b
                for b in batch
                if all(b["marks"][f] + len(s) <= length_struct[f] for f, s in sequences.items())
                and (limit is None or len(b["elements"]) < limit)
            ]
            if suited:
                break
            batch = None
        chosen = suited[0]
        if best:
            fullest = max(sum(b["marks"].values()) for b in suited)
            chosen = next(b for b in suited if sum(b["marks"].values()) == fullest)
        chosen["elements"].append(i)
        chosen["starts"].append(dict(chosen["marks"]))
        for f, s in sequences.items():
            end, a = chosen["marks"][f] + len(s), more.get("pack_alignment_struct", {}).get(f, 1)
            chosen["marks"][f] = end + -end % a
    rows, members = [], []
    for batch in batches:
        used = [b for b in batch if b["elements"]]
        made = [
            row_of(elements, b, length_struct, meta_features, more.get("padding_struct", {}))
            for b in used
        ]
        order = range(len(used))
        if shuffle_bins:
            order = np.random.default_rng(seed + len(rows)).permuted(range(len(used))).tolist()
            group = more.get("shuffle_bins_group_by_feature")
            if group is not None:
                distinct = [set(row[group]) for row in made]
                means = [sum(d) / max(sum(v != 0 for v in d), 1) for d in distinct]
                key = order
                order = sorted(range(len(used)), key=lambda i: (means[i], key[i]))
        members += [used[i]["elements"] for i in order]
        rows += [made[i] for i in order]
    return rows, members


def row_of(elements, packed, length_struct, meta, paddings):
    row = {}
    for f, length in length_struct.items():
        values = [paddings.get(f) or 0] * length
        segment_ids, positions = [0] * length, [0] * length
        for number, (i, start) in enumerate(
            zip(packed["elements"], packed["starts"], strict=True), 1
        ):
            for k, token in enumerate(np.atleast_1d(elements[i][f]).tolist()):
                values[start[f] + k], segment_ids[start[f] + k], positions[start[f] + k] = (
                    token,
                    number,
                    k,
                )
        row[f] = values
        if f not in meta:
            row |= {f"{f}_segment_ids": segment_ids, f"{f}_positions": positions}
    if "k" in meta:
        row["k"] = [elements[i]["k"] for i in packed["elements"]]
    return row


# by what it begins with, a whole feature is a meta feature
_NESTED = {"x": ("in", "x"), "y": ("y", "deep", "z")}


def nested(features):
    """Features, or what belongs to them, in their places in dicts of dicts."""
    found = {}
    for name, value in features.items():
        base, *rest = name.split("_", 1)
        *outer, last = _NESTED.get(base, (base,))
        inner = found
        for key in outer:
            inner = inner.setdefault(key, {})
        inner["_".join([last, *rest])] = value
    return found


@QUICK
@given(bin_cases(), st.booleans(), st.booleans())
def test_bins_are_those_of_the_definition(case, best, are_nested):
    elements, arguments = case
    if are_nested:
        arguments.pop("shuffle_bins_group_by_feature", None)
    cls = BestFitPackIterDataset if best else FirstFitPackIterDataset
    expected, members = pack(elements, best, **arguments)
    assert sorted(i for row in members for i in row) == list(range(len(elements)))
    if are_nested:
        elements, expected = [[nested(x) for x in flat] for flat in (elements, expected)]
        arguments |= {
            name: nested(value) for name, value in arguments.items() if name.endswith("_struct")
        }
    assert check_states(cls(stream(elements), **arguments)) == expected


@st.composite
def concat_cases(draw):
    lengths = {
        f: draw(st.integers(1, 7))
        for f in draw(st.sampled_from(["a", "ab", "abc", "am", "abm", "mab"]))
    }
    bos = draw(st.lists(st.sampled_from([f for f in lengths if f != "m"]), unique=True))
    elements = draw(
        sequences(14, {f: length if f == "m" else 3 * length for f, length in lengths.items()})
    )
    for element in elements:
        del element["k"]
    arguments = {"length_struct": lengths, "split_full_length_features": draw(st.booleans())}
    if bos:
        arguments |= {
            "bos_handling": BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS,
            "bos_features": bos,
            "bos_token_id": BOS_ID,
        }
    return elements, arguments | {"meta_features": ["m"] if "m" in lengths else []}


def split(
    elements, length_struct, meta_features, split_full_length_features=True, bos_features=(), **_
):
    """All rows, each the list of its pieces: for each feature the tokens."""
    names = list(length_struct)
    waiting = [
        {f: np.atleast_1d(element[f]).tolist() for f in names} | {"whole": True}
        for element in elements
    ]
    rows = []
    while waiting:
        row, passed, used = [], [], dict.fromkeys(names, 0)
        while waiting:
            piece = waiting[0]
            room = {f: length_struct[f] - used[f] for f in names}
            excess = {f: len(piece[f]) - length_struct[f] for f in names}
            if piece["whole"] and not split_full_length_features and max(excess.values()) == 0:
                passed.append([waiting.pop(0)])
                continue
            if any(len(piece[f]) > room[f] for f in meta_features):
                break
            left = {f: piece[f] if f in meta_features else piece[f][: room[f]] for f in names}
            right = {f: piece[f] if f in meta_features else piece[f][room[f] :] for f in names}
            is_cut = any(right[f] for f in names if f not in meta_features)
            if (
                is_cut
                and piece["whole"]
                and not any(left[f] for f in names if f not in meta_features)
            ):
                break
            row.append(left)
            used = {f: used[f] + len(left[f]) for f in names}
            waiting.pop(0)
            if is_cut:
                waiting.insert(0, right | {"whole": False})
                break
        rows += [row, *passed] if row else passed
    return [row_of_pieces(row, length_struct, meta_features, bos_features) for row in rows]


def row_of_pieces(pieces, length_struct, meta, bos):
    row = {}
    for f, length in length_struct.items():
        values = [[BOS_ID, *p[f][1:]] if f in bos and p[f] else p[f] for p in pieces]
        unused = [0] * (length - sum(map(len, values)))
        row[f] = [token for v in values for token in v] + unused
        if f not in meta:
            row[f"{f}_segment_ids"] = [i for i, v in enumerate(values, 1) for _ in v] + unused
            row[f"{f}_positions"] = [k for v in values for k in range(len(v))] + unused
    return row


@QUICK
@given(concat_cases())
def test_rows_have_all_tokens_in_order(case):
    elements, arguments = case
    rows = check_states(ConcatThenSplitIterDataset(stream(elements), **arguments))
    assert rows == split(elements, **arguments)
    bos = arguments.get("bos_features", ())
    for f in [f for f in arguments["length_struct"] if f != "m"]:
        expected = [token for element in elements for token in np.atleast_1d(element[f]).tolist()]
        got, is_first = [], []
        for row in rows:
            used = sum(map(bool, row[f"{f}_segment_ids"]))
            # nothing unused in between
            assert all(row[f"{f}_segment_ids"][:used]) and not any(row[f][used:])
            got += row[f][:used]
            is_first += [position == 0 for position in row[f"{f}_positions"][:used]]
        if not arguments["split_full_length_features"]:  # these may overtake others
            assert len(got) == len(expected)
            assert f in bos or sorted(got) == sorted(expected)
        else:
            marked = [
                BOS_ID if first and f in bos else token
                for first, token in zip(is_first, expected, strict=True)
            ]
            assert got == marked
