"""Stop a training dead in the middle, resume it, and end with the same bits as without.

    python examples/train_digits_story.py               # the whole story, in under a minute
    python examples/train_digits_story.py --workers 2   # the same with two worker processes

Trains as `train_digits.py` does: once without interruption; again in a process that stops hard
(`os._exit`) between two checkpoints; and from the last checkpoint to the end. Then every batch,
every loss and the final parameters are compared. The exit status is 0 only if they are
bit-identical.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from digits_loader import plot_digits
from matplotlib.figure import Figure
from train_digits import INTERRUPTED, folder_of, make_parser, train


def plot_loss(path: Path, uninterrupted: list[list[str]], resumed: list[list[str]]) -> None:
    """The losses of both runs; the resumed one in two colours, before and after its
    interruption.
    """
    steps = [int(step) for step, *_ in resumed]
    restart = next((i for i in range(1, len(steps)) if steps[i] <= steps[i - 1]), len(steps))
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    for label, log, style in [
        ("uninterrupted", uninterrupted, {"color": "0.85", "linewidth": 6}),
        (
            f"stopped hard after step {steps[restart - 1]}",
            resumed[:restart],
            {"color": "C0", "linewidth": 2},
        ),
        ("resumed from the last checkpoint", resumed[restart:], {"color": "C1", "linewidth": 0.8}),
    ]:
        axis.semilogy(
            [int(step) for step, *_ in log],
            [float(loss) for _, loss, _ in log],
            label=label,
            **style,
        )
    axis.set(xlabel="step", ylabel="training loss", title="Handwritten digits")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    args = make_parser(__doc__).parse_args()
    uninterrupted, resumed = folder_of(args, "uninterrupted"), folder_of(args, "resumed")
    if (resumed / "log.txt").exists() and "final" in (resumed / "log.txt").read_text():
        shutil.rmtree(resumed)  # its run is complete: begin a new one
    shutil.rmtree(uninterrupted, ignore_errors=True)
    train(uninterrupted, args)
    if not (resumed / "log.txt").exists():
        script = str(Path(__file__).with_name("train_digits.py"))
        command = [
            sys.executable,
            script,
            *sys.argv[1:],
            "--name=resumed",
            f"--interrupt-at={args.steps // 2}",
        ]
        if (status := subprocess.run(command).returncode) != INTERRUPTED:
            sys.exit(f"the run to be interrupted ended with exit status {status}")
    train(resumed, args)

    logs = [
        [line.split() for line in (run / "log.txt").read_text().splitlines()]
        for run in (uninterrupted, resumed)
    ]
    plot_loss(args.out / "loss.png", logs[0][:-1], logs[1][:-1])
    plot_digits(args.out / "digits.png", args.out / "records", args.seed)
    identical = {tuple(line) for line in logs[0]} == {tuple(line) for line in logs[1]}
    for run, log in [(uninterrupted, logs[0]), (resumed, logs[1])]:
        print(
            f"{run.name + ':':14} final parameters {log[-1][2][:16]}, held-out accuracy"
            f" {float(log[-1][1]):.1%}"
        )
    print(f"pictures: {args.out / 'loss.png'}, {args.out / 'digits.png'}")
    print(f"batches, losses and parameters: {'bit-identical' if identical else 'DIFFERENT'}")
    sys.exit(0 if identical else 1)


if __name__ == "__main__":
    main()
