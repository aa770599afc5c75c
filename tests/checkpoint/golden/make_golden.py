"""Writes the checkpoints beside this file: run it with Grain 0.2.18, ``.peers/grain/bin/python make_golden.py``.

Every pipeline is saved by Grain's own checkpoint handler before the first element, in the middle and after the end, as
``<pipeline>-<position>/process_0-of-1.json``; ``expected.json`` has the elements that follow. They must restore for ever.
"""

import itertools
import json
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
POSITIONS = ("start", "middle", "end")
NUM_FOLLOWING = 6


def pipelines(m):
    """The pipelines by name, made with Grain or with a module that has its names."""

    class Draw(m.transforms.RandomMap):
        def random_map(self, element, rng):
            return int(element) * 1000 + int(rng.integers(1000))

    class Plus(m.transforms.Map):
        def map(self, element):
            return element + 1

    class KeepMost(m.transforms.Filter):
        def filter(self, element):
            return element % 3 != 0

    def loader(source, sampler, *operations):
        return m.DataLoader(data_source=source, sampler=sampler, operations=list(operations))

    numbers = m.sources.RangeDataSource(0, 12, 1)
    shard = m.sharding.ShardOptions(1, 3, drop_remainder=True)
    batch = m.transforms.Batch
    records = m.MapDataset.source(list(range(100, 120)))
    shuffled = m.MapDataset.range(12).seed(7).shuffle()
    return {
        "loader": lambda: loader(numbers, m.samplers.IndexSampler(12, m.sharding.NoSharding(), True, 2, 5)),
        "loader_operations": lambda: loader(
            numbers, m.samplers.IndexSampler(12, shard, True, 3, 5), Plus(), Draw(), KeepMost(), batch(2), Plus()
        ),
        "loader_list": lambda: loader([f"é{i}" for i in range(9)], m.samplers.SequentialSampler(9, shard), batch(2)),
        "loader_shared_memory": lambda: loader(
            m.sources.SharedMemoryDataSource([3, "four", b"five", None, 2.5, True]), m.samplers.SequentialSampler(6)
        ),
        "map_dataset": lambda: records.shuffle(seed=3).map(lambda x: x + 1)[2:].repeat(2),
        "repeated": lambda: m.MapDataset.range(4).seed(1).shuffle().repeat(3, reseed_each_epoch=False).to_iter_dataset(),
        "filtered": lambda: records.filter(lambda x: x % 3).to_iter_dataset(),
        "map_batches": lambda: shuffled.batch(5).to_iter_dataset(),
        "iter_batches": lambda: shuffled.to_iter_dataset().batch(5, drop_remainder=True),
        "nested": lambda: (
            shuffled.random_map(Draw())
            .to_iter_dataset()
            .filter(KeepMost())
            .map_with_index(lambda i, x: (i, x))
            .seed(9)
            .random_map(lambda x, rng: (*x, int(rng.integers(1000))))
            .batch(2)
        ),
    }


def plain(element):
    if isinstance(element, np.ndarray):
        return {"dtype": str(element.dtype), "values": element.tolist()}
    if isinstance(element, tuple):
        return [plain(x) for x in element]
    if isinstance(element, bytes):
        return repr(element)
    return element if isinstance(element, (str, float, bool, type(None))) else int(element)


def main():
    import grain

    expected = {}
    for name, make in pipelines(grain).items():
        everything = [plain(element) for element in make()]
        counts = dict(zip(POSITIONS, (0, len(everything) // 2, len(everything)), strict=True))
        for position, count in counts.items():
            it = iter(make())
            assert len(list(itertools.islice(it, count))) == count
            if position == "end":
                assert list(it) == []
            directory = HERE / f"{name}-{position}"
            directory.mkdir(exist_ok=True)
            grain.checkpoint.CheckpointHandler().save(directory, item=it)
            expected[directory.name] = everything[count : count + NUM_FOLLOWING]
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(elements)}" for name, elements in expected.items())
    (HERE / "expected.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
