"""Mixtures, concatenations and selections of map datasets, and mixtures of streams."""

import json
import math
import sys

import numpy as np
import pytest
from local_workers import LocalWorkersIterDataset

from gristmill import DatasetSelectionMap, IterDataset, MapDataset, ReadOptions
from gristmill.checkpoint import CheckpointHandler, CheckpointRestore, CheckpointSave
from gristmill.core.errors import StateKeyError, StateMismatchError
from gristmill.dataset import DatasetIterator
from gristmill.dataset.selection import SelectionWithProportionsMap, integer_weights
from gristmill.experimental import (
    DatasetOptions,
    ThreadPrefetchIterDataset,
    WithOptionsIterDataset,
    multithread_prefetch,
)

DIRECT = ReadOptions(num_threads=0)


class Boom(Exception):
    pass


class Failing:
    """A function for ``map`` that fails at some elements, the first ``times`` times."""

    def __init__(self, *bad, times=math.inf, error=Boom):
        self.left = dict.fromkeys(bad, times)
        self.error = error

    def __call__(self, x):
        if self.left.get(x, 0) > 0:
            self.left[x] -= 1
            raise self.error(x)
        return x


def labelled(j, n):
    """A dataset of ``n`` elements that say where they come from: component and raw index."""
    return MapDataset.range(n).map_with_index(lambda i, _: (j, i))


def components(*lengths):
    return [labelled(j, n) for j, n in enumerate(lengths)]


def numbers(n, fn=lambda x: x, start=0):
    return MapDataset.range(start, start + n).to_iter_dataset(DIRECT).map(fn)


class Made(IterDataset):
    """A user's dataset whose iterators are what a function makes."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def __iter__(self):
        return self.make()


class Counting(DatasetIterator):
    """A user's iterator over 1, 2, …"""

    def __init__(self):
        super().__init__()
        self.position = 0

    def __next__(self):
        self.position += 1
        return self.position

    def get_state(self):
        return {"position": self.position}

    def set_state(self, state):
        self.position = state["position"]


