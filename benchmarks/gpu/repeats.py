"""Deviation of a training run from its repetition on the same machine: `python -m benchmarks.gpu.repeats --out FOLDER`.

One run is trained to its end. Its second half is replayed from its middle checkpoint, and a second run is killed after
that checkpoint and resumed. Both ends are compared with the first one, as replays of nodes are
(`trainer.scoring.compare_replay`): the deviation is relative to how far the weights moved in the second half.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from trainer.checkpoint.store import get_checkpoint_path
from trainer.scoring.compare_replay import compare_weights

POLL_SECONDS = 0.2


def start_training(out: Path, flags: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "trainer.train", *flags, "--out", str(out)], stdout=sys.stderr)


def check_exit(code: int, what: str) -> None:
    if code:
        raise SystemExit(f"{what} ended with code {code}")


def train_and_kill(out: Path, flags: Sequence[str], checkpoint: Path) -> None:
    """Kill a run as soon as `checkpoint` is complete, then resume it to its end."""
    process = start_training(out, flags)
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(POLL_SECONDS)
    process.kill()
    process.wait()
    if not checkpoint.exists():
        raise SystemExit("the run to be killed ended without a checkpoint")
    check_exit(start_training(out, flags).wait(), "the resumed run")


def replay(out: Path, start: Path, end: Path, steps: int, flags: Sequence[str]) -> None:
    """Train once more from the checkpoint `start` to step `steps`."""
    shutil.copytree(start, out / "checkpoints" / start.name)
    recorded = out / "recorded.json"
    state = json.loads((end / "state.json").read_text())
    recorded.write_text(json.dumps({"clock": state["clock"], "train": state["identity"]["train"]}))
    command = [sys.executable, "-m", "trainer.training.replay", "--until", str(steps)]
    command += ["--recorded-state", str(recorded), *flags, "--out", str(out)]
    check_exit(subprocess.run(command, stdout=sys.stderr, check=False).returncode, "the replay")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60)
    options, flags = parser.parse_known_args(argv)
    shutil.rmtree(options.out, ignore_errors=True)
    middle = options.steps // 2
    flags = [*flags, "--budget", f"{options.steps}steps", "--checkpoint-every", f"{middle}steps", "--keep", "9"]
    first, killed, replayed = (options.out / name for name in ("first", "killed", "replayed"))
    check_exit(start_training(first, flags).wait(), "the first run")
    start, end = (get_checkpoint_path(first, step) for step in (middle, options.steps))
    replay(replayed, start, end, options.steps, flags)
    train_and_kill(killed, flags, get_checkpoint_path(killed, middle))
    found = {}
    for name, folder in (("replayed", replayed), ("killed", killed)):
        last = get_checkpoint_path(folder, options.steps)
        comparison = compare_weights(start, end, last)
        found[name] = comparison._asdict()
    sys.stdout.write(json.dumps({"steps": options.steps, **found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
