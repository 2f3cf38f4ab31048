"""Metrics of a swarm run for its site: lines of the coordinator's journal become rows of `metrics.jsonl`.

    {"kind": "train", "step": 3, "loss": ..., ...}       as in `dailytrain train`: step 3 is the third
    {"kind": "dev", "step": 10, "loss": ...}
    {"kind": "swarm", "what": "address", "step": 0, "addresses": [...]}     the coordinator's addresses
    {"kind": "swarm", "what": "join", "step": 3, "time": ..., "peer": ..., "label": ..., "stage": 0}
    {"kind": "swarm", "what": "leave", "peer": ..., "stage": ..., "why": ...}
    {"kind": "swarm", "what": "ban", "peer": ..., "why": ..., "lasting": true}     for good; otherwise temporary
    {"kind": "swarm", "what": "move", "peer": ..., "stage": 1, "source": 0}
    {"kind": "swarm", "what": "rollback", "step": 50, "since": 63, "stages": [1]}
    {"kind": "swarm", "what": "step", "step": 3, "loss": ..., "seconds": ..., "held": {"0": {peer: 5, ...}, ...}, ...}
    {"kind": "swarm", "what": "start" | "checkpoint" | "end", "step": ...}

`held` is the number of rows of text behind each peer's gradients in that step. Peers appear with the end of their name.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from trainer.swarm.config import SwarmConfig
from trainer.swarm.journal import JournalLine
from trainer.swarm.stage_client import BAN_SECONDS, StageClient
from trainer.swarm.transport import PEER_SUFFIX, Transport
from trainer.training.metrics import MetricsWriter

MAX_REASON = 200
"""Characters."""


class MetricsReporter:
    """Writes metrics for each line of the journal."""

    def __init__(
        self, config: SwarmConfig, metrics: MetricsWriter, transport: Transport, flops_per_token: float
    ) -> None:
        self.config, self.metrics, self.transport, self.flops_per_token = config, metrics, transport, flops_per_token
        self.step = 0
        self.seconds = 0.0
        self.step_started = time.monotonic()
        self.dev_loss: float | None = None
        """The last loss on dev."""

    def report(self, line: JournalLine) -> None:
        kind = line["kind"]
        if kind in LINE_HANDLERS:
            LINE_HANDLERS[kind](self, line)

    def write_event(self, what: str, at: float, **fields: Any) -> None:
        self.metrics.write("swarm", self.step, what=what, time=round(at, 3), **fields)

    def report_address(self) -> None:
        self.write_event("address", time.time(), addresses=self.transport.addresses)

    def report_temporary_ban(self, peer: str, reason: str) -> None:
        self.write_event("ban", time.time(), peer=peer[-PEER_SUFFIX:], why=reason[:MAX_REASON])

    # --- lines of the journal ---

    def on_start(self, line: JournalLine) -> None:
        self.write_event("start", line["time"])

    def on_join(self, line: JournalLine) -> None:
        self.step = line["step"]
        if not self.seconds:
            self.step_started = time.monotonic()  # the first step starts when the last member it waits for has joined
        fields = {"peer": line["peer"][-PEER_SUFFIX:], "label": line["label"], "stage": line["stage"]}
        self.write_event("join", line["time"], **fields)

    def on_leave(self, line: JournalLine) -> None:
        self.write_event("leave", line["time"], **describe_exit(line))

    def on_ban(self, line: JournalLine) -> None:
        """Report a peer that is banned for good."""
        self.write_event("ban", line["time"], **describe_exit(line), lasting=True)

    def on_move(self, line: JournalLine) -> None:
        fields = {"peer": line["peer"][-PEER_SUFFIX:], "stage": line["target"], "source": line["source"]}
        self.write_event("move", line["time"], **fields)

    def on_rollback(self, line: JournalLine) -> None:
        self.step = line["to"]
        self.write_event("rollback", line["time"], since=line["from"], stages=line["lost"])

    def on_checkpoint(self, line: JournalLine) -> None:
        self.write_event("checkpoint", line["time"])

    def on_end(self, line: JournalLine) -> None:
        self.write_event("end", line["time"])

    def on_evaluation(self, line: JournalLine) -> None:
        self.dev_loss = line["loss"]
        self.metrics.write("dev", line["step"], **self.compute_usage(line["step"]), loss=line["loss"])

    def on_commit(self, line: JournalLine) -> None:
        """Report a step. Its seconds count from the end of the step before, so they include the time between."""
        seconds, self.step_started = time.monotonic() - self.step_started, time.monotonic()
        self.step, self.seconds = line["step"] + 1, self.seconds + seconds
        rows = self.config.micro_batch
        tokens_per_second = self.config.micro_batches * rows * self.config.sequence_length / max(seconds, 1e-6)
        self.metrics.write(
            "train",
            self.step,
            **self.compute_usage(self.step),
            loss=line["loss"],
            learning_rate=self.config.learning_rate * line["factor"],
            gradient_norm=line["norm"],
            tokens_per_second=tokens_per_second,
        )
        self.write_event(
            "step",
            line["time"],
            loss=line["loss"],
            seconds=round(seconds, 4),
            tokens_per_second=round(tokens_per_second, 1),
            held={
                stage: {peer[-PEER_SUFFIX:]: rows * len(held) for peer, held in peers.items()}
                for stage, peers in line["cover"].items()
            },
            bytes_in=self.transport.bytes_in,
            bytes_out=self.transport.bytes_out,
        )

    def compute_usage(self, steps: int) -> dict[str, Any]:
        tokens = steps * self.config.micro_batches * self.config.micro_batch * self.config.sequence_length
        return {
            "fraction": steps / self.config.steps,
            "tokens": tokens,
            "flops": tokens * self.flops_per_token,
            "seconds": self.seconds,
        }


def describe_exit(line: JournalLine) -> dict[str, Any]:
    return {"peer": line["peer"][-PEER_SUFFIX:], "stage": line["stage"], "why": line["why"][:MAX_REASON]}


LINE_HANDLERS: dict[str, Callable[[MetricsReporter, JournalLine], None]] = {
    "start": MetricsReporter.on_start,
    "join": MetricsReporter.on_join,
    "leave": MetricsReporter.on_leave,
    "ban": MetricsReporter.on_ban,
    "move": MetricsReporter.on_move,
    "rollback": MetricsReporter.on_rollback,
    "checkpoint": MetricsReporter.on_checkpoint,
    "end": MetricsReporter.on_end,
    "evaluation": MetricsReporter.on_evaluation,
    "commit": MetricsReporter.on_commit,
}


class ReportingStageClient(StageClient):
    """A client of the first stage that reports temporary bans."""

    def __init__(self, transport: Transport, reporter: MetricsReporter) -> None:
        super().__init__(transport)
        self.reporter = reporter

    def ban(self, peer: str, reason: str, seconds: float = BAN_SECONDS) -> None:
        super().ban(peer, reason, seconds)
        self.reporter.report_temporary_ban(peer, reason)
