"""Messages of elements: what is shared, what is copied, and what is left when something cannot be
sent.

Elements of all structures are in ``properties/test_transport.py``.
"""

import gc
import pickle
import threading
import weakref

import numpy as np
import pytest
from both_ends import Ends
from worker_pools import is_shared

from gristmill.workers.codec import MIN_SHARED_BYTES, Encoder, decode

LARGE = MIN_SHARED_BYTES


class Messages(Ends):
    def __init__(self, min_shared_bytes=0):
        super().__init__()
        self.encoder = Encoder(self.arena, min_shared_bytes)

    def encode(self, *elements, states=None):
        return self.encoder.encode(elements, states)

    def decode(self, message):
        return decode(message.payload, message.slots, self.reader)

    def send(self, *elements, states=None):
        message = self.encode(*elements, states=states)
        assert (message.num_elements, message.failure) == (len(elements), None)
        received, received_states, failure = self.decode(message)
        assert failure is None and received_states == states
        return received

    def granted(self, value=0):
        array = self.encoder.allocate((2**16,), np.dtype(np.uint8))
        array[:] = value
        return array

    def num_unused(self):
        return sum(map(len, self.arena._free.values()))

    def num_used(self):
        return self.arena._end // 2**16 - self.num_unused()  # of arrays of 2**15 + 1 to 2**16 bytes


@pytest.fixture
def ends():
    with Messages() as ends:
        yield ends


def large(value=0):
    return np.full(2**16, value, np.uint8)


class Picky:  # cannot be received
    def __init__(self, value):
        self.value = value

    def __setstate__(self, state):
        raise ArithmeticError("not here")


def test_large_arrays_are_shared_and_small_ones_copied(ends):
    for num_bytes in (0, 1, LARGE - 1, LARGE, LARGE + 1, 10**6):
        (array,) = ends.send(np.arange(num_bytes, dtype=np.uint8))
        assert type(array) is np.ndarray
        assert array.flags.writeable
        assert is_shared(array) == (num_bytes >= LARGE)
        array += 1
        np.testing.assert_array_equal(array, np.arange(num_bytes, dtype=np.uint8) + 1)
    # the threshold can be raised and not lowered
    for given, shared in ((10**6, [False, False]), (10, [False, True])):
        with Messages(given) as ends:
            assert [
                is_shared(x)
                for x in ends.send(*[np.zeros(n, np.uint8) for n in (LARGE - 1, LARGE)])
            ] == shared


def test_elements_share_nothing_and_arrays_keep_their_order(ends):
    """However many there are in a message; within an element what was one object is one object."""
    array, granted, small = large(), ends.granted(), np.zeros(3)
    elements = ends.send(*[(array, granted, small, granted, small)] * 3, states=[{"next_index": 1}])
    for position in range(3):
        elements[0][position][:] = 1
        assert elements[1][position].max() == elements[2][position].max() == 0
    assert elements[1][1] is elements[1][3]
    assert elements[1][2] is elements[1][4] is not elements[2][2]
    c = np.arange(2**16).reshape(256, 256)
    views = [c[::2, ::2], np.asfortranarray(c), c[::-1], c.T, np.broadcast_to(c[0], (300, 256))]
    # their values are looked at in the properties
    for array in (c, *views, c[:3, :3], np.asfortranarray(c[:3, :3])):
        (received,) = ends.send(array)
        assert received.flags.forc and received.flags.f_contiguous == array.flags.f_contiguous


def test_arrays_in_objects_and_objects_that_are_like_arrays(ends, tmp_path):
    class Raw:
        def __init__(self, data):
            self.data = data

        def __reduce_ex__(self, protocol):
            return bytearray, (pickle.PickleBuffer(self.data),)

    raw, (objects,) = bytearray(range(256)) * 300, ends.send(np.array([large(4), None], object))
    assert is_shared(objects[0]) and objects[0][0] == 4 and objects[1] is None
    ((first, array, second),) = ends.send((Raw(raw), large(1), Raw(raw)))
    assert first == second == raw and array.tolist() == large(1).tolist()

    masked = np.ma.masked_array(np.arange(50000), np.arange(50000) % 2 == 0)
    record = np.rec.array([(1, 2.0)], dtype=[("a", int), ("b", float)])
    received = ends.send(masked, record)
    assert type(received[0]) is np.ma.MaskedArray and received[0].sum() == masked.sum()
    assert type(received[1]) is np.recarray and received[1].a == 1

    path = tmp_path / "data"
    np.arange(10000).tofile(path)
    (array,) = ends.send(np.memmap(path, np.int64))
    assert type(array) is np.ndarray and array.flags.writeable
    array[:] = 0
    assert np.fromfile(path, np.int64).sum() == sum(range(10000))


