"""A worker's client for the stage after its own, with verification of the gradients that come back.

A gradient is verified if two peers compute the same one. That doubles the work, so it is done only until the usual size
of gradients is known, and at random afterwards (`SwarmConfig.audit`).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.swarm import messages, trust
from trainer.swarm.config import SwarmConfig
from trainer.swarm.frames import (
    CallError,
    CallRefusedError,
    MalformedFrameError,
    RpcFrame,
    decode_tensor,
    encode_tensor,
)
from trainer.swarm.stage import ForwardRecord
from trainer.swarm.stage_client import DIVERGED, ReplyCheck, StageClient
from trainer.swarm.transport import Transport, get_loop_time

MAX_CONFIRMATIONS = 3  # Peers that compute one gradient: two, and a third if these disagree


@dataclass(frozen=True)
class StageQuery:
    """A micro-batch on its way to the next stage."""

    request: messages.RunRequest
    tensors: tuple[Tensor, ...]
    shape: tuple[int, ...]  # Shape of the reply
    wire: str  # Encoding of the reply
    depth: int  # Number of stages from the next one on

    def to_frame(self) -> RpcFrame:
        return messages.to_frame(self.request, *self.tensors)

    def decode_reply(self, reply: RpcFrame) -> Tensor:
        """Return the reply's tensor; raise `MalformedFrameError` for an unexpected one."""
        return decode_tensor(reply.tensors, self.wire, self.shape)

    def to_replay_frame(self, peer: str) -> RpcFrame:
        """Return a request for the same computation without any peer accumulating gradients."""
        replay = messages.ReplayTarget(peer=peer, number=0)
        return messages.to_frame(self.request.model_copy(update={"replay": replay}), *self.tensors)


class NextStageClient:
    def __init__(self, transport: Transport, config: SwarmConfig, stage: int) -> None:
        self.peer, self.config, self.stage = transport.peer, config, stage
        self.client = StageClient(transport)
        self.gradient_norms = trust.GradientNormTracker()
        self.rng = random.SystemRandom()

    async def run_micro_batch(
        self, request: messages.RunRequest, record: ForwardRecord, targets: Tensor | None
    ) -> tuple[Tensor, messages.StageReply]:
        """Return the reply of the later stages, a verified gradient when learning. Raise `CallRefusedError`."""
        query = self.build_query(request, record, targets)
        pinned = None if request.replay is None else request.replay.peer
        cost: float = record.tokens.numel()
        if request.cache is not None:  # single tokens are slow: they say nothing about a peer's throughput
            pinned, cost = next(iter(request.cache.path[self.stage + 1 :]), None), 0.0
        started, check = get_loop_time(), self.build_check(query)
        reply, result = await self.client.call_stage(
            query.to_frame(), query.depth, request.timeout, cost, check, pinned
        )
        tensor = query.decode_reply(reply)
        if request.mode == "learn":
            is_confirmed = True
            is_audited = request.replay is None and self.rng.random() < self.config.audit
            if not self.gradient_norms.is_ready or is_audited:
                left = started + request.timeout * (query.depth + 0.5) - get_loop_time()
                tensor, is_confirmed = await self.confirm_gradient(query, result.path[0], tensor, left)
            if is_confirmed:
                self.gradient_norms.observe(tensor)
        return tensor, result.model_copy(update={"later_seconds": get_loop_time() - started})

    def build_query(self, request: messages.RunRequest, record: ForwardRecord, targets: Tensor | None) -> StageQuery:
        """Return the query; refuse if the hidden state as the next stage would read it is not finite.

        All peers of this stage refuse if the model has diverged. The next stage reports peers that send such a state.
        """
        tokens, wire = record.tokens, self.config.wire
        hidden = encode_tensor(record.output, wire)
        if describe_non_finite(decode_tensor(hidden, wire, record.output.shape)):
            raise CallRefusedError(DIVERGED, f"stage {self.stage}: the hidden state is not finite")
        inputs = (tokens,) if targets is None else (tokens, targets)
        shape = {
            "learn": tuple(record.output.shape),
            "nats": tuple(tokens.shape),
            "logits": (len(tokens), int(self.config.model["vocabulary_size"])),
        }[request.mode]
        return StageQuery(
            request=request,
            tensors=(*inputs, *hidden),
            shape=shape,
            wire=wire if request.mode == "learn" else "fp32",
            depth=self.config.stages - self.stage - 1,
        )

    def build_check(self, query: StageQuery) -> ReplyCheck:
        """Return the check of replies: shape and encoding, finite numbers, and the usual size of gradients."""

        def check(_: str, reply: RpcFrame) -> str:
            tensor = query.decode_reply(reply)
            outlier = self.gradient_norms.describe_outlier if query.request.mode == "learn" else lambda _: ""
            return describe_non_finite(tensor) or outlier(tensor)

        return check

    async def confirm_gradient(
        self, query: StageQuery, author: str, gradient: Tensor, seconds: float
    ) -> tuple[Tensor, bool]:
        """Return the gradient that two peers compute, or two of three if two disagree, and True. Blame the others.

        If too few peers reply within `seconds`, return the likeliest one (`trust.majority_vote`) and False. Without
        other peers, return the gradient as it came and True. A peer that depends on further stages may be wrong by
        their fault, so it is only banned for a while.
        """
        request, gradients, agreeing = query.to_replay_frame(self.peer), {author: gradient}, [author]
        tolerance = trust.get_tolerance(self.config.precision, self.config.wire)
        deadline, others = get_loop_time() + seconds, self.client.list_other_peers(author)
        for peer in others:
            left = deadline - get_loop_time()
            if len(agreeing) > 1 or len(gradients) == MAX_CONFIRMATIONS or left < seconds / MAX_CONFIRMATIONS:
                break
            with contextlib.suppress(CallError):
                reply, _, reason = await self.client.call_peer(peer, request, left, self.build_check(query))
                if not reason:
                    gradients[peer] = query.decode_reply(reply)
                    agreeing = trust.majority_vote(gradients, tolerance)
        if len(agreeing) > 1:
            accuse = self.client.blame if query.depth == 1 else self.client.ban
            for peer in gradients.keys() - set(agreeing):
                accuse(peer, "its gradient differs from that of two others")
        return gradients[agreeing[0]], len(agreeing) > 1 or not others


def describe_non_finite(tensor: Tensor) -> str:
    """Return "not finite" for a tensor with NaN or infinity, else an empty string."""
    return "" if bool(torch.isfinite(tensor).all()) else "not finite"


def get_single_tensor(reply: RpcFrame, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a reply's only tensor; raise `MalformedFrameError` if it does not have this shape and dtype."""
    if len(reply.tensors) != 1 or reply.tensors[0].shape != torch.Size(shape) or reply.tensors[0].dtype != dtype:
        raise MalformedFrameError(f"the reply is not one tensor of shape {list(shape)}")
    return reply.tensors[0]