class TestMapMix:
    @pytest.mark.parametrize(
        "weights", [None, [1, 2, 3], (0.2, 0.3, 0.5), np.array([5, 1, 1]), np.array([0.1, 0.7, 0.2], np.float32)]
    )
    def test_is_what_the_selection_says(self, weights):
        ds = MapDataset.mix(components(10, 20, 30), weights)
        selection_map = SelectionWithProportionsMap.of_datasets([10, 20, 30], integer_weights(weights, 3))
        assert len(ds) == len(selection_map)
        for indices in (range(-70, 200), range(150, -90, -7), [5, 5, -3, 10**6], [2**63 + 1, -(2**64), 7], [10**30]):
            expected = [selection_map[i] for i in indices]
            assert [ds[i] for i in indices] == expected
            assert ds._block(indices) == expected
        assert list(ds) == [selection_map[i] for i in range(len(ds))]

    def test_an_epoch_uses_no_component_beyond_its_end(self):
        ds = MapDataset.mix(components(10, 20, 30), [0.1, 0.2, 0.7])
        assert len(ds) == 42
        assert {j: max(i for k, i in ds if k == j) for j in range(3)} == {0: 4, 1: 8, 2: 27}

    def test_later_epochs_go_on_in_the_components(self):
        ds = MapDataset.mix([MapDataset.range(4).shuffle(seed=1), MapDataset.range(10, 13)])
        assert len(ds) == 6
        shuffled = MapDataset.range(4).shuffle(seed=1)
        expected = [x for i in range(12) for x in (shuffled[i], 10 + i % 3)]
        assert list(ds.repeat(4)) == expected
        assert list(ds.repeat(4)[::5]) == expected[::5]

    def test_endless_components(self):
        ds = MapDataset.mix([MapDataset.range(3).repeat(), MapDataset.range(10, 15).shuffle(seed=2).repeat()], [2, 1])
        assert len(ds) == sys.maxsize
        assert ds[sys.maxsize - 1] in range(15)
        assert [ds[i] for i in range(6)] == ds._block(range(6))
        assert len(MapDataset.mix([MapDataset.range(3).repeat(), MapDataset.range(5)])) == 10
        # Uniform and tiny weights of endless ones do not overflow either.
        assert len(MapDataset.mix([MapDataset.range(3).repeat()] * 2, [1e-250, 1.0])) == sys.maxsize
        with pytest.raises(ValueError, match="endless"):
            ds.repeat()

    def test_components_may_be_the_same_object(self):
        ds = labelled(0, 4)
        assert list(MapDataset.mix([ds, ds])) == [(0, i) for i in range(4) for _ in range(2)]
        for weights in ([0.3], np.array([7])):
            assert [*MapDataset.mix([ds], weights)[-2:], *MapDataset.mix([ds], weights)] == [(0, i) for i in (2, 3, 0, 1, 2, 3)]

    def test_missing_elements_stay_missing_in_their_places(self):
        ds = MapDataset.mix([MapDataset.range(6).filter(lambda x: x % 2), MapDataset.range(10, 16)])
        expected = [x for i in range(6) for x in (i if i % 2 else None, 10 + i)]
        assert [ds[i] for i in range(12)] == ds._block(range(12)) == expected
        assert list(ds) == [x for x in expected if x is not None]
        assert list(ds.to_iter_dataset(allow_nones=True)) == expected
        with pytest.raises(ValueError, match="to_iter_dataset"):
            ds.batch(2)

    def test_text(self):
        ds = MapDataset.mix([MapDataset.range(5), MapDataset.range(5)], [0.7, 0.3])
        assert str(ds) == "MixedMapDataset[2 parents]"
        text = "SelectionWithProportionsMap(proportions=(233, 100), length=7)"
        assert repr(ds) == f"MixedMapDataset(parent_lengths=[5, 5], selection_map={text})"

    def test_seeds_come_from_all_components(self):
        a, b, c = MapDataset.range(4), MapDataset.range(10, 14), MapDataset.range(20, 24)
        ds = MapDataset.mix([a.seed(1).shuffle(), b.map(str).seed(2), c])
        assert ds.random_map(lambda x, rng: x)._default_seed == 397260373

    @pytest.mark.parametrize(
        "make", [MapDataset.mix, MapDataset.concatenate, lambda x: MapDataset.select_from_datasets(x, [(0, 0)])]
    )
    def test_datasets_must_be_a_list_of_map_datasets(self, make):
        ds = MapDataset.range(3)
        for wrong in ({"a": ds}, {ds}, iter([ds]), ds, None, 3, "ab"):
            with pytest.raises(TypeError, match="datasets must be a list of datasets"):
                make(wrong)
        for wrong in ([ds, 5], [ds, [1, 2]], [ds, ds.to_iter_dataset()], (ds, None)):
            with pytest.raises(TypeError, match=r"datasets\[1\] must be a MapDataset"):
                make(wrong)

    def test_empty_components_are_named(self):
        empty = MapDataset.range(0).map(str)
        with pytest.raises(ValueError, match=r"datasets\[1\], MapMapDataset.*datasets\[3\], RangeMapDataset.*leave it out"):
            MapDataset.mix([MapDataset.range(3), empty, MapDataset.range(2), MapDataset.range(0)])
        with pytest.raises(ValueError, match="must not be empty"):
            MapDataset.mix([])

    def test_weights(self):
        for make in (MapDataset.mix, IterDataset.mix):
            for wrong in ([1, 0], [1, -1], [1, math.nan], [math.inf, 1], np.array([0.0, 1])):
                with pytest.raises(ValueError, match=r"positive and finite.*weights\["):
                    make(components(3, 3), wrong)
            for wrong in ([1], [1, 2, 3], np.ones(3)):
                with pytest.raises(ValueError, match="one number for each of the 2 datasets"):
                    make(components(3, 3), wrong)
            for wrong in (["1", "2"], "12", 3, np.ones((2, 2)), [None, 1]):
                with pytest.raises(TypeError, match="weights must be"):
                    make(components(3, 3), wrong)

    def test_indices(self):
        ds = MapDataset.mix(components(3, 3))
        assert ds[np.int64(3)] == ds[True + 2] == (1, 1)
        assert list(ds[1:4]) == [(1, 0), (0, 1), (1, 1)]
        for wrong in (1.0, "1", None, [1]):
            with pytest.raises(TypeError, match="index"):
                ds[wrong]


