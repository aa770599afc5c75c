"""JPEG images of 400 × 300: decoded, cropped at random to 224 × 224, flipped, in batches of 64.

All candidates run in one environment with the same decoders, Pillow and simplejpeg, which is the
quickest of PyPI for small images. They decode the same images and crop them at the same places.
The bounds are two processes, and two threads of one process, that do the same and hand nothing
over. SPDL decodes in two threads.
"""

import functools
import io
import itertools
import multiprocessing
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from workload import Measured, Workload

SCRIPT = Path(__file__).parent.parent / "first_image.py"
NUM_FILES = 32
CROP = 224
BATCH = 64
WARM_UP = 16  # batches, more than there are ahead
BATCHES = 40
MOST_LOOKS = 50  # whether processes have become idle, ten times a second
ENDLESS = 10_000_000


@functools.cache
def files():
    """Smooth images with some noise, which compress as photographs do: about 50 kB each."""
    from PIL import Image

    rng = np.random.default_rng(0)
    noise = rng.normal(0, 12, (300, 400, 3))
    found = []
    for _ in range(NUM_FILES):
        small = rng.integers(0, 256, (15, 20, 3), np.uint8)
        smooth = np.asarray(Image.fromarray(small).resize((400, 300), Image.Resampling.BICUBIC))
        noisy = np.clip(smooth + noise, 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(noisy).save(file, "JPEG", quality=90)
        found.append(file.getvalue())
    return found


def by_pillow(data):
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def by_simplejpeg(data):
    import simplejpeg

    return simplejpeg.decode_jpeg(data)


class Sample:
    """Makes the image of an index.

    Args:
        decode: returns the pixels of a file.
    """

    def __init__(self, decode):
        self._decode = decode

    def __call__(self, i):
        i = int(i)
        image = self._decode(files()[i % NUM_FILES])
        top, left = i * 7919 % (300 - CROP), i * 104_729 % (400 - CROP)
        image = image[top : top + CROP, left : left + CROP]
        return np.ascontiguousarray(image[:, ::-1] if i & 1 else image)

    __getitem__ = __call__

    def __len__(self):
        return ENDLESS


def wait_until_idle():
    """Wait until nothing more is computed ahead, which would slow down the next candidate."""
    from gristmill.diagnostics.runtime.processes import cpu_seconds

    used = sum(cpu_seconds().values())
    for _ in range(MOST_LOOKS):
        time.sleep(0.1)
        before, used = used, sum(cpu_seconds().values())
        if used < before + 0.03:
            return


def measured(batches, is_cpu):
    """A run over batches without end."""
    from gristmill.diagnostics.runtime.processes import cpu_seconds

    it = iter(batches)
    calls = itertools.count()

    def run():
        if not next(calls):
            return Measured(0.0, [int(np.asarray(next(it)).sum())])
        for _ in range(WARM_UP):
            next(it)
        before, start = cpu_seconds(), time.perf_counter()
        for _ in range(BATCHES):
            np.asarray(next(it))[:, ::32].copy()  # looks at every page
        elapsed = time.perf_counter() - start
        spent = sum(total - before.get(pid, 0.0) for pid, total in cpu_seconds().items())
        wait_until_idle()
        return Measured(spent if is_cpu else elapsed, [])

    return run


def by_threads(decode, is_cpu, module):
    ds = module.MapDataset.range(ENDLESS).map(Sample(decode)).to_iter_dataset().batch(BATCH)
    return measured(ds, is_cpu)


def by_workers(decode, is_cpu, module, **options):
    ds = module.MapDataset.range(ENDLESS).map(Sample(decode))
    ds = ds.to_iter_dataset(module.ReadOptions(**options)).batch(BATCH)
    return measured(ds.mp_prefetch(module.MultiprocessingOptions(2)), is_cpu)


def with_one_thread(decode, is_cpu, _):
    import gristmill

    return by_workers(decode, is_cpu, gristmill, num_threads=1, prefetch_buffer_size=BATCH)


def by_torch(decode, is_cpu, torch):
    from torch.utils.data import DataLoader

    loader = DataLoader(Sample(decode), batch_size=BATCH, num_workers=2)
    return measured(loader, is_cpu)


def by_spdl(decode, is_cpu, _):
    from spdl.pipeline import PipelineBuilder

    def batches():
        builder = PipelineBuilder().add_source(range(ENDLESS))
        builder = builder.pipe(Sample(decode), concurrency=2, output_order="input")
        pipeline = builder.aggregate(BATCH).pipe(np.stack).add_sink(4).build(num_threads=4)
        with pipeline.auto_stop():
            yield from pipeline

    return measured(batches(), is_cpu)


def decoding(sample, connection):
    """Decodes, crops and stacks as many images as it is asked for; reports the seconds."""
    while num := connection.recv():
        start, cpu = time.perf_counter(), time.process_time()
        for first in range(0, num, BATCH):
            np.stack([sample(i) for i in range(first, first + BATCH)])
        connection.send((time.perf_counter() - start, time.process_time() - cpu))


def bare(decode, is_cpu, _):
    files()
    context = multiprocessing.get_context("fork")
    connections = []
    for _ in range(2):
        ours, theirs = context.Pipe()
        context.Process(target=decoding, args=(Sample(decode), theirs), daemon=True).start()
        connections.append(ours)

    def run():
        for connection in connections:
            connection.send(BATCHES // 2 * BATCH)
        answers = [connection.recv() for connection in connections]
        return Measured(sum(x for _, x in answers) if is_cpu else max(answers)[0], [])

    return run


def bare_threads(decode, is_cpu, _):
    sample = Sample(decode)
    files()

    def decode_batches():
        batch = np.empty((BATCH, CROP, CROP, 3), np.uint8)
        for i in range(BATCHES // 2 * BATCH):
            batch[i % BATCH] = sample(i)

    def run():
        threads = [threading.Thread(target=decode_batches) for _ in range(2)]
        start, cpu = time.perf_counter(), time.process_time()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        elapsed, spent = time.perf_counter() - start, time.process_time() - cpu
        return Measured(spent if is_cpu else elapsed, [])

    return run


def question(kind, decoder, decode, is_cpu):
    ours = {"2 workers": by_workers, "threads": by_threads}[kind]
    candidates = {"gristmill": ours, "2 bare processes": bare, "SPDL": by_spdl}
    if kind == "threads":
        candidates["2 bare threads"] = bare_threads
    else:
        candidates |= {"torch": by_torch, "2 workers of 1 thread": with_one_thread}
    goals = {
        "≥ 0.95 × 2 bare processes": lambda m: 0.95 * m["gristmill"] <= m["2 bare processes"],
        "no slower than SPDL": lambda m: m["gristmill"] <= m["SPDL"],
    }
    return Workload(
        name=f"JPEG 400 × 300, decode, crop, flip, batch 64: {decoder}, {kind}"
        + (", CPU time" if is_cpu else ""),
        unit="µs CPU/image" if is_cpu else "µs/image",
        scale=1e6,
        count=BATCHES * BATCH,
        candidates={
            name: functools.partial(candidate, decode, is_cpu)
            for name, candidate in candidates.items()
        },
        goals={} if is_cpu else goals,
        compare=False,
        environment="images",
    )


def first_batch(workers, _):
    """A run that starts a program, in which the first batch is timed."""

    calls = itertools.count()

    def run():
        if not next(calls):
            return Measured(0.0, [])
        command = [sys.executable, SCRIPT, workers]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return Measured(float(printed.split()[-2]), [])

    return run


FIRST_BATCH = Workload(
    name='first batch of JPEG images in a program that imports JAX, "auto"',
    unit="ms",
    scale=1e3,
    count=1,
    candidates={
        "gristmill": functools.partial(first_batch, "auto"),
        "torch": functools.partial(first_batch, "torch"),
        "no workers": functools.partial(first_batch, "0"),
        "2 workers": functools.partial(first_batch, "2"),
    },
    goals={"≤ 1.1 × no workers": lambda m: m["gristmill"] <= 1.1 * m["no workers"]},
    compare=False,
    environment="images",
)

WORKLOADS = [
    FIRST_BATCH,
    *(
        question(kind, decoder, decode, is_cpu)
        for decoder, decode in (("Pillow", by_pillow), ("simplejpeg", by_simplejpeg))
        for kind in ("2 workers", "threads")
        for is_cpu in (False, True)
    ),
]
