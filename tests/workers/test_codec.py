"""Messages of elements: what is shared, what is copied, and what is left when something cannot be sent."""

import gc
import os
import pickle
import threading
import weakref

import numpy as np
import pytest

from gristmill.workers.arena import Arena, ArenaReader, open_memory
from gristmill.workers.codec import MIN_SHARED_BYTES, Encoder, decode

LARGE = MIN_SHARED_BYTES


class Ends:
    """Both sides in one process."""

    def __init__(self, min_shared_bytes=0):
        self.fd = open_memory("gristmill-test")
        self.arena, self.reader = Arena(self.fd), ArenaReader(self.fd)
        self.encoder = Encoder(self.arena, min_shared_bytes)

    def encode(self, *elements, states=None):
        return self.encoder.encode(elements, states)

    def send(self, *elements, states=None):
        message = self.encode(*elements, states=states)
        assert (message.num_elements, message.failure) == (len(elements), None)
        received, received_states, failure = decode(message.payload, message.slots, self.reader)
        assert failure is None and received_states == states
        return received

    def num_unused(self):
        """Of all slots that there ever were, how many are free."""
        return sum(map(len, self.arena._free.values()))

    def num_used(self):
        return self.arena._end // 2**16 - self.num_unused()  # of arrays of 2**15 + 1 to 2**16 bytes


@pytest.fixture
def ends():
    ends = Ends()
    yield ends
    os.close(ends.fd)


def large(value=0):
    return np.full(2**16, value, np.uint8)


