"""Prints the seconds from ``iter`` to the first batch of JPEG images in a program that imports JAX:
``first_image.py WORKERS``, a number, ``auto`` or ``torch``.

To be run in a process of its own for each figure. The module with the functions imports JAX at the
top, as training programs do, so workers that import it do so, too.
"""

import sys
import time

import jax  # noqa: F401
import numpy as np
from questions.images import BATCH, Sample, by_pillow, files

sample = Sample(by_pillow)


def decode(i):
    return sample(i)


def batches(workers):
    if workers == "torch":
        from torch.utils.data import DataLoader

        return DataLoader(sample, batch_size=BATCH, num_workers=2)
    from first_image import decode  # by its name, as from the module of a program

    import gristmill as grain

    ds = grain.MapDataset.range(64 * BATCH).map(decode).to_iter_dataset().batch(BATCH)
    if workers == "0":
        return ds
    num = "auto" if workers == "auto" else int(workers)
    return ds.mp_prefetch(grain.MultiprocessingOptions(num, num_lanes=16))


if __name__ == "__main__":
    files()
    data = batches(sys.argv[1])
    start = time.perf_counter()
    first = next(iter(data))
    print(time.perf_counter() - start, int(np.asarray(first).sum()), flush=True)
