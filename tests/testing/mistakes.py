"""Classes with one mistake each, made in a row of a table, to show that a conformance suite finds
it and says what is wrong.
"""

import re
import threading

import pytest

MAIN_THREAD = threading.get_ident()


def variant(base, **overrides):
    """A class that differs from ``base`` in ``overrides`` alone. It cannot be imported, so copies
    of its instances bring it.
    """
    return type("Variant", (base,), overrides)


def assert_found(message, check, *args, **options):
    """That ``check`` finds a broken law. In its message "..." stands for anything."""
    pattern = ".*".join(map(re.escape, message.split("...")))
    with pytest.raises(AssertionError, match=f"(?s)^broken law: .*{pattern}"):
        check(*args, **options)
