"""An interrupt at any line of a mixture of streams loses no element, and doubles none."""

import itertools

import pytest
from computing_ahead import DIRECT
from interrupting import interrupted

from gristmill import IterDataset, MapDataset, Schedule

FILES = tuple(f"mixtures/{name}.py" for name in ("stream", "drawing", "draw_counts", "standing"))
PARTS = {
    name: MapDataset.range(100 * i, 100 * i + 4 + i).to_iter_dataset(DIRECT)
    for i, name in enumerate("ab")
}
MIXTURES = {
    "pattern": lambda: IterDataset.mix(PARTS, {"a": 2, "b": 1}),
    "list": lambda: IterDataset.mix([*PARTS.values()]),
    "all": lambda: IterDataset.mix(PARTS, Schedule({0: {"a": 1}, 2: {"a": 1, "b": 2}}), stop="all"),
    "never": lambda: IterDataset.mix(PARTS, stop="never").limit(14),
    "lengths": lambda: IterDataset.mix(PARTS, by=lambda x: 1 + x % 3, stop="all"),
    "batches": lambda: IterDataset.mix(PARTS).batch(3, batch_fn=list),
    "window": lambda: IterDataset.mix(PARTS).window_shuffle(3, seed=1),
}


@pytest.mark.parametrize("make", MIXTURES.values(), ids=MIXTURES)
def test_an_interrupt_at_any_line_loses_no_element(make):
    expected, num_interrupts = [*make()], 0
    for num in range(0, len(expected), 4):
        for number in itertools.count(num % 3, 3):
            it = iter(make())
            found = [next(it) for _ in range(num)]
            was_interrupted = interrupted(
                lambda it=it, found=found: found.append(next(it)), number, FILES
            )
            if number % 2:
                it.set_state(it.get_state())
            assert [*found, *it] == expected, (num, number)
            if not was_interrupted:
                break
            num_interrupts += 1
    assert num_interrupts > 10


@pytest.mark.parametrize("make", MIXTURES.values(), ids=MIXTURES)
def test_after_a_restore_anywhere_the_same_elements_follow(make):
    expected, it, states = [*make()], iter(make()), []
    for x in expected:
        states.append(it.get_state())
        assert next(it) == x
    states += [it.get_state()]
    for i, state in enumerate(states):
        for other in (it, iter(make())):
            other.set_state(state)
            assert other.get_state() == state
            assert [*other] == expected[i:], i
