"""Intended differences from Grain 0.2.18: code that shows each, Grain's result and ours.

The reasons are in docs/compatibility.md. Compared is the value of the last line of code, or the
name of the error that ended it.
"""

import ast
import re

import pytest
from peer_process import needs_grain, run

pytestmark = needs_grain
NAMES = """
import itertools
x, M, I, ReadOptions = m.experimental, m.MapDataset, m.IterDataset, m.ReadOptions
Batch, Shard = m.transforms.Batch, m.sharding.ShardOptions
def loader(n=6, operations=(), shard=None, epochs=1, **kwargs):
    sampler = m.samplers.IndexSampler(n, shard or m.sharding.NoSharding(), False, epochs, 0)
    defaults = {"data_source": m.sources.RangeDataSource(0, n, 1), "sampler": sampler}
    return m.DataLoader(operations=operations, **{**defaults, **kwargs})
def R(*args):
    return M.range(*args).to_iter_dataset()
def rows(*elements):
    return M.source(elements).to_iter_dataset()
def outcome(fn):
    value = attempt(fn)
    return value["error"][0] if isinstance(value, dict) and "error" in value else value
def steps(it, n):
    return [
        outcome(lambda: (lambda x: x.tolist() if hasattr(x, "tolist") else x)(next(it)))
        for _ in range(n)
    ]
def at(it, n):
    "Another iterator, at what was the state after n elements."
    return [next(it) for _ in range(n)] and it.get_state()
def strict(ds, ratio):
    return x.WithOptionsIterDataset(ds, x.DatasetOptions(filter_raise_threshold_ratio=ratio))
class MapFn(m.transforms.Map):
    def __init__(self, fn):
        self.map = fn
    def map(self, element):
        raise AssertionError
class RandomFn(m.transforms.RandomMap):
    def __init__(self, fn):
        self.random_map = lambda element, rng: fn(rng)
    def random_map(self, element, rng):
        raise AssertionError
class Fan(x.FlatMapTransform):
    max_fan_out = 2
    def __init__(self, fn):
        self.flat_map = fn
    def flat_map(self, element):
        raise AssertionError
class Fails:
    "A function that fails at one element, until it is mended."
    def __init__(self, element, error=OSError):
        self.broken, self.error = [element], error
    def __call__(self, element):
        if element in self.broken:
            raise self.error
        return element
"""