def test_what_plain_pickling_cannot_do_and_nothing_is_kept(ends):
    """Functions and local classes travel by value, one among others does not disturb these."""

    class Local:
        def __init__(self, array):
            self.array = array

    element = Local(large(3))
    one, function, cls, local = ends.send(1, lambda x: x + 1, Local, element)
    assert (one, function(1), cls, is_shared(local.array), local.array[0]) == (1, 2, Local, True, 3)
    seen = weakref.ref(element)
    del element
    gc.collect()
    assert seen() is None


def test_granted_arrays_are_sent_without_a_copy(ends):
    view, array = ends.granted(5).reshape(-1), ends.granted(5)
    copied, shared = ends.send(view, {"image": array})
    view[:] = 2
    shared["image"][0] = 6
    assert copied.max() == 5 and array[0] == 6
    array = ends.granted(3)
    used = ends.num_used()
    assert ends.encode((array, threading.Lock())).num_elements == 0 and ends.num_used() == used
    (received,) = ends.send((array, None))  # it has stayed granted
    assert received[0][0] == 3 and ends.num_used() == used


def test_small_arrays_and_objects_are_not_granted(ends):
    shapes = {(10,): float, (10**5,): object, (0, 10**6): float, (): int}
    for shape, dtype in shapes.items():
        array = ends.encoder.allocate(shape, np.dtype(dtype))
        assert (array.shape, array.dtype, array.base) == (shape, np.dtype(dtype), None)
    assert ends.arena._end == 0
    for _ in range(20):
        ends.granted()
        message = ends.encode(ends.granted())
        ends.encoder.forget_allocated()
        received = ends.decode(message)[0]
        del received
        ends.give_back()
    assert ends.arena._end == 2 * 2**16 and ends.num_unused() == 2


@pytest.mark.parametrize("position", [0, 1, 5])
def test_elements_before_what_cannot_be_sent_or_received_arrive(ends, position):
    elements = [(large(k), k) for k in range(6)]
    elements[position] = (large(99), threading.Lock(), large(98))
    message = ends.encode(*elements, states="states")
    assert message.num_elements == position and isinstance(message.failure, TypeError)
    expected = "An element of type tuple could not be sent from a worker process."
    assert (message.failure.__notes__[-1]) == expected
    # those of the failed one are free again
    assert len(message.slots) == position == ends.num_used()
    if position:
        received, states, failure = ends.decode(message)
        assert [(int(a[0]), x) for a, x in received] == [(k, k) for k in range(position)]
        assert (states, failure) == ("states", None)
        del received
        gc.collect()
        ends.reader.released()

    elements[position] = (large(99), Picky(large()), large(98))
    message = ends.encode(*elements, states=[7])
    assert message.num_elements == 6
    received, states, failure = ends.decode(message)
    assert [x for _, x in received] == [*range(position)]
    assert states == [7]
    assert isinstance(failure, ArithmeticError)
    del received, failure
    gc.collect()
    assert sorted(ends.reader.released()) == sorted(message.slots)


def test_states_that_cannot_be_sent_or_received(ends):
    with pytest.raises(TypeError, match="cannot pickle"):
        ends.encode(large(), states=[large(), threading.Lock()])
    assert (
        ends.encode((large(), threading.Lock()), states=[large()]).num_elements
        == ends.num_used()
        == 0
    )
    ends.send(large(), states=[1])
    received, _, failure = ends.decode(ends.encode(large(), 2, states=Picky(1)))
    assert received == [] and isinstance(failure, ArithmeticError)

    def refuse(self):
        raise error

    rude, before = type("Rude", (), {"__reduce__": refuse})(), ends.num_used()
    for error in (ValueError("no"), SystemExit(3), KeyboardInterrupt(), MemoryError()):
        message = ends.encode(large(1), [large(2), rude])
        assert message.failure is error and message.num_elements == 1
    for _ in range(100):
        ends.encode((large(), rude))
    assert ends.num_used() == before + 4 and ends.arena._end <= 9 * 2**16
