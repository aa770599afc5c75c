"""``explain``, for every stage: an output changes if and only if a record of its
lineage changes.
"""

import random

import pytest
from entry import plain
from iter_entries import ITER_ENTRIES
from map_entries import MAP_ENTRIES
from new_seed import SEED
from refusing import assert_raises
from stage_table import WITH_PROCESSES

from gristmill import Ledger, explain
from gristmill.core.record import Record
from gristmill.dataset import MapDataset
from gristmill.dataset.bases.node import ancestors
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.stages.range import RangeMapDataset

# Outputs of these do not always identify the record that they are made of.
LOSSY = (
    "map_with_nones zip_to_the_shortest flat_map_nones flat_map_with_nones flat_map_twice"
    " concat_then_split_bos reshape_chain"
)
# nothing is left of what has no cells
LOSSY += " bucket_batch bucket_batch_lengths bucket_batch_drop"
LOSSY += " disk_cache disk_cache_holes"  # they give what they kept
FILES = ("tfrecord", "parquet", "hugging_face")


def perturbed(x):
    """Another value, by which no function of the table decides otherwise."""
    if isinstance(x, Record):
        return Record(x.metadata, perturbed(x.data))
    if isinstance(x, dict):
        return {key: perturbed(value) for key, value in x.items()}
    return (
        x + "*"
        if isinstance(x, str)
        else ["*"]
        if x is None or isinstance(x, list)
        else x + (1200 if x > 4 else -1200)
    )


def perturb(monkeypatch, key):
    """Lets record ``key`` of all sources be another one."""
    items = RangeMapDataset._gm_items

    def other_items(self, indices):
        chosen = [int(i) % self._length == key for i in indices]
        return iter(
            [
                perturbed(x) if flag else x
                for x, flag in zip(items(self, indices), chosen, strict=True)
            ]
        )

    monkeypatch.setattr(RangeMapDataset, "_gm_items", other_items)
    for module in ("gristmill.dataset.stages.source", "gristmill.loader.records"):
        read = __import__(module, fromlist=["read_items"]).read_items

        def other_read(stage, source, indices, keys, read=read):
            records = zip(keys, read(stage, source, indices, keys), strict=True)
            return iter([perturbed(x) if k == key else x for k, x in records])

        monkeypatch.setattr(f"{module}.read_items", other_read)


def comparable(entry, x):
    if entry.name.startswith("global_batch_pad"):
        return plain([row for row, is_there in zip(*x, strict=True) if is_there])
    return plain(x)


def check_records(entry, outputs_of, told, monkeypatch):
    before = outputs_of()
    assert len(before) == len(told)
    keys = sorted({record.record_key for one in told for record in one.records})
    for key in random.Random(f"{SEED} {entry.name}").sample(keys, min(3, len(keys))):
        with monkeypatch.context() as patch:
            perturb(patch, key)
            after = outputs_of()
        for x, y, one in zip(before, after, told, strict=True):
            used = [record for record in one.records if record.record_key == key]
            if x != y:  # elements that choose datasets are in no output
                assert used or entry.name == "interleave_lazy", f"{one} does not name record {key}"
            elif (
                entry.name not in LOSSY.split()
                and "NoneType" not in (text := str(x))
                and "Dropped" not in text
            ):
                assert all(
                    [
                        record.span is not None and record.span[0] == record.span[1]
                        for record in used
                    ]
                ), one


@pytest.mark.parametrize("entry", MAP_ENTRIES, ids=lambda entry: entry.name)
def test_elements_of_map_datasets(entry, monkeypatch):
    ds = entry.make()
    indices = [*range(-3 if entry.endless else 0, min(len(ds), 30) + (7 if entry.endless else 0))]
    told = [explain(ds, step=i) for i in indices]
    check_records(entry, lambda: [comparable(entry, ds[i]) for i in indices], told, monkeypatch)


@pytest.mark.parametrize(
    "entry", [e for e in ITER_ENTRIES if not e.name.startswith(FILES)], ids=lambda entry: entry.name
)
def test_outputs_of_streams(entry, monkeypatch, tmp_path):
    ds = entry.make()
    it = iter(ds)
    states, told = [it.get_state()], []
    if entry.name == "legacy_operation":
        next(it)
        assert_raises(NotImplementedError, "LegacyOperation", explain, it)
        return
    assert_raises(ValueError, "no output", explain, it)
    ledger = Ledger(tmp_path / "ledger", every=2)
    outputs = []
    for x in ledger.follow(it):
        outputs.append(comparable(entry, x))
        told.append(explain(it))
        states.append(it.get_state())
    assert not told or explain(it) == told[-1]  # at the end, too
    assert [comparable(entry, x.value) for x in Tracing(True).of(ds)] == outputs
    if told:
        assert_raises(ValueError, "no output after", explain, ds, state=states[-1])
    functions = [
        node for node in ancestors(ds) if isinstance(node, MapDataset) and node._gm_may_drop
    ]
    is_arithmetic = not functions  # else steps count indices
    for k, one in enumerate(told):
        assert explain(ds, state=states[k]) == explain(ds, step=k, ledger=ledger) == one
        try:
            assert not is_arithmetic or explain(ds, step=k) == one
        except NotImplementedError as error:
            assert "Ledger" in str(error)
            is_arithmetic = False
    if entry.name in WITH_PROCESSES:
        assert [one.records[0].record_key for one in told] == entry.expected
    else:
        check_records(
            entry, lambda: [comparable(entry, x) for x in entry.make()], told, monkeypatch
        )
    it.close()