class TestConcatenate:
    def test_epochs_are_made_of_epochs(self):
        ds = MapDataset.concatenate(components(4, 0, 5, 1))
        assert len(ds) == 10
        epochs = [[(j, i + e * n) for j, n in ((0, 4), (2, 5), (3, 1)) for i in range(n)] for e in range(-2, 3)]
        expected = [x for epoch in epochs for x in epoch]
        indices = range(-20, 30)
        assert [ds[i] for i in indices] == ds._block(indices) == expected
        assert ds._block(range(29, -21, -1)) == expected[::-1]
        for start in range(-20, 27):  # within one component, over its end, over the end of an epoch
            assert ds._block(range(start, start + 4)) == expected[start + 20 : start + 24]

    def test_nothing(self):
        for parts in ([], [MapDataset.range(0)], [MapDataset.range(0)] * 3):
            ds = MapDataset.concatenate(parts)
            assert len(ds) == len(ds.repeat()) == 0
            assert list(ds) == []
            for index in (0, -1, 5):
                with pytest.raises(IndexError, match="empty"):
                    ds[index]

    def test_endless_components_are_named(self):
        with pytest.raises(ValueError, match=r"datasets\[1\], RepeatMapDataset.*endless: slice it"):
            MapDataset.concatenate([MapDataset.range(3), MapDataset.range(3).repeat()])

    def test_enormous_components(self):
        half, whole = 2**62, 2**63
        ds = MapDataset.concatenate([MapDataset.range(half), MapDataset.range(half, whole), MapDataset.range(-3, 0)])
        assert len(ds) == sys.maxsize
        indices = [0, half - 1, half, whole - 1, whole, whole + 3, -1, -4]
        expected = [0, half - 1, half, whole - 1, -3, 0, -1, whole - 1]
        assert [ds[i] for i in indices] == ds._block(indices) == expected
        assert ds._block(np.array([half, 5])) == [half, 5]

    def test_text(self):
        assert str(MapDataset.concatenate(components(1, 2, 3))) == "MixedMapDataset[3 parents]"
        assert "parent_lengths=[1, 2, 3]" in repr(MapDataset.concatenate(components(1, 2, 3)))


class Diagonal(DatasetSelectionMap):
    """A user's selection; notes what it was asked."""

    def __init__(self, n):
        self.n = n
        self.asked = []

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        assert type(index) is int
        self.asked.append(index)
        return index % 2, 3 * index

    def __repr__(self):
        return f"Diagonal({self.n})"


class TestSelect:
    def test_is_asked_with_raw_indices(self):
        selection_map = Diagonal(4)
        ds = MapDataset.select_from_datasets(components(10, 10), selection_map)
        assert len(ds) == 4
        assert [ds[i] for i in (0, 3, 9, -5, 2**70)] == [(i % 2, 3 * i) for i in (0, 3, 9, -5, 2**70)]
        assert selection_map.asked == [0, 3, 9, -5, 2**70]
        assert ds._block(np.array([4, -1, 4])) == [(0, 12), (1, -3), (0, 12)]
        assert list(ds.repeat(2)) == [(i % 2, 3 * i) for i in range(8)]
        assert "selection_map=Diagonal(4)" in repr(ds)

    def test_length_is_taken_once(self):
        pairs = [(0, 0), (1, 0)]
        ds = MapDataset.select_from_datasets(components(3, 3), pairs)
        pairs.append((0, 2))
        assert len(ds) == 2
        assert ds[2] == (0, 2)

    @pytest.mark.parametrize(
        "entries", [[(0, 0), (1, 5)], [[0, 0], [1, 5]], np.array([[0, 0], [1, 5]]), ((np.int8(0), np.uint64(0)), (1, 5))]
    )
    def test_pairs(self, entries):
        ds = MapDataset.select_from_datasets(components(3, 3), entries)
        assert list(ds) == ds._block(range(2)) == [(0, 0), (1, 5)]

    @pytest.mark.parametrize("size", [1, 2])
    def test_bad_entries(self, size):
        def block(entry):
            ds = MapDataset.select_from_datasets(components(3, 3), [entry, entry])
            return ds._block(range(size))

        for entry in (5, None, (1,), (1, 2, 3), (1.0, 0), (0, "1"), (0, None)):
            with pytest.raises(TypeError, match=r"selection_map\[0\]"):
                block(entry)
        for j in (2, 100, -3):
            with pytest.raises(IndexError, match=f"dataset index {j}, of 2 datasets"):
                block((j, 0))

    def test_an_error_of_the_map_is_the_users(self):
        ds = MapDataset.select_from_datasets(components(3, 3), [(0, 0)])
        with pytest.raises(IndexError, match="list index out of range"):
            ds[1]

        class Failing(Diagonal):
            def __getitem__(self, index):
                if index == 2:
                    raise StopIteration
                return 0, index

        ds = MapDataset.select_from_datasets(components(9), Failing(5))
        it = iter(ds)
        assert [next(it), next(it)] == [(0, 0), (0, 1)]
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(it)
        it.skip_failed()
        assert list(it) == [(0, 3), (0, 4)]

    @pytest.mark.parametrize("wrong", [None, 5, iter([]), {(0, 0)}, lambda i: (0, i)])
    def test_what_is_no_selection_map(self, wrong):
        with pytest.raises(TypeError, match="selection_map must be a DatasetSelectionMap"):
            MapDataset.select_from_datasets(components(3), wrong)

    def test_an_empty_selection(self):
        ds = MapDataset.select_from_datasets(components(3), [])
        assert len(ds) == 0 and list(ds) == []
        with pytest.raises(IndexError, match="empty"):
            ds[0]


