"""Seconds until a swarm notices that a worker is dead, and until it has completed the next step.

    python -m benchmarks.swarm.death --corpus files:PATH --kills 6

Workers of both stages get SIGKILL during training, one at a time, and are replaced. Noticed: the first line of any log
that reports the failure. Resumed: the next update in the journal.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median

from benchmarks.swarm.efficiency import build_config
from trainer.data.dataset import prepare_dataset
from trainer.swarm.local_swarm import LocalSwarm, WorkerProcess

QUIET = 1.5  # Seconds of undisturbed training before each kill
FAILURE_MESSAGES = ("is banned", "is called again", "leaves stage")  # In the logs, about a peer that has failed


def find_detection_time(folder: Path, victim: str, after: float) -> float | None:
    """Return the time of the first log line of another process about a failed peer, to the millisecond."""
    times = []
    for log in folder.glob("*.log"):
        for line in log.read_text(errors="replace").splitlines() if log.stem != victim else ():
            if any(message in line for message in FAILURE_MESSAGES):
                times.append(datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp())
    return min((at for at in times if at >= after - 0.001), default=None)


def measure_recovery(swarm: LocalSwarm, victim: WorkerProcess) -> tuple[float, float, float]:
    """Kill a worker; return the seconds until it had ended, until that was noticed, and until the next step.

    The kernel frees a killed process's memory before it closes the connections: nothing is noticeable until then.
    """
    steps, killed = swarm.count_steps(), time.time()
    victim.process.kill()
    victim.process.join()
    ended = time.time()
    while swarm.count_steps() == steps:
        time.sleep(0.01)
    resumed = next(line["time"] for line in swarm.read_journal() if line["kind"] == "commit" and line["step"] == steps)
    noticed = find_detection_time(swarm.folder, victim.name, killed) or resumed
    return ended - killed, noticed - killed, resumed - killed


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="benchmarks.swarm.death", description="Time to recover from the death of a worker.")
    parser.add_argument("--corpus", default="files:../shared/data/text/tinyshakespeare/input.txt")
    parser.add_argument("--kills", type=int, default=6)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        dataset = Path(folder) / "dataset"
        vocabulary = prepare_dataset(args.corpus, "bpe:320", dataset, 2**20).tokenizer.vocabulary_size
        config = build_config(128, 2, 8, vocabulary).model_copy(update={"steps": 10**6, "checkpoint_every": 10**6})
        results = []
        with LocalSwarm(config, dataset, [0, 1, 0, 1], timeout=10, out=Path(folder) / "run") as swarm:
            for number in range(args.kills):
                # Wait until both stages have two workers again.
                while len(swarm.get_member_stages()) < 4 or not swarm.count_steps():
                    swarm.replace_killed()
                    time.sleep(0.05)
                time.sleep(QUIET)
                member = swarm.get_member_stages()
                victims = [w for w in swarm.workers if member.get(w.name) == number % 2]
                results.append(measure_recovery(swarm, victims[0]))
                swarm.replace_killed()
            usual = median(line["seconds"] for line in swarm.read_journal() if line["kind"] == "commit")
    result = {
        "gone_ms": [round(1000 * seconds, 1) for seconds, _, _ in results],
        "noticed_ms": [round(1000 * seconds, 1) for _, seconds, _ in results],
        "resumed_s": [round(seconds, 3) for _, _, seconds in results],
        "usual_step_s": usual,
    }
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
