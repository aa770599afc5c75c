"""Train a PyTorch model, kill it, start it again, and end with the same bits.

    python examples/train_pytorch.py               # the whole story, in some seconds
    python examples/train_pytorch.py --workers 0   # without worker processes

Points of three spiral arms are made and shifted at random in worker processes, and shuffled again
in every epoch. One `torch.save` keeps model, optimiser and the position in the data. The story:
train; train again until SIGKILL ends the program between two checkpoints; continue from the last
one; compare every batch, every loss and the final parameters. The exit status is 0 only if they are
bit-identical.
"""

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

import gristmill as grain

torch.set_num_threads(1)  # plenty for a model of this size


def make_point(index: int) -> dict[str, np.ndarray]:
    """Makes a point of one of three spiral arms, and the number of the arm."""
    arm, radius = index % 3, np.sqrt(index % 1009 / 1009)
    angle = 2 * np.pi * (arm / 3 + radius)
    return {
        "point": np.float32([radius * np.cos(angle), radius * np.sin(angle)]),
        "arm": np.int64(arm),
    }


class Shift(grain.transforms.RandomMap):
    """Moves a point a little, in every epoch elsewhere; the draws are the same in every run and any
    number of threads.
    """

    def random_map(
        self, element: dict[str, np.ndarray], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        return {
            **element,
            "point": element["point"] + rng.normal(scale=0.03, size=2).astype(np.float32),
        }


def make_pipeline(num_workers: int) -> grain.IterDataset[dict[str, np.ndarray]]:
    ds = grain.MapDataset.range(3000).seed(0).shuffle().map(make_point).random_map(Shift()).repeat()
    return (
        ds.to_iter_dataset()
        .batch(64)
        .mp_prefetch(grain.MultiprocessingOptions(num_workers=num_workers))
    )


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    return torch.nn.Sequential(linear(2, 64), relu(), linear(64, 64), relu(), linear(64, 3))


def digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(map(bytes, arrays))).hexdigest()[:16]


def train(run: Path, args: argparse.Namespace) -> torch.nn.Module:
    """Trains from the checkpoint in the folder on, if there is one. Every step is a line of
    `log.txt`.
    """
    run.mkdir(parents=True, exist_ok=True)
    checkpoint, start = run / "checkpoint.pt", 0
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with iter(make_pipeline(args.workers)) as it, (run / "log.txt").open("a", buffering=1) as log:
        if checkpoint.exists():
            saved = torch.load(checkpoint)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            it.set_state(saved["data"])
            start = saved["step"]
            print(f"resuming after step {start}", flush=True)
        for step in range(start + 1, args.steps + 1):
            batch = next(it)
            # the same memory, not a copy
            points, arms = torch.from_numpy(batch["point"]), torch.from_numpy(batch["arm"])
            loss = torch.nn.functional.cross_entropy(model(points), arms)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.write(f"{step} {loss.item()} {digest(*batch.values())}\n")
            if step % args.save_every == 0:
                saved = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "data": it.get_state(),
                    "step": step,
                }
                torch.save(saved, run / "half")
                (run / "half").rename(checkpoint)  # a kill leaves the old one or the new one
            if step == args.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        log.write(
            f"final {digest(*(weights.detach().numpy() for weights in model.parameters()))}\n"
        )
    return model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out/pytorch"), help="folder for the runs")
    parser.add_argument("--steps", type=int, default=600, help="batches to train on")
    parser.add_argument("--save-every", type=int, default=100, help="steps between two checkpoints")
    parser.add_argument("--workers", type=int, default=2, help="number of worker processes")
    parser.add_argument(
        "--kill-at",
        type=int,
        help="continue the run that is to be killed, and kill it after this step",
    )
    args = parser.parse_args()
    straight, killed = args.out / "straight", args.out / "killed"
    if args.kill_at:
        train(killed, args)
        return

    for run in (straight, killed):
        shutil.rmtree(run, ignore_errors=True)
    model = train(straight, args)
    batch = grain.MapDataset.range(3000).map(make_point).batch(3000)[0]  # not shifted
    guesses = model(torch.from_numpy(batch["point"])).argmax(1).numpy()
    print(
        f"{args.steps} steps: {np.mean(guesses == batch['arm']):.0%} of the points get the"
        " right arm"
    )
    kill_at = args.steps * 7 // 12
    status = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], f"--kill-at={kill_at}"]
    ).returncode
    print(f"trained again: ended by signal {-status} after step {kill_at}")
    train(killed, args)
    # some steps came twice
    first, second = (set((run / "log.txt").read_text().splitlines()) for run in (straight, killed))
    print(f"batches, losses and parameters: {'bit-identical' if first == second else 'DIFFERENT'}")
    sys.exit(first != second)


if __name__ == "__main__":
    main()