class TestErrorsInComponents:
    NOTE = "It happened in the component with dataset_index=1 of MixedMapDataset[2 parents]."

    @pytest.mark.parametrize(
        "make",
        [
            MapDataset.mix,
            MapDataset.concatenate,
            lambda parts: MapDataset.select_from_datasets(parts, [(i % 2, i // 2) for i in range(12)]),
        ],
        ids=["mix", "concatenate", "select"],
    )
    def test_the_component_is_named_once(self, make):
        ds = make([MapDataset.range(6), MapDataset.range(10, 16).map(Failing(12))])
        expected = list(make([MapDataset.range(6), MapDataset.range(10, 16)]))
        position = expected.index(12)
        for block in (lambda: ds[position], lambda: ds._block(range(12))):
            with pytest.raises(Boom) as caught:
                block()
            assert caught.value.__notes__.count(self.NOTE) == 1
        for read_options in (DIRECT, ReadOptions(1, 1), ReadOptions(2, 50)):
            for size in (1, 5):
                stream = ds.to_iter_dataset(read_options)
                it = iter(stream.batch(5, batch_fn=list) if size > 1 else stream)
                got = []
                for _ in range(2):  # the same error again
                    with pytest.raises(Boom) as caught:
                        got.extend(it)
                    assert caught.value.__notes__[0] == self.NOTE
                    assert caught.value.__notes__.count(self.NOTE) == 1
                groups = expected if size == 1 else [expected[i : i + size] for i in range(0, 12, size)]
                assert got == groups[: position // size]
                it.skip_failed()
                assert list(it) == groups[position // size + 1 :]

    def test_nested_mixtures_name_every_level(self):
        inner = MapDataset.mix([MapDataset.range(3), MapDataset.range(3), MapDataset.range(3).map(Failing(0))])
        ds = MapDataset.concatenate([MapDataset.range(2), inner])
        with pytest.raises(Boom) as caught:
            ds[4]
        assert caught.value.__notes__[:2] == [
            "It happened in the component with dataset_index=2 of MixedMapDataset[3 parents].",
            self.NOTE,
        ]


def mixture(*streams, weights=None):
    return IterDataset.mix(list(streams), weights)


class TestIterMix:
    def test_ends_for_good_with_the_component_whose_turn_it_is(self):
        it = iter(mixture(numbers(5), numbers(3, start=7)))
        assert list(it) == [0, 7, 1, 8, 2, 9, 3]
        end = it.get_state()
        assert end == {"parents": [{"next_index": 4}, {"next_index": 3}], "index": 8, "stop": True}
        for _ in range(3):
            with pytest.raises(StopIteration):
                next(it)
            assert it.get_state() == end
        fresh = iter(mixture(numbers(5), numbers(3, start=7)))
        fresh.set_state(json.loads(json.dumps(end)))
        assert list(fresh) == [] and fresh.get_state() == end

    def test_an_empty_component_ends_it_when_its_turn_comes(self):
        assert list(mixture(numbers(0), numbers(5))) == []
        assert list(mixture(numbers(5), numbers(0))) == [0]
        assert list(mixture(numbers(3), numbers(0), weights=[2.5, 1])) == [0, 1, 2]

    @pytest.mark.parametrize("weights", [None, [1, 2], np.array([0.9, 0.3]), (5, 1)])
    def test_blocks(self, weights):
        ds = mixture(numbers(10), numbers(7, start=100).filter(lambda x: x % 3), weights=weights)
        elements = list(ds)
        selection_map = SelectionWithProportionsMap(integer_weights(weights, 2), 1)
        model = [list(range(10)), [x for x in range(100, 107) if x % 3]]
        chosen = [selection_map[i] for i in range(len(elements) + 1)]
        assert [model[j][k] for j, k in chosen[:-1]] == elements
        assert chosen[-1][1] == len(model[chosen[-1][0]])
        for size in (1, 2, 3, 7, 100):
            it = iter(ds)
            for position in range(0, len(elements), size):
                assert it.get_state()["index"] == position
                assert it._take(size) == elements[position : position + size]
            assert it._take(size) == []
            assert it.get_state()["stop"] is True and it.get_state()["index"] == len(elements) + 1

    def test_one_component_the_same_twice_and_map_datasets(self):
        it = iter(mixture(numbers(2)))
        assert it._take(0) == [] and list(it) == [0, 1] and it._take(0) == []
        assert it.get_state() == {"parents": [{"next_index": 2}], "index": 3, "stop": True}
        ds = numbers(3)
        assert list(mixture(ds, ds)) == [0, 0, 1, 1, 2, 2]
        assert list(mixture(MapDataset.range(4).filter(lambda x: x % 2), MapDataset.range(9))) == [1, 0, 3, 1]

    def test_text(self):
        ds = mixture(numbers(3), numbers(3), weights=[0.7, 0.3])
        assert str(ds) == "MixedIterDataset([2 parents], proportions=[233, 100])"
        assert str(iter(ds)) == "MixedDatasetIterator([2 parents], proportions=(233, 100))"
        # Equal weights, however they are given, are the same pipeline.
        assert {str(mixture(numbers(3), numbers(3), weights=w)) for w in (None, [1, 1], (0.5, 0.5), np.array([7, 7]))} == {
            "MixedIterDataset([2 parents], proportions=[100, 100])"
        }

    def test_wrong_arguments(self):
        with pytest.raises(ValueError, match="must not be empty"):
            IterDataset.mix([])
        with pytest.raises(ValueError, match="must not be empty"):
            IterDataset.mix({})
        for wrong in (numbers(3), MapDataset.range(3), None, "ab", iter([numbers(3)])):
            with pytest.raises(TypeError, match="datasets must be a list"):
                IterDataset.mix(wrong)
        for wrong in ([numbers(3), [1, 2]], [numbers(3), None]):
            with pytest.raises(TypeError, match=r"datasets\[1\] must be a MapDataset or IterDataset"):
                IterDataset.mix(wrong)

    def test_wrong_states_change_nothing(self):
        ds = mixture(numbers(5), numbers(5, start=10))
        it = iter(ds)
        assert [next(it), next(it), next(it)] == [0, 10, 1]
        before = it.get_state()
        good = {"parents": [{"next_index": 3}, {"next_index": 3}], "index": 6, "stop": False}
        for key in good:
            with pytest.raises(StateKeyError, match=key):
                it.set_state({k: v for k, v in good.items() if k != key})
        for change in (
            {"parents": [{"next_index": 3}]},
            {"parents": [{"next_index": 3}] * 3},
            {"parents": {"a": {"next_index": 3}, "b": {"next_index": 3}}},
            {"parents": None},
            {"parents": [{"next_index": 3}, {"next_index": 99}]},
            {"parents": [{"next_index": 3}, {}]},
            {"index": -1},
            {"index": None},
            {"index": 1.5},
            {"stop": None},
            {"stop": "no"},
            {"stop": 2},
        ):
            with pytest.raises(StateMismatchError):
                it.set_state({**good, **change})
            assert it.get_state() == before
        assert list(it) == [11, 2, 12, 3, 13, 4, 14]
        it.set_state({**good, "index": np.int64(6), "stop": np.False_, "more": 1})
        assert list(it) == [3, 13, 4, 14]

    def test_plain_iterators(self):
        ds = mixture(Made(lambda: (x for x in "abc")), numbers(5))
        assert list(ds) == ["a", 0, "b", 1, "c", 2]
        assert list(ds.batch(4, batch_fn=list)) == [["a", 0, "b", 1], ["c", 2]]
        assert list(ThreadPrefetchIterDataset(ds, prefetch_buffer_size=2)) == ["a", 0, "b", 1, "c", 2]
        it = iter(ds)
        next(it)
        with pytest.raises(NotImplementedError, match="generator"):
            it.get_state()
        assert list(it) == [0, "b", 1, "c", 2]

    def test_closing_closes_the_components(self):
        class Closing(Counting):
            closed = 0

            def close(self):
                type(self).closed += 1

        it = iter(mixture(Made(Closing), Made(Closing)))
        assert it._take(3) == [1, 1, 2]
        it.close()
        assert Closing.closed == 2
        with pytest.raises(ValueError, match="closed"):
            next(it)


class TestErrorsInIterMix:
    def test_an_error_does_not_end_it(self):
        it = iter(mixture(numbers(4), numbers(4, Failing(11), start=10)))
        assert [next(it) for _ in range(3)] == [0, 10, 1]
        before = it.get_state()
        for _ in range(3):
            with pytest.raises(Boom) as caught:
                next(it)
            assert [note for note in caught.value.__notes__ if "component" in note] == [
                "It happened in the component with input_index=1 of MixedDatasetIterator([2 parents], proportions=(100, 100))."
            ]
            assert it.get_state() == before
        it.skip_failed()
        assert it.get_state()["index"] == 4
        assert list(it) == [2, 12, 3, 13]

    def test_the_error_of_a_block_is_the_first_in_order(self):
        """Blocks read one component after the other; the error that is met first must not depend on that."""
        ds = mixture(numbers(9, Failing(4)), numbers(9, Failing(12), start=10))
        it = iter(ds.batch(3, batch_fn=list))
        assert next(it) == [0, 10, 1]
        for _ in range(2):
            with pytest.raises(Boom, match="12"):
                next(it)
        it.skip_failed()  # 11 2 12
        with pytest.raises(Boom, match="4"):
            next(it)  # 3 13 4
        it.skip_failed()
        assert list(it) == [[14, 5, 15], [6, 16, 7], [17, 8, 18]]

    def test_an_error_at_the_very_end(self):
        """A component that fails where it should have said that it has ended."""

        class Ending(Counting):
            num_errors = 1

            def __next__(self):
                if self.position < 2:
                    return super().__next__()
                self.num_errors -= 1
                raise StopIteration if self.num_errors < 0 else Boom

        it = iter(mixture(Made(Ending), numbers(9)))
        assert [next(it) for _ in range(4)] == [1, 0, 2, 1]
        with pytest.raises(Boom):
            next(it)
        it.skip_failed()  # where it was is the end now
        assert list(it) == []
        assert it.get_state() == {"parents": [{"position": 2}, {"next_index": 2}], "index": 5, "stop": True}


class TestMappings:
    def named(self, **lengths):
        return {name: numbers(n, start=100 * (ord(name[0]) - ord("a"))) for name, n in lengths.items()}

    def test_order_is_that_of_the_sorted_keys(self):
        by_name = self.named(b=5, a=5, c=5)
        in_order = [by_name[name] for name in "abc"]
        weights = {"c": 3, "b": 2, "a": 1}
        assert list(IterDataset.mix(by_name, weights)) == list(IterDataset.mix(in_order, [1, 2, 3]))
        assert list(IterDataset.mix(by_name)) == list(IterDataset.mix(in_order))
        it = iter(IterDataset.mix(by_name, weights))
        next(it)
        state = it.get_state()
        assert list(state["parents"]) == ["a", "b", "c"]
        assert state["index"] == 1 and state["stop"] is False

    def test_keys_that_are_not_text(self):
        ds = IterDataset.mix({10: numbers(3), 9: numbers(3, start=10)})
        it = iter(ds)
        assert [next(it), next(it), next(it)] == [10, 0, 11]
        state = json.loads(json.dumps(it.get_state()))
        fresh = iter(ds)
        fresh.set_state(state)
        assert list(fresh) == list(it) == [1, 12, 2]
        fresh.set_state({**state, "parents": {int(k): v for k, v in state["parents"].items()}})  # as Grain has them in memory
        assert list(fresh) == [1, 12, 2]

    def test_wrong_keys(self):
        two = self.named(a=3, b=3)
        with pytest.raises(ValueError, match="same keys"):
            IterDataset.mix(two, {"a": 1})
        with pytest.raises(ValueError, match="same keys"):
            IterDataset.mix(two, {"a": 1, "c": 1})
        with pytest.raises(TypeError, match="mapping like datasets"):
            IterDataset.mix(two, [1, 2])
        with pytest.raises(TypeError, match="sequence like datasets"):
            IterDataset.mix(list(two.values()), {"a": 1, "b": 2})
        with pytest.raises(TypeError, match="keys"):
            IterDataset.mix({"a": numbers(3), 1: numbers(3)})
        with pytest.raises(ValueError, match="differ as text"):
            IterDataset.mix({Name("a"): numbers(3), Name("a"): numbers(3)})

    def test_components_come_and_go_and_weights_change(self):
        it = iter(IterDataset.mix(self.named(a=9, b=9, c=9)))
        assert it._take(7) == [0, 100, 200, 1, 101, 201, 2]
        state = json.loads(json.dumps(it.get_state()))
        assert state == {
            "parents": {"a": {"next_index": 3}, "b": {"next_index": 2}, "c": {"next_index": 2}},
            "index": 7,
            "stop": False,
        }
        other = iter(IterDataset.mix(self.named(d=9, c=9, a=9), {"a": 1, "c": 2, "d": 1}))
        for _ in range(2):  # in place, too: a new component is at its beginning again
            other.set_state(state)
            assert other.get_state()["parents"] == {"a": {"next_index": 3}, "c": {"next_index": 2}, "d": {"next_index": 0}}
            assert other.get_state()["index"] == 7
            got = list(other)
            assert [x for x in got if x < 100] == list(range(3, 3 + len([x for x in got if x < 100])))
            assert [x for x in got if 200 <= x < 300] == list(range(202, 209))
            assert [x for x in got if x >= 300] == list(range(300, 300 + len([x for x in got if x >= 300])))

    def test_other_forms_of_state_are_refused(self):
        by_name = IterDataset.mix(self.named(a=3, b=3))
        in_list = mixture(numbers(3), numbers(3))
        with pytest.raises(StateMismatchError, match="mapping of names"):
            iter(by_name).set_state(iter(in_list).get_state())
        with pytest.raises(StateMismatchError, match="list of 2"):
            iter(in_list).set_state(iter(by_name).get_state())

    def test_orbax_checkpoints(self, tmp_path):
        import orbax.checkpoint as ocp

        def save(it, name):
            with ocp.Checkpointer(CheckpointHandler()) as checkpointer:
                checkpointer.save(tmp_path / name, args=CheckpointSave(it))

        def restore(it, name):
            with ocp.Checkpointer(CheckpointHandler()) as checkpointer:
                return checkpointer.restore(tmp_path / name, args=CheckpointRestore(it))

        it = iter(IterDataset.mix(self.named(a=9, b=9), {"a": 1, "b": 2}))
        taken = it._take(5)
        save(it, "named")
        same = iter(IterDataset.mix(self.named(b=9, a=9), {"a": 1, "b": 2}))
        assert list(restore(same, "named")) == list(it)
        # A component is new, one is gone, and what is left is weighed anew.
        changed = restore(iter(IterDataset.mix(self.named(b=9, c=9), {"b": 1, "c": 5})), "named")
        num_b = len([x for x in taken if x >= 100])
        assert [x for x in changed if x < 200][:2] == [100 + num_b, 101 + num_b]
        # But a component under the name of another one is not that one.
        other = {"a": numbers(9), "b": numbers(9, start=100).filter(lambda x: True)}
        with pytest.raises(StateMismatchError, match="component 'b'"):
            restore(iter(IterDataset.mix(other)), "named")
        in_list = iter(mixture(numbers(9), numbers(9), weights=[1, 2]))
        save(in_list, "list")
        with pytest.raises(StateMismatchError, match="proportions"):
            restore(iter(mixture(numbers(9), numbers(9), weights=[1, 3])), "list")
        with pytest.raises(StateMismatchError, match="proportions"):
            restore(iter(mixture(numbers(9), numbers(9), numbers(9), weights=[1, 2, 3])), "list")
        restore(iter(mixture(numbers(9), numbers(9), weights=[0.5, 1])), "list")


class Name(str):
    """A text that is no other text: as a key it differs from whatever looks the same."""

    __slots__ = ()

    def __lt__(self, other):
        return False

    def __gt__(self, other):
        return False

    def __hash__(self):
        return 7

    def __eq__(self, other):
        return self is other


def test_a_mixture_cannot_be_cut_into_parts_of_its_sources():
    for ds in (MapDataset.mix(components(4, 4)), MapDataset.concatenate(components(4, 4))):
        with pytest.raises(ValueError, match="combines several datasets"):
            multithread_prefetch(ds.to_iter_dataset(), 2, 2, sequential_slice=True)
        assert sorted(multithread_prefetch(ds.to_iter_dataset(), 2, 2)) == sorted(ds)


class TestContexts:
    def test_options_reach_all_components(self):
        ds = mixture(numbers(5000), numbers(5000).filter(lambda x: x % 1000 == 0))
        options = DatasetOptions(filter_raise_threshold_ratio=0.9)
        with pytest.raises(ValueError, match="dropped"):
            list(WithOptionsIterDataset(ds, options))
        assert len(list(WithOptionsIterDataset(ds, DatasetOptions(filter_warn_threshold_ratio=None)))) == 11

    def test_options_of_the_first_component_win(self):
        a = WithOptionsIterDataset(numbers(3), DatasetOptions(min_shm_size=1))
        b = WithOptionsIterDataset(numbers(3), DatasetOptions(min_shm_size=2, filter_warn_threshold_ratio=0.5))
        options = iter(mixture(a, b))._ctx.options
        assert (options.min_shm_size, options.filter_warn_threshold_ratio) == (1, 0.5)

    def test_components_of_different_workers_are_refused(self):
        elsewhere = iter(numbers(3))
        elsewhere._ctx.worker_index, elsewhere._ctx.worker_count = 1, 2
        with pytest.raises(ValueError, match="same worker"):
            iter(mixture(numbers(3), Made(lambda: elsewhere)))

    @pytest.mark.parametrize(
        "prefetched",
        [lambda ds: LocalWorkersIterDataset(ds, 2), lambda ds: multithread_prefetch(ds, 2, 2)],
        ids=["workers", "threads"],
    )
    def test_every_worker_mixes_its_shares(self, prefetched):
        """Also of one dataset that occurs twice, which is sliced once."""
        ds = numbers(6)
        other = numbers(6, start=10)
        assert list(prefetched(mixture(ds, ds))) == [0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5]
        assert list(prefetched(mixture(ds, other, weights=[1, 2]))) == [0, 1, 10, 11, 12, 13, 2, 3, 14, 15]
        named = IterDataset.mix({"x": ds, "y": other.map_with_index(lambda i, x: (i, x))})
        it = iter(prefetched(named))
        expected = [0, 1, (0, 10), (1, 11), 2, 3, (2, 12), (3, 13), 4, 5, (4, 14), (5, 15)]
        assert [next(it) for _ in range(5)] == expected[:5]
        state = json.loads(json.dumps(it.get_state()))
        assert state["iterators_in_use_states"][0]["parents"]["y"] == {"parent": {"next_index": 1}, "counter": 1}
        assert list(it) == expected[5:]
        it.set_state(state)
        assert list(it) == expected[5:]
