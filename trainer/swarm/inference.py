"""Evaluation of a swarm's model. Requests take the path of training steps, without gradients."""

from __future__ import annotations

from trainer.swarm import messages
from trainer.swarm.data import Batches
from trainer.swarm.stage_client import StageClient


async def evaluate_dev(
    client: StageClient, batches: Batches, step: int, timeout: float, rows: int = 32
) -> tuple[float, int]:
    """Return the loss on the first `rows` rows of dev, in nats per target, and the number of targets."""
    nats, targets = 0.0, 0
    for number, (x, y) in enumerate(batches.iter_dev(rows)):
        request = messages.RunRequest(step=step, micro_batch=number, mode="nats", timeout=timeout)
        reply, _ = await client.call_stage(messages.to_frame(request, x, y), batches.config.stages, timeout, x.numel())
        nats, targets = nats + float(reply.tensors[0].double().sum()), targets + int((y >= 0).sum())
    return nats / max(targets, 1), targets
