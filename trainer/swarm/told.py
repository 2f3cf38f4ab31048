"""What a run's coordinator tells its site: the lines of its journal as rows of `metrics.jsonl`.

    {"kind": "train", "step": 3, "loss": ..., ...}       as `dailytrain train` writes them: step 3 is the third
    {"kind": "dev", "step": 10, "loss": ...}
    {"kind": "swarm", "what": "address", "step": 0, "addresses": [...]}     where the coordinator can be reached
    {"kind": "swarm", "what": "join", "step": 3, "time": ..., "peer": ..., "label": ..., "stage": 0}
    {"kind": "swarm", "what": "leave", "peer": ..., "stage": ..., "why": ...}
    {"kind": "swarm", "what": "ban", "peer": ..., "why": ..., "lasting": true}     for good; otherwise for a moment
    {"kind": "swarm", "what": "move", "peer": ..., "stage": 1, "source": 0}
    {"kind": "swarm", "what": "rollback", "step": 50, "since": 63, "stages": [1]}
    {"kind": "swarm", "what": "step", "step": 3, "loss": ..., "seconds": ..., "held": {"0": {peer: 5, ...}, ...}, ...}
    {"kind": "swarm", "what": "start" | "checkpoint" | "end", "step": ...}

`held` are rows of text that each peer's gradients were made of in that step. A peer is named by the end of its name.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from trainer.swarm.calls import Below
from trainer.swarm.config import SwarmConfig
from trainer.swarm.frames import CallFailed
from trainer.swarm.journal import Line
from trainer.swarm.transport import Transport
from trainer.training.metrics import MetricsWriter

NAME = 8
"""Letters of a peer's name that are told."""
WHY = 200


class Told:
    """Hears of each line of the journal."""

    def __init__(self, config: SwarmConfig, metrics: MetricsWriter, transport: Transport, flops: float) -> None:
        """`flops`: of training on one token."""
        self.config, self.metrics, self.transport, self.flops = config, metrics, transport, flops
        self.step = 0
        self.seconds = 0.0
        self.since = time.monotonic()
        self.dev: float | None = None
        """The last loss on dev."""

    def line(self, line: Line) -> None:
        kind = line["kind"]
        if kind in HEARD:
            HEARD[kind](self, line)

    def swarm(self, what: str, at: float, **about: Any) -> None:
        self.metrics.write("swarm", self.step, what=what, time=round(at, 3), **about)

    def address(self) -> None:
        self.swarm("address", time.time(), addresses=self.transport.addresses)

    def ban(self, peer: str, why: str) -> None:
        self.swarm("ban", time.time(), peer=peer[-NAME:], why=why[:WHY])

    # --- lines ---

    def on_start(self, line: Line) -> None:
        self.swarm("start", line["time"])

    def on_join(self, line: Line) -> None:
        self.step = line["step"]
        if not self.seconds:
            self.since = time.monotonic()  # the first step begins when the last of those it waits for is there
        self.swarm("join", line["time"], peer=line["peer"][-NAME:], label=line["label"], stage=line["stage"])

    def on_leave(self, line: Line) -> None:
        self.swarm("leave", line["time"], peer=line["peer"][-NAME:], stage=line["stage"], why=line["why"][:WHY])

    def on_ban(self, line: Line) -> None:
        """Somebody sent what no sound machine would, and may not come again."""
        about = {"peer": line["peer"][-NAME:], "stage": line["stage"], "why": line["why"][:WHY]}
        self.swarm("ban", line["time"], **about, lasting=True)

    def on_move(self, line: Line) -> None:
        self.swarm("move", line["time"], peer=line["peer"][-NAME:], stage=line["target"], source=line["source"])

    def on_rollback(self, line: Line) -> None:
        self.step = line["to"]
        self.swarm("rollback", line["time"], since=line["from"], stages=line["lost"])

    def on_checkpoint(self, line: Line) -> None:
        self.swarm("checkpoint", line["time"])

    def on_end(self, line: Line) -> None:
        self.swarm("end", line["time"])

    def on_evaluation(self, line: Line) -> None:
        self.dev = line["loss"]
        self.metrics.write("dev", line["step"], **self.spent(line["step"]), loss=line["loss"])

    def on_commit(self, line: Line) -> None:
        """A step counts. Its seconds are those since the step before, and what lay between the two is paid for, too."""
        took, self.since = time.monotonic() - self.since, time.monotonic()
        self.step, self.seconds = line["step"] + 1, self.seconds + took
        tokens = self.config.micro_batches * self.config.micro_batch * self.config.sequence_length
        pace = tokens / max(took, 1e-6)
        self.metrics.write(
            "train",
            self.step,
            **self.spent(self.step),
            loss=line["loss"],
            learning_rate=self.config.learning_rate * line["factor"],
            gradient_norm=line["norm"],
            tokens_per_second=pace,
        )
        rows = self.config.micro_batch
        held = {s: {p[-NAME:]: rows * len(got) for p, got in peers.items()} for s, peers in line["cover"].items()}
        about = {"loss": line["loss"], "seconds": round(took, 4), "tokens_per_second": round(pace, 1), "held": held}
        traffic = {"bytes_in": self.transport.bytes_in, "bytes_out": self.transport.bytes_out}
        self.swarm("step", line["time"], **about, **traffic)

    def spent(self, steps: int) -> dict[str, Any]:
        tokens = steps * self.config.micro_batches * self.config.micro_batch * self.config.sequence_length
        part = steps / self.config.steps
        return {"fraction": part, "tokens": tokens, "flops": tokens * self.flops, "seconds": self.seconds}


HEARD: dict[str, Callable[[Told, Line], None]] = {
    "start": Told.on_start,
    "join": Told.on_join,
    "leave": Told.on_leave,
    "ban": Told.on_ban,
    "move": Told.on_move,
    "rollback": Told.on_rollback,
    "checkpoint": Told.on_checkpoint,
    "end": Told.on_end,
    "evaluation": Told.on_evaluation,
    "commit": Told.on_commit,
}


class Watched(Below):
    """The first stage's peers, whose bans are told."""

    def __init__(self, transport: Transport, told: Told) -> None:
        super().__init__(transport)
        self.told = told

    def ban(self, peer: str, error: CallFailed) -> None:
        super().ban(peer, error)
        self.told.ban(peer, str(error))