def is_shared(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return not isinstance(array.base, bytearray)


class TestElements:
    def test_arrive_with_their_states(self, ends):
        elements = [1, "two", {"three": (3.0, None)}, [large(4)]]
        received = ends.send(*elements, states=[{"next_index": 1}])
        assert received[:3] == elements[:3]
        np.testing.assert_array_equal(received[3][0], large(4))

    @pytest.mark.parametrize("num_bytes", [0, 1, LARGE - 1, LARGE, LARGE + 1, 10**6])
    def test_large_arrays_are_shared_and_small_ones_copied(self, ends, num_bytes):
        (array,) = ends.send(np.arange(num_bytes, dtype=np.uint8))
        assert type(array) is np.ndarray and array.flags.writeable
        assert is_shared(array) == (num_bytes >= LARGE)
        array += 1
        np.testing.assert_array_equal(array, np.arange(num_bytes, dtype=np.uint8) + 1)

    def test_the_threshold_can_be_raised_and_not_lowered(self):
        for given, shared in ((10**6, [False, False]), (10, [False, True])):
            ends = Ends(given)
            assert [is_shared(x) for x in ends.send(np.zeros(LARGE - 1, np.uint8), np.zeros(LARGE, np.uint8))] == shared
            os.close(ends.fd)

    def test_share_nothing_with_each_other(self, ends):
        """However many there are in a message; within an element what was one object is one object."""
        array, small, items = large(), np.zeros(3), [1]
        elements = ends.send(*[(array, small, items, small)] * 3)
        for received in elements:
            assert received[1] is received[3]
        elements[0][0][:], elements[0][1][:] = 1, 1
        elements[0][2].append(2)
        for received in elements[1:]:
            assert received[0].max() == 0 and received[1].max() == 0 and received[2] == [1]

    def test_order_of_memory(self, ends):
        c = np.arange(2**16).reshape(256, 256)
        strided, fortran, reversed_ = c[::2, ::2], np.asfortranarray(c), c[::-1]
        for array in (
            c,
            strided,
            fortran,
            reversed_,
            c.T,
            np.broadcast_to(c[0], (300, 256)),
            c[:3, :3],
            np.asfortranarray(c[:3, :3]),
        ):
            (received,) = ends.send(array)
            np.testing.assert_array_equal(received, array)
            assert received.flags.writeable and received.flags.forc
            assert received.flags.f_contiguous == array.flags.f_contiguous

    def test_arrays_within_objects(self, ends):
        class Holder:
            def __init__(self, array):
                self.array = array

        holder, objects = ends.send(Holder(large(3)), np.array([large(4), None], object))
        assert is_shared(holder.array) and holder.array[0] == 3
        assert is_shared(objects[0]) and objects[0][0] == 4 and objects[1] is None

    def test_buffers_of_other_objects_stay_with_them(self, ends):
        class Raw:
            def __init__(self, data):
                self.data = data

            def __reduce_ex__(self, protocol):
                return bytearray, (pickle.PickleBuffer(self.data),)

        data = bytearray(range(256)) * 300
        received = ends.send((Raw(data), large(1), Raw(data)))[0]
        assert received[0] == received[2] == data
        assert received[1].tolist() == large(1).tolist()

    def test_subclasses_of_arrays_stay_what_they_are(self, ends):
        masked = np.ma.masked_array(np.arange(50000), np.arange(50000) % 2 == 0)
        record = np.rec.array([(1, 2.0)], dtype=[("a", int), ("b", float)])
        received = ends.send(masked, record)
        assert type(received[0]) is np.ma.MaskedArray and received[0].sum() == masked.sum()
        assert type(received[1]) is np.recarray and received[1].a == 1

    def test_memory_maps_arrive_as_arrays(self, ends, tmp_path):
        path = tmp_path / "data"
        np.arange(10000).tofile(path)
        (array,) = ends.send(np.memmap(path, np.int64))
        assert type(array) is np.ndarray and array.flags.writeable
        array[:] = 0
        assert np.fromfile(path, np.int64).sum() == sum(range(10000))

    def test_what_plain_pickling_cannot_do(self, ends):
        """Functions and local classes travel by value, one among others does not disturb these."""

        class Local:
            pass

        elements = ends.send(1, lambda x: x + 1, Local, large(2))
        assert elements[0] == 1 and elements[1](2) == 3 and elements[2] is Local and elements[3][0] == 2

    def test_nothing_of_a_sent_message_is_kept(self, ends):
        class Element:
            pass

        element = Element()
        seen = weakref.ref(element)
        ends.encode(element)
        del element
        gc.collect()
        assert seen() is None


class TestGranted:
    def test_arrays_are_sent_without_a_copy(self, ends):
        array = ends.encoder.allocate((256, 256), np.dtype(np.uint8))
        array[:] = 5
        (received,) = ends.send({"image": array})
        received["image"][0, 0] = 6
        assert array[0, 0] == 6
        assert ends.num_used() == 1

    def test_small_ones_and_objects_are_ordinary(self, ends):
        for shape, dtype in (
            ((10,), np.dtype(float)),
            ((10**5,), np.dtype(object)),
            ((0, 10**6), np.dtype(float)),
            ((), np.dtype(int)),
        ):
            array = ends.encoder.allocate(shape, dtype)
            assert (array.shape, array.dtype) == (shape, dtype)
            assert array.base is None
        assert ends.arena._end == 0

    def test_one_in_two_elements_is_two_arrays(self, ends):
        array = ends.encoder.allocate((2**16,), np.dtype(np.uint8))
        array[:] = 1
        first, second = ends.send(array, array)
        first[:] = 2
        assert second.max() == 1

    def test_one_twice_in_an_element_is_one_array(self, ends):
        array = ends.encoder.allocate((2**16,), np.dtype(np.uint8))
        (received,) = ends.send((array, array))
        assert received[0] is received[1]

    def test_a_view_is_copied(self, ends):
        array = ends.encoder.allocate((2**16,), np.dtype(np.uint8))
        array[:] = 1
        (received,) = ends.send(array[:])
        array[:] = 2
        assert received.max() == 1

    def test_what_is_not_sent_is_forgotten(self, ends):
        for _ in range(20):
            arrays = [ends.encoder.allocate((2**16,), np.dtype(np.uint8)) for _ in range(2)]
            message = ends.encode(arrays[0])
            del arrays
            ends.encoder.forget_allocated()
            received = decode(message.payload, message.slots, ends.reader)[0]
            del received
            for slot in ends.reader.released():
                ends.arena.free(slot)
        assert ends.arena._end == 2 * 2**16
        assert ends.num_unused() == 2


class TestFailures:
    @pytest.mark.parametrize("position", [0, 1, 5])
    def test_elements_before_what_cannot_be_sent_are_sent(self, ends, position):
        elements = [(large(k), k) for k in range(6)]
        elements[position] = (large(99), threading.Lock(), large(98))
        message = ends.encode(*elements, states="states")
        assert message.num_elements == position
        assert isinstance(message.failure, TypeError)
        assert message.failure.__notes__ == ["An element of type tuple could not be sent from a worker process."]
        assert len(message.slots) == position == ends.num_used()  # those of the failed one are free again
        if position:
            received, states, failure = decode(message.payload, message.slots, ends.reader)
            assert [x for _, x in received] == [*range(position)]
            assert [int(a[0]) for a, _ in received] == [*range(position)]
            assert (states, failure) == ("states", None)

    def test_of_states(self, ends):
        with pytest.raises(TypeError, match="cannot pickle"):
            ends.encode(large(), states=[large(), threading.Lock()])
        assert ends.num_used() == 0
        ends.send(large(), states=[1])

    def test_granted_arrays_stay_granted(self, ends):
        array = ends.encoder.allocate((2**16,), np.dtype(np.uint8))
        array[:] = 3
        assert ends.encode((array, threading.Lock())).num_elements == 0
        assert ends.num_used() == 1
        (received,) = ends.send((array, None))
        assert received[0][0] == 3 and ends.num_used() == 1

    def test_that_come_from_user_code(self, ends):
        class Rude:
            def __init__(self, error):
                self.error = error

            def __reduce__(self):
                raise self.error

        for error in (ValueError("no"), SystemExit(3), KeyboardInterrupt(), MemoryError()):
            message = ends.encode(large(1), [large(2), Rude(error)])
            assert message.failure is error and message.num_elements == 1
        assert ends.num_used() == 4

    def test_many_leave_no_memory(self, ends):
        for _ in range(100):
            ends.encode((large(), threading.Lock()))
        assert ends.arena._end <= 2 * 2**16

    @pytest.mark.parametrize("position", [0, 1, 5])
    def test_elements_before_what_cannot_be_received_are_received(self, ends, position):
        class Picky:
            def __setstate__(self, state):
                raise ArithmeticError("not here")

        elements = [(large(k), k) for k in range(6)]
        picky = Picky()
        picky.x = large()
        elements[position] = (large(99), picky, large(98))
        message = ends.encode(*elements, states=[7])
        assert message.num_elements == 6
        received, states, failure = decode(message.payload, message.slots, ends.reader)
        assert [x for _, x in received] == [*range(position)] and states == [7]
        assert isinstance(failure, ArithmeticError)
        del received, failure
        gc.collect()
        assert sorted(ends.reader.released()) == sorted(message.slots)

    def test_states_that_cannot_be_received(self, ends):
        class Picky:
            def __setstate__(self, state):
                raise ArithmeticError("not here")

        picky = Picky()
        picky.x = 1
        message = ends.encode(large(), 2, states=picky)
        received, _, failure = decode(message.payload, message.slots, ends.reader)
        assert received == [] and isinstance(failure, ArithmeticError)
