"""Errors that a call must raise, in one line each."""

import pytest


def assert_raises(error, match, call, *args, **options):
    with pytest.raises(error, match=match):
        call(*args, **options)


def assert_stays(it, error, match, state=None, times=2):
    """``next`` raises that every time, and the iterator stays where it is."""
    before = it.get_state() if state is None else state
    for _ in range(times):
        assert_raises(error, match, next, it)
        assert it.get_state() == before


def assert_refused(it, error, match, wrong, state=None):
    """``set_state`` raises that, and the iterator stays where it is."""
    before = it.get_state() if state is None else state
    assert_raises(error, match, it.set_state, wrong)
    assert it.get_state() == before
