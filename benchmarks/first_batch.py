"""Makes a DataLoader and prints the seconds from ``iter`` to its first batch: ``first_batch.py
MODULE [WORKERS]``.

To be run in a process of its own for each figure. Prints also the sums of the first two batches.
With a number of workers, it is a loader of integers instead of images with two, and the sum is that
of all: workers have other batches in each library.
"""

import importlib
import json
import sys
import time


def main() -> None:
    from questions.worker_starts import integers, loader, total

    module = importlib.import_module(sys.argv[1])
    is_of_integers = len(sys.argv) > 2
    data_loader = integers(module, int(sys.argv[2])) if is_of_integers else loader(module)
    start = time.perf_counter()
    iterator = iter(data_loader)
    batch = next(iterator)
    seconds = time.perf_counter() - start
    sums = (
        [sum(map(total, [batch, *iterator]))]
        if is_of_integers
        else [total(batch), total(next(iterator))]
    )
    print(json.dumps({"seconds": seconds, "sums": sums}), flush=True)


if __name__ == "__main__":
    main()
