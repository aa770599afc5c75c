"""Errors that a call must raise, in one line each."""

import pytest


def assert_raises(error, match, call, *args, **options):
    with pytest.raises(error, match=match):
        call(*args, **options)
