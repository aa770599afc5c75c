import contextlib
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from refusing import assert_raises
from waiting import wait_until

from gristmill.core.locks import Lock
from gristmill.sources.kept import KeptValues


def test_values_are_made_once_for_all_who_wait():
    kept, start, made = KeptValues(100), threading.Barrier(16), []

    def make():
        made.append(threading.get_ident())
        return object(), 10

    def get(_):
        start.wait()
        return [kept.get(key, lambda: 10, make) for key in range(10)]

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(get, range(16)))
    assert len(made) == 10 and kept.num_bytes == 100
    assert all(
        one is other for answer in answers for one, other in zip(answer, answers[0], strict=True)
    )


def wait_for_others(num):
    """Waits until ``num`` threads wait for a lock."""
    waits = Lock.__enter__.__code__
    wait_until(lambda: [x.f_code for x in sys._current_frames().values()].count(waits) >= num)


@pytest.mark.parametrize("error", [ValueError("damaged"), KeyboardInterrupt()])
def test_an_error_reaches_all_waiters_an_interrupt_only_one(error):
    kept, is_made = KeptValues(100), threading.Event()

    def fail():
        is_made.set()
        wait_for_others(3)
        raise error

    def get(make):
        try:
            return kept.get("x", lambda: 1, make)
        except BaseException as caught:
            return caught

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(get, fail)
        is_made.wait()
        answers = [pool.submit(get, lambda: ("value", 1)) for _ in range(3)]
        assert first.result() is error
        expected = error if isinstance(error, ValueError) else "value"
        assert [answer.result() for answer in answers] == [expected] * 3
    assert kept.get("x", lambda: 1, lambda: ("value", 1)) == "value"
    assert_raises(ZeroDivisionError, None, kept.get, "y", lambda: 1 // 0, lambda: ("value", 1))
    assert (kept.get("y", lambda: 1, lambda: ("other", 99)), kept.num_bytes) == ("other", 100)


def test_the_least_recently_used_make_room():
    kept, made = KeptValues(10), []

    def get(key, num_bytes):
        def make():
            made.append(key)
            return key, num_bytes

        assert kept.get(key, lambda: 1, make) == key
        return kept.num_bytes

    assert [get(key, 4) for key in "abac"] == [4, 8, 8, 8]  # b is dropped
    assert get("a", 4) == 8 and made == ["a", "b", "c"]
    assert get("large", 50) == 50 and get("large", 50) == 50
    assert get("a", 4) == 4 and made == ["a", "b", "c", "large", "a"]
    assert KeptValues(0).get("x", lambda: 1, lambda: ("x", 1)) == "x"


@pytest.mark.parametrize("seed", range(5))
def test_what_is_kept_and_made_has_room(seed):
    """Any sizes and wrong estimates, in 16 threads: no thread waits forever, and no more is kept
    than is allowed.
    """
    sizes = [random.Random(seed).choice([0, 1, 10, 40, 150]) for _ in range(30)]
    kept, lock, making = KeptValues(100), threading.Lock(), []

    def get(number):
        rng = random.Random(100 * seed + number)
        for _ in range(300):
            key, is_bad = rng.randrange(30), rng.random() < 0.05

            def make(key=key, is_bad=is_bad):
                with lock:
                    making.append(sizes[key])
                    assert len(making) == 1 or sum(making) <= 100
                with lock:
                    making.remove(sizes[key])
                if is_bad:
                    raise ValueError
                return key, sizes[key]

            with contextlib.suppress(ValueError):
                assert kept.get(key, lambda key=key: sizes[key], make) == key
            num_bytes = kept.num_bytes
            assert num_bytes <= 100 or num_bytes == 150

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(get, range(16)))
    done = [entry.num_bytes for entry in kept._entries.values()]
    assert sum(done) == kept.num_bytes and (sum(done) <= 100 or sum(done) == 150)
    assert not kept._making
