"""The outcomes of an iterator, errors included, in a form that can be compared."""

import cloudpickle


def comparable(x):
    return (
        cloudpickle.dumps(x)
        if isinstance(x, dict)
        else (type(x), getattr(x, "dtype", None), str(x))
    )


def outcomes(it, limit=120):
    """The outcomes, errors that are skipped included, and the state after each."""
    found = []
    while len(found) < limit:
        try:
            outcome = comparable(next(it))
        except StopIteration:
            found.append(("end", it.get_state()))
            break
        except (LookupError, ValueError) as error:  # partial batches cannot be batched again
            outcome, state = (type(error), error.args), it.get_state()
            it.skip_failed()
            assert it.get_state() != state or not found
        found.append((outcome, it.get_state()))
    return found
