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
from typing import Any

from trainer.swarm.config import SwarmConfig
from trainer.swarm.journal import JournalLine
from trainer.swarm.transport import PEER_SUFFIX, Transport
from trainer.training.metrics import MetricsWriter

MAX_REASON = 200  # Characters


class MetricsReporter:
    """Writes metrics for each line of the journal."""

    def __init__(
        self, config: SwarmConfig, metrics: MetricsWriter, transport: Transport, flops_per_token: float
    ) -> None:
        self.config, self.metrics, self.transport, self.flops_per_token = config, metrics, transport, flops_per_token
        self.step = 0
        self.seconds = 0.0
        self.step_started = time.monotonic()
        self.dev_loss: float | None = None  # The last loss on dev

    def report(self, line: JournalLine) -> None:
        at = line["time"]
        match line["kind"]:
            case "start" | "checkpoint" | "end" as kind:
                self.write_event(kind, at)
            case "join":
                self.step = line["step"]
                if not self.seconds:
                    self.step_started = time.monotonic()  # the first step starts when all required members have joined
                self.write_event("join", at, peer=line["peer"], label=line["label"], stage=line["stage"])
            case "leave":
                self.write_event("leave", at, peer=line["peer"], stage=line["stage"], why=line["why"])
            case "ban":  # for good
                self.write_event("ban", at, peer=line["peer"], stage=line["stage"], why=line["why"], lasting=True)
            case "move":
                self.write_event("move", at, peer=line["peer"], stage=line["target"], source=line["source"])
            case "rollback":
                self.step = line["to"]
                self.write_event("rollback", at, since=line["from"], stages=line["lost"])
            case "evaluation":
                self.dev_loss = line["loss"]
                self.metrics.write("dev", line["step"], **self.compute_usage(line["step"]), loss=line["loss"])
            case "commit":
                self.report_commit(line)

    def write_event(self, what: str, at: float, **fields: Any) -> None:
        """Write a row of kind "swarm", with the end of the peer's name and a shortened reason."""
        limits = {"peer": slice(-PEER_SUFFIX, None), "why": slice(MAX_REASON)}
        fields |= {name: fields[name][limit] for name, limit in limits.items() if name in fields}
        self.metrics.write("swarm", self.step, what=what, time=round(at, 3), **fields)

    def report_address(self) -> None:
        self.write_event("address", time.time(), addresses=self.transport.addresses)

    def report_temporary_ban(self, peer: str, reason: str) -> None:
        self.write_event("ban", time.time(), peer=peer, why=reason)

    def report_commit(self, line: JournalLine) -> None:
        """Report a step. Its seconds count from the end of the step before, so they include the time between."""
        seconds, self.step_started = time.monotonic() - self.step_started, time.monotonic()
        self.step, self.seconds = line["step"] + 1, self.seconds + seconds
        rows = self.config.micro_batch
        tokens_per_second = self.config.tokens_per_step / max(seconds, 1e-6)
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
        tokens = steps * self.config.tokens_per_step
        return {
            "fraction": steps / self.config.steps,
            "tokens": tokens,
            "flops": tokens * self.flops_per_token,
            "seconds": self.seconds,
        }
