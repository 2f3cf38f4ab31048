"""How long until a swarm notices that a worker is dead, and until it has made its next step without it.

    python -m benchmarks.swarm.death --corpus files:PATH --kills 6

Workers of both stages get SIGKILL in the middle of training, one at a time, and are followed by newcomers. Noticed: the
first line of anybody's log that says so. Resumed: the next update in the journal.
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

from benchmarks.swarm.efficiency import configured
from trainer.data.dataset import prepare_dataset
from trainer.swarm.local_swarm import LocalSwarm, WorkerProcess

QUIET = 1.5
"""Seconds of undisturbed training before each kill."""

SAID = ("is banned", "is asked again", "leaves stage", "did not come back")
"""What a log says about a peer that has failed."""


def noticed(folder: Path, victim: str, after: float) -> float | None:
    """Return when somebody else first said that a peer has failed, to the millisecond."""
    found = []
    for log in folder.glob("*.log"):
        for line in log.read_text(errors="replace").splitlines() if log.stem != victim else ():
            if any(words in line for words in SAID):
                found.append(datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp())
    return min((at for at in found if at >= after - 0.001), default=None)


def disturbed(swarm: LocalSwarm, victim: WorkerProcess) -> tuple[float, float, float]:
    """Kill a worker; return the seconds until it was gone, until that was noticed, and until the next step was made.

    A process that is killed gives back its memory before its connections: until then nobody can know.
    """
    steps, killed = swarm.count_steps(), time.time()
    victim.process.kill()
    victim.process.join()
    gone = time.time()
    while swarm.count_steps() == steps:
        time.sleep(0.01)
    resumed = next(line["time"] for line in swarm.read_journal() if line["kind"] == "commit" and line["step"] == steps)
    return gone - killed, (noticed(swarm.folder, victim.name, killed) or resumed) - killed, resumed - killed


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="benchmarks.swarm.death", description="How long a death disturbs a swarm.")
    parser.add_argument("--corpus", default="files:../shared/data/text/tinyshakespeare/input.txt")
    parser.add_argument("--kills", type=int, default=6)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "dataset"
        vocabulary = prepare_dataset(args.corpus, "bpe:320", place, 2**20).tokenizer.vocabulary_size
        config = configured(128, 2, 8, vocabulary).model_copy(update={"steps": 10**6, "checkpoint_every": 10**6})
        found = []
        with LocalSwarm(config, place, [0, 1, 0, 1], timeout=10, out=Path(folder) / "run") as swarm:
            for number in range(args.kills):
                # Both stages have two again, and work.
                while len(swarm.get_member_stages()) < 4 or not swarm.count_steps():
                    swarm.replace_killed()
                    time.sleep(0.05)
                time.sleep(QUIET)
                member = swarm.get_member_stages()
                victims = [w for w in swarm.workers if member.get(w.name) == number % 2]
                found.append(disturbed(swarm, victims[0]))
                swarm.replace_killed()
            usual = median(line["seconds"] for line in swarm.read_journal() if line["kind"] == "commit")
    result = {
        "gone_ms": [round(1000 * seconds, 1) for seconds, _, _ in found],
        "noticed_ms": [round(1000 * seconds, 1) for _, seconds, _ in found],
        "resumed_s": [round(seconds, 3) for _, _, seconds in found],
        "usual_step_s": usual,
    }
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
