"""Interrupts in the middle of an operation, as a signal handler raises them."""

import sys


class Interrupt(BaseException):
    """As ``KeyboardInterrupt``, which pytest takes for itself."""


def interrupted(operation, number, files=""):
    """Whether an interrupt came: at the ``number``-th line that ``operation`` runs in files whose names end so."""

    def trace(frame, event, arg):
        nonlocal number
        if event == "line" and frame.f_code.co_filename.endswith(files):
            number -= 1
            if number < 0:
                raise Interrupt
        return trace

    sys.settrace(trace)
    try:
        operation()
    except Interrupt:
        return True
    finally:
        sys.settrace(None)
    return False