# Names, codes, and after an arrow what Grain gives and what we give.
TEXT = r"""
@shuffle_of_2**k+1 ds = M.range(65537).shuffle(seed=0)
[ds[0] == ds[65536], ds[65536]] -> [True, 31105], [False, 65536]
@empty_index M.range(0)[0] -> 'ZeroDivisionError', 'IndexError'
@endless_batches len(M.range(1).repeat().batch(3)) -> 3074457345618258432, 3074457345618258603
@random_map_at_negative_index M.range(5).random_map(lambda x, rng: 1, seed=0)[-1] -> 'OverflowError', 1
@numpy_indices_leak type(M.range(5)[np.int64(3)]).__name__ -> 'int64', 'int'
@remainder_of_shards [list(loader(10, shard=Shard(i, 3), epochs=2)) for i in range(3)]
-> [[0, 1, 2, 3, 0, 1], [4, 5, 6, 4, 5, 6], [7, 8, 9, 7, 8, 9]],
[[0, 1, 2, 3, 0, 1, 2, 3], [4, 5, 6, 4, 5, 6], [7, 8, 9, 7, 8, 9]]
@batch_of_a_failing_element fn = Fails(3)
it = iter(loader(6, [MapFn(fn), Batch(2)]))
before = steps(it, 2)
fn.broken.clear()
before + steps(it, 2) -> [[0, 1], 'OSError', [4, 5], 'StopIteration'], [[0, 1], 'OSError', [2, 3], [4, 5]]
@failing_read
class Source(Fails):
    def __len__(self):
        return 3
    __getitem__ = Fails.__call__
steps(iter(loader(3, data_source=Source(1), read_options=ReadOptions(2, 2))), 5)
-> [0, 'OSError', 2, 'IndexError', 'IndexError'], [0, 'OSError', 'OSError', 'OSError', 'OSError']
@stop_iteration_of_users steps(iter(loader(4, [MapFn(Fails(2, StopIteration))])), 3)
-> [0, 1, 'StopIteration'], [0, 1, 'RuntimeError']
@map_with_index_in_a_loader
class WithIndex(m.transforms.MapWithIndex):
    def map_with_index(self, index, element):
        return [index, element]
list(loader(2, [WithIndex()])) -> 'TypeError', [[0, 0], [1, 1]]
@no_operation loader(1, [5]) and 'accepted' -> 'accepted', 'TypeError'
@fractional_worker_count loader(1, worker_count=0.7) and 'accepted' -> 'accepted', 'TypeError'
@random_map_without_seed list(loader(2, [RandomFn(lambda rng: rng.integers(5))], sampler=m.samplers.SequentialSampler(2)))
-> 'AttributeError', 'ValueError'
@batches_of_unlike_elements str(next(iter(rows({"a": 3}, {"a": None}).batch(2))))
-> "{'a': array([3, None], dtype=object)}", 'ValueError'
@overstated_sampler_length
class Sampler:
    def __len__(self):
        return 9
    def __getitem__(self, index):
        return m.RecordMetadata([0, 1][index], [0, 1][index])
steps(iter(loader(2, sampler=Sampler(), shard_options=m.sharding.NoSharding(), read_options=ReadOptions(0, 0))), 3)
-> [0, 1, 'IndexError'], [0, 1, 'StopIteration']
@unknown_version_of_a_state it = iter(loader(2))
state = json.loads(it.get_state())
del state["version"]
it.set_state(json.dumps(state).encode()) -> None, 'StateKeyError'
@states_as_text it = iter(loader(2))
it.set_state(it.get_state().decode()) -> 'AttributeError', None
@missing_keys_of_a_state attempt(lambda: iter(R(3)).set_state({}))["error"][:2]
-> ['KeyError', 'LookupError'], ['StateKeyError', 'StateMismatchError']
@refused_states_change_nothing it = iter(R(3))
attempt(lambda: it.set_state({"next_index": 99}))
it.get_state() -> {'next_index': 99}, {'next_index': 0}
@legacy_operations_start_again it = iter(loader(3, [lambda records: (record for record in records)]))
start, first = it.get_state(), steps(it, 4)
it.set_state(start)
first + steps(it, 2) -> [0, 1, 2, 'StopIteration', 'StopIteration', 'StopIteration'], [0, 1, 2, 'StopIteration', 0, 1]
@huge_ranges len(m.sources.RangeDataSource(0, 3 * 10**17 + 1, 3)) -> 100000000000000000, 100000000000000001
@datasets_as_sources ' at 0x' in iter(loader(3, data_source=M.range(3))).get_state().decode() -> True, False
@plain_iterators_as_parents
class Lines(I):
    def __iter__(self):
        return iter([1, 2])
list(Lines().map(lambda x: x + 1)) -> 'AttributeError', [2, 3]
@children_of_generators it = loader(1, [RandomFn(lambda rng: int(rng.spawn(1)[0].integers(2**60)))])
list(it) == list(it) -> 'TypeError', True
@batches_of_one_array records = [np.zeros(2)]
next(iter(loader(1, [Batch(1)], data_source=records)))[:] = 1
records[0].tolist() -> [1.0, 1.0], [0.0, 0.0]
@empty_shards list(loader(2, shard=Shard(2, 3), epochs=2)) -> 'ZeroDivisionError', []
@fractional_indices M.range(5)[2.0] -> 2.0, 'TypeError'
@text_in_shared_memory source = m.sources.SharedMemoryDataSource(["ééééé", b"a\0"])
found = [source[0], source[1] == b"a\0", outcome(lambda: source[-2])]
source.unlink(), source.close()
found -> ['éééé', False, 'éééé'], ['ééééé', True, 'ééééé']
@huge_integers_in_shared_memory source = m.sources.SharedMemoryDataSource([2**80])
found = list(source)
source.unlink(), source.close()
found -> 'error', [1208925819614629174706176]
@filters_that_raise it = iter(strict(R(3000).filter(lambda x: x in (0, 2500)), 0.9))
[*steps(it, 3), it.get_state()["next_index"]] -> [0, 'ValueError', 'ValueError', 1001], [0, 'ValueError', 'ValueError', 1]
@options_without_flags m.config.py_debug_mode -> 'UnparsedFlagAccessError', False
@closing_an_iterator hasattr(iter(loader(2)), 'close') -> False, True
@map_window_shuffle list(x.WindowShuffleMapDataset(M.range(5), window_size=10, seed=1)) -> [0, 2, 1, 0, 4], [1, 2, 3, 0, 4]
@missing_elements_of_flat_maps
list(x.FlatMapIterDataset(M.source([1, None, 2]).to_iter_dataset(allow_nones=True), Fan(lambda v: [v, v])))
-> [1, 1, None, None, 2, 2], [1, 1, 2, 2]
@generators_of_flat_maps list(x.FlatMapIterDataset(R(3), Fan(lambda v: (v for _ in range(v))))) -> 'TypeError', [1, 2, 2]
@third_epoch_of_interleave list(x.RepeatIterDataset(x.InterleaveIterDataset([R(2), R(3, 6), R(10, 11)], cycle_length=2), 3))
-> [0, 3, 1, 4, 5, 10, 0, 3, 1, 4, 5, 10, 10, 3, 4, 10, 5], [0, 3, 1, 4, 5, 10, 0, 3, 1, 4, 5, 10, 0, 3, 1, 4, 5, 10]
@checkpoint_in_the_second_epoch_of_interleave
ds = x.RepeatIterDataset(x.InterleaveIterDataset([M.range(2), M.range(3, 6)], cycle_length=2), 2)
it = iter(ds)
it.set_state(at(iter(ds), 6))
list(it) -> [], [3, 1, 4, 5]
@missing_datasets_of_interleave datasets = M.source([0, 1, 2, 3]).filter(lambda v: v != 1).map(lambda v: R(10 * v, 10 * v + 3))
list(x.InterleaveIterDataset(datasets, cycle_length=4)) -> [0, 20, 30], [0, 20, 30, 1, 21, 31, 2, 22, 32]
@no_datasets_to_interleave list(x.InterleaveIterDataset([], cycle_length=2)) -> 'IndexError', []
@cycle_of_length_0 list(x.InterleaveIterDataset([M.range(2)], cycle_length=0)) -> 'IndexError', 'ValueError'
@options_above_interleave ds = x.InterleaveIterDataset([R(2000).filter(lambda v: v == 0)], cycle_length=1)
list(strict(x.RepeatIterDataset(ds, 1), 0.5)) -> [0], 'ValueError'
@map_with_index_in_threads list(x.multithread_prefetch(R(5).map_with_index(lambda i, v: (i, v)), num_threads=2, buffer_size=1))
-> [[0, 0], [0, 1], [1, 2], [1, 3], [2, 4]], [[0, 0], [1, 1], [2, 2], [3, 3], [4, 4]]
@threads_in_threads ds = x.multithread_prefetch(R(7).batch(2, batch_fn=list), num_threads=3, buffer_size=1)
list(x.multithread_prefetch(ds, num_threads=2, buffer_size=1)) -> [[0, 3], [1, 4], [2, 5], [6]], [[0, 6], [1], [2], [3], [4], [5]]
@fewer_datasets_than_threads
list(x.multithread_prefetch(x.InterleaveIterDataset([R(3)], cycle_length=1), num_threads=2, buffer_size=1))
-> 'IndexError', [0, 1, 2]
@a_dataset_twice_in_threads list(x.multithread_prefetch(I.mix([R(6)] * 2), num_threads=2, buffer_size=1))
-> [0, 3, 0, 3, 4, 4], [0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5]
@parts_of_what_has_a_length ds = M.range(4).repeat(2).to_iter_dataset()
list(x.multithread_prefetch(ds, num_threads=2, buffer_size=1, sequential_slice=True))
-> [0, 2, 1, 3, 0, 2, 1, 3, 0, 2, 1, 3, 0, 2, 1, 3], [0, 2, 1, 3, 0, 2, 1, 3]
@seeds_before_threads ds = x.multithread_prefetch(R(2).seed(1), num_threads=1, buffer_size=1)
list(ds.random_map(lambda v, rng: int(rng.integers(100)))) -> 'ValueError', [0, 33]
@second_cut_of_several_features ds = rows({"a": np.arange(5), "b": np.arange(2)}, {"a": np.arange(5, 13), "b": np.arange(2, 5)})
ds = x.ConcatThenSplitIterDataset(ds, length_struct={"a": 4, "b": 3})
[[v[name][v[f"{name}_segment_ids"] > 0].tolist() for name in "ab"] for v in itertools.islice(ds, 9)]
-> [[[0, 1, 2, 3], [0, 1]], [[4, 5, 6, 7], [2, 3, 4]], [[8, 9, 10, 11], []], [[12], [2, 3, 4]]],
[[[0, 1, 2, 3], [0, 1]], [[4, 5, 6, 7], [2, 3, 4]], [[8, 9, 10, 11], []], [[12], []]]
@first_tokens_of_empty_pieces
bos = {"bos_handling": x.BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS, "bos_features": ["a"], "bos_token_id": 99}
ds = rows({"a": np.array([1]), "b": np.arange(4)})
[v["a"].tolist() for v in x.ConcatThenSplitIterDataset(ds, length_struct={"a": 2, "b": 3}, **bos)]
-> [[99, 0], [99, 0]], [[99, 0], [0, 0]]
@split_from_a_file ds = rows(*[{"a": np.arange(3 * i, 3 * i + 3)} for i in range(4)])
it = iter(x.ConcatThenSplitIterDataset(ds, length_struct={"a": 4}))
it.set_state(json.loads(json.dumps(it.get_state())))
[v["a"].tolist() for v in it] -> [[3, 4, 5, 6], [7, 8, 9, 10], [11, 0, 0, 0]], [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
@lossy_padding x.batch_and_pad([1, 2], batch_size=3, pad_value=-1.5).tolist() -> [1, 2, -1], 'ValueError'
@bytes_that_end_in_nul M.source(["a\0", "b"]).batch(2)[0].tolist() -> ['a', 'b'], 'ValueError'
@packing_of_nested_features ds = rows(*[{"a": {"b": np.arange(2)}}] * 2)
ds = x.FirstFitPackIterDataset(ds, length_struct={"a": {"b": 5}}, num_packing_bins=1)
[{key: value.tolist() for key, value in row["a"].items()} for row in ds]
-> 'ValueError', [{'b': [0, 1, 0, 1, 0], 'b_segment_ids': [1, 1, 2, 2, 0], 'b_positions': [0, 1, 0, 1, 0]}]
@packing_of_wider_numbers ds = rows({"a": np.array([1], np.int8)}, {"a": np.array([300])})
[v["a"].tolist() for v in x.FirstFitPackIterDataset(ds, length_struct={"a": 2}, num_packing_bins=1)] -> [[1, 44]], 'ValueError'
@full_bins_of_nothing ds = rows(*[{"a": np.zeros(0, int)}] * 5)
len(list(x.BestFitPackIterDataset(ds, length_struct={"a": 2}, num_packing_bins=3, max_sequences_per_bin=2))) -> 1, 3
@rebatch_of_uneven_leaves
[[len(v["a"]), len(v["b"])] for v in x.RebatchIterDataset(rows({"a": np.arange(2), "b": np.arange(3)}), 2)]
-> [[2, 2]], 'ValueError'
@rebatch_after_the_end it = iter(x.RebatchIterDataset(rows(np.arange(4)), 4))
it.set_state(at(it, 1))
[v.tolist() for v in it] -> [[]], []
@cache_after_restore ds = x.RepeatIterDataset(x.CacheIterDataset(R(2)), 2)
it, state = iter(ds), at(iter(ds), 3)
it.set_state(state)
[it.get_state() == state, list(it)] -> [False, [1]], [True, [1]]
@caches_that_are_full it = iter(x.CacheIterDataset(R(2)))
start = it.get_state()
list(it)
it.set_state(start)
it.get_state() == start -> False, True
@caches_in_caches at(iter(x.RepeatIterDataset(x.CacheIterDataset(x.CacheIterDataset(R(2))), 2)), 3)["parent"]["parent"]
-> {'parent': {'next_index': 0}, 'position': 0, 'cache_filled': True},
{'parent': {'next_index': 0}, 'position': 0, 'cache_filled': False}
@caches_of_interleaved_datasets numbers = []
ds = M.range(2).map(lambda v: numbers.append(v) or v).to_iter_dataset()
list(x.RepeatIterDataset(x.InterleaveIterDataset([x.CacheIterDataset(ds)], cycle_length=1), 2))
numbers -> [0, 1], [0, 1, 0, 1]
@counts_of_empty_epochs list(strict(x.RepeatIterDataset(R(408).filter(lambda v: False), 3), 0.5)) -> 'ValueError', []
@state_of_repeat_too_far it = iter(x.RepeatIterDataset(R(2), 2))
it.set_state({"parent": {"next_index": 2}, "epoch": 3})
[next(it, None) for _ in range(3)] -> [0, 1, 0], [None, None, None]
@states_at_the_end it = iter(x.FlatMapIterDataset(R(4).filter(lambda v: v < 2), Fan(lambda v: [v])))
[list(it), it.get_state(), list(it), it.get_state()["parent"]]
-> [[0, 1], {'parent': {'next_index': 2}, 'next_index_in_buffer': 1}, [], {'next_index': 4}],
[[0, 1], {'parent': {'next_index': 2}, 'next_index_in_buffer': 1}, [], {'next_index': 2}]
@zip_that_has_ended it = iter(x.ZipIterDataset([R(9), R(1)], strict=False))
[len(list(it)) for _ in range(3)] + [it.get_state()["parents"][0]] -> [1, 0, 0, {'next_index': 4}], [1, 0, 0, {'next_index': 2}]
@error_in_a_mixture fn = Fails(1)
it = iter(I.mix([M.range(3).to_iter_dataset(ReadOptions(0, 0)).map(fn), R(9)]))
found = steps(it, 3)
fn.broken.clear()
found + steps(it, 2) -> [0, 0, 'OSError', 'StopIteration', 'StopIteration'], [0, 0, 'OSError', 1, 1]
@datasets_that_cannot_be_made
it = iter(x.InterleaveIterDataset(M.source([0, 1, 2]).map(lambda v: R(6 // v)).shuffle(seed=0), cycle_length=3))
[outcome(it.get_state)] and steps(it, 3)
-> ['ZeroDivisionError', 0, 0], ['ZeroDivisionError', 'ZeroDivisionError', 'ZeroDivisionError']
@mixtures_with_arrays_of_weights list(I.mix([R(2)] * 2, np.array([1, 2]))) -> 'ValueError', [0, 0, 1, 1]
@mixtures_with_other_names list(I.mix({'a': R(2)}, {'b': 1})) -> [0, 1], 'ValueError'
@negative_weights len(M.mix([M.range(2), M.range(2)], [1, -1])) -> 'ZeroDivisionError', 'ValueError'
@wrong_number_of_weights M.mix([M.range(2), M.range(2)], [1]) -> 'AssertionError', 'ValueError'
@indices_with_gaps it = iter(M.range(9).filter(lambda v: v % 3 == 0).to_iter_dataset().batch(2))
[outcome(lambda: x.get_next_index(it)), next(it).tolist(), outcome(lambda: x.get_next_index(it))]
-> [0, [0, 3], 2], ['NotImplementedError', [0, 3], 'NotImplementedError']
@indices_behind_threads it = iter(x.ThreadPrefetchIterDataset(R(9).filter(lambda v: v % 3 == 0), prefetch_buffer_size=1))
found = [outcome(lambda: x.get_next_index(it)), next(it), outcome(lambda: x.get_next_index(it))]
it.set_state(it.get_state())
found + [outcome(lambda: x.get_next_index(it))]
-> [0, 0, 1, 'NotImplementedError'], ['NotImplementedError', 0, 'NotImplementedError', 'NotImplementedError']
@index_of_the_end it = iter(R(5).batch(2))
list(it)
[x.get_next_index(it), outcome(lambda: x.set_next_index(it, 3))] -> [3, 'IndexError'], [3, None]
@index_behind_a_limit x.set_next_index(iter(x.LimitIterDataset(R(9), count=3)), 5) -> None, 'StateIndexError'
@index_of_interleave_at_its_end it = iter(x.InterleaveIterDataset([M.range(3)], cycle_length=1))
list(it)
x.get_next_index(it) -> 0, 3
@slices_by_index list(M.range(9).slice([3, 1])) -> 'ValueError', [3, 1]
@fractional_counts list(x.LimitIterDataset(R(9), 2.5)) -> [0, 1, 2], 'TypeError'
@flat_maps_of_a_loader_that_say_too_little len(list(loader(3, [Fan(lambda v: [v] * 5)]))) -> 15, 'ValueError'
@random_maps_after_flat_maps list(loader(1, [Fan(lambda v: [v] * 2), RandomFn(lambda rng: type(rng).__name__)]))
-> ['NoneType', 'NoneType'], ['Generator', 'Generator']
"""
CODES, EXPECTED = {}, {}
for _entry in TEXT.strip()[1:].split("\n@"):
    _name, _code, _values = re.fullmatch(r"(?s)(\S+)\s(.+)\s-> (.+)", _entry).groups()
    CODES[_name], EXPECTED[_name] = NAMES + _code, ast.literal_eval(f"({_values})")


@pytest.fixture(scope="module")
def found():
    specs = [{"kind": "code", "code": code} for code in CODES.values()]
    return dict(
        zip(CODES, zip(run("grain", specs), run("gristmill", specs), strict=True), strict=True)
    )


@pytest.mark.parametrize("name", CODES)
def test_deviation(found, name):
    values = [x["error"][0] if isinstance(x, dict) and "error" in x else x for x in found[name]]
    assert values == list(EXPECTED[name])
    assert values[0] != values[1]
