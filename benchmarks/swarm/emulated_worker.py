"""A worker that sleeps instead of computing, for measurements of the protocol and the link on a busy machine.

Forward and backward passes take the seconds that were measured on a quiet machine (`ALONE`,
benchmarks/results/swarm.md), and so do the vote and the update. Messages have their real sizes and take the
real way. Gradients are zero.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.swarm import messages, worker_main
from trainer.swarm.messages import Commit, Committed, HeldMicroBatch, Prepare, RunRequest
from trainer.swarm.stage import ForwardRecord
from trainer.swarm.worker import Worker
from trainer.swarm.worker_state import WorkerState

ALONE = {256: 1.0, 512: 3.3, 1024: 11.5, 2048: 56.4}
"""Seconds of a step of one process with `MICRO_BATCHES` micro-batches of 128 tokens, by width."""
MICRO_BATCHES, STAGES = 16, 2
UPDATE, VOTE = 0.0070, 0.0052
"""Seconds for a million parameters: 0.175 and 0.13 s for 25 million."""
PARAMETERS = {256: 3.3, 512: 12.9, 1024: 51.0, 2048: 202.7}  # Millions


def get_pass_seconds(width: int) -> tuple[float, float]:
    """Return the seconds of a stage's forward and backward pass over a micro-batch."""
    stage = (ALONE[width] - UPDATE * PARAMETERS[width]) / MICRO_BATCHES / STAGES
    return stage / 3, stage * 2 / 3


class EmulatedState(WorkerState):
    @property
    def width(self) -> int:
        return int(self.config.model["name"])

    def run_forward(
        self, request: RunRequest, tokens: Tensor, hidden: Tensor | None, targets: Tensor | None
    ) -> ForwardRecord:
        stage = self.get_stage(request.step)
        time.sleep(get_pass_seconds(self.width)[0])
        output = torch.tensor(1.0) if stage.is_last else torch.randn(*tokens.shape, stage.output_width)
        return ForwardRecord(tokens, hidden, targets, output, None)

    def run_backward(
        self, request: RunRequest, record: ForwardRecord, gradient: Tensor | None, peer: str = ""
    ) -> Tensor | None:
        stage = self.get_stage(request.step)
        time.sleep(get_pass_seconds(self.width)[1])
        nats, targets = (record.nats, record.count) if stage.is_last else (0.0, 0)
        self.held[request.micro_batch] = HeldMicroBatch(micro_batch=request.micro_batch, nats=nats, targets=targets)
        return None if record.inputs is None else torch.randn(record.inputs.shape)

    def vote(self, request: Prepare, mean: Tensor) -> messages.Vote:
        time.sleep(VOTE * PARAMETERS[self.width] / STAGES)
        return super().vote(request, mean)

    def commit(self, order: Commit) -> Committed:
        time.sleep(UPDATE * PARAMETERS[self.width] / STAGES)
        return super().commit(order)


class EmulatedWorker(Worker):
    state_type = EmulatedState


def main(argv: Sequence[str] | None = None) -> int:
    return worker_main.main(argv, EmulatedWorker)


if __name__ == "__main__":
    sys.exit(main())
