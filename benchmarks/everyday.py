"""Training speed of the small track beside other busy programs: `python -m benchmarks.everyday`.

Each row is `dailytrain train --preset cpu-ladder` beside so many endless loops. `--compare` adds rows with fixed
threads: all cores with libgomp's own waiting, as torch does by default; all cores with ours; one thread.

Figures depend on what else the machine does; the load at the end of each run is printed beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from trainer.accounting.cores import WAIT_VARIABLES, count_cores

SETTLE_SECONDS = 1.0
TORCH_DEFAULT = {"GOMP_SPINCOUNT": "300000"}  # libgomp's own where OMP_WAIT_POLICY is not set


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.everyday", description=__doc__.partition("\n")[0])
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2], help="busy loops beside the run")
    parser.add_argument("--steps", type=int, default=30, help="of each run (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each row; the median counts (%(default)s)")
    parser.add_argument("--compare", action="store_true", help="also torch's default, and one thread")
    options = parser.parse_args()
    cores = str(count_cores())
    ways: dict[str, Mapping[str, str]] = {"as it is": {}}
    if options.compare:
        ways["torch's default"] = {"OMP_NUM_THREADS": cores, **TORCH_DEFAULT}
        ways["all cores, short spinning"] = {"OMP_NUM_THREADS": cores}
        ways["one thread"] = {"OMP_NUM_THREADS": "1"}
    sys.stdout.write(
        "| busy loops | threads and waiting | threads | tokens/s (median; all) | load |\n|---|---|---|---|---|\n"
    )
    for busy in options.busy:
        for name, variables in ways.items():
            with run_busy_loops(busy):
                runs = [measure_run(options.steps, variables) for _ in range(options.repeats)]
            speeds = sorted(speed for speed, _ in runs)
            every = ", ".join(f"{speed:,.0f}" for speed in speeds)
            threads = "/".join(sorted({str(threads) for _, threads in runs}))
            row = f"{busy} | {name} | {threads} | {statistics.median(speeds):,.0f} ({every}) | {os.getloadavg()[0]:.1f}"
            sys.stdout.write(f"| {row} |\n")
            sys.stdout.flush()
    return 0


@contextmanager
def run_busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(SETTLE_SECONDS)
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure_run(steps: int, variables: Mapping[str, str]) -> tuple[float, int]:
    """Return the tokens per second of a run's training, its first step included, and its threads."""
    ignored = (*WAIT_VARIABLES, "OMP_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in ignored}
    with tempfile.TemporaryDirectory(prefix="everyday-") as folder:
        command = [sys.executable, "-m", "trainer.cli", "train", "--preset", "cpu-ladder", "--out", folder]
        command += ["--budget", f"{steps}steps", "--train.evaluations", "1", "--train.sample_tokens", "0"]
        subprocess.run(command, env=environment | variables, check=True, capture_output=True)
        result, run = (json.loads((Path(folder) / name).read_bytes()) for name in ("result.json", "run.json"))
    return result["tokens"] / result["train_seconds"], run["environment"]["threads"]


if __name__ == "__main__":
    raise SystemExit(main())
