"""Makes a DataLoader with two workers and prints the seconds from ``iter`` to its first batch: ``first_batch.py MODULE``.

To be run in a process of its own for each figure. Prints also the sums of the first batches of the workers.
"""

import importlib
import json
import sys
import time


def main() -> None:
    from questions.worker_starts import loader, total

    data_loader = loader(importlib.import_module(sys.argv[1]))
    start = time.perf_counter()
    iterator = iter(data_loader)
    batch = next(iterator)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "sums": [total(batch), total(next(iterator))]}), flush=True)


if __name__ == "__main__":
    main()
