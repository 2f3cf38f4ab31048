"""A worker's part of a step: its stage, its ledger of gradients, and whether it is frozen.

All methods run in the worker's one compute thread, so each is atomic. They use no network, and time only to measure.

In a step gradients are accumulated, each with its entry in the ledger (`run_backward`). The coordinator compares the
ledgers until each micro-batch is held once. Then the worker freezes (`freeze`), votes on the stage's reduced sum
(`vote`) and makes the update (`commit`). A newer attempt of the coordinator unfreezes it (`read_ledger`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.swarm import buffers
from trainer.swarm.config import SwarmConfig
from trainer.swarm.frames import DTYPES, CallRefusedError
from trainer.swarm.messages import (
    CachePosition,
    Commit,
    Committed,
    HeldMicroBatch,
    Ledger,
    Position,
    PositionRequest,
    Prepare,
    RunRequest,
    StateRequest,
    StepRequest,
    Vote,
)
from trainer.swarm.router import SMOOTHING
from trainer.swarm.stage import ForwardRecord, HashObject, Stage, squared_norm, update_hash


class WorkerState:
    def __init__(self, config: SwarmConfig, device: str | torch.device = "cpu") -> None:
        self.config, self.device = config, device
        self.stage: Stage | None = None
        self.held: dict[int, HeldMicroBatch] = {}
        self.attempt = 0  # The newest attempt of the coordinator; older ones are refused
        self.frozen_attempt: int | None = None
        """The attempt in which this worker is frozen. Set last, when everything that belongs to it is in place."""
        self.snapshot: Tensor | None = None
        """`[P]`: the gradient sum when frozen, in the dtype of the reduction. Replaced, never changed."""
        self.weights_hash: tuple[int, HashObject] | None = None  # The attempt, and a sha256 object over the weights
        self.mean: Tensor | None = None  # `[P]`, fp32: the stage's mean gradient that was voted on
        self.replayed: tuple[int, Tensor] | None = None  # Number of a replay and the gradient sum that it recomputed
        self.throughput: float | None = None
        self.caches: dict[str, tuple[int, Any]] = {}
        """Texts that are being sampled: tokens so far and the stage's cache of them. Dropped by an update."""
        self.max_caches = 0  # As many as fit, by the memory plan

    # --- the stage ---

    def load_stage(self, attempt: int, index: int, step: int, state: Mapping[str, Tensor] | None) -> Stage:
        """Load a stage with this state, or build it from the seed without one. Raise `StateError` for a wrong state."""
        self.check_attempt(attempt)
        self.reset_step()
        self.caches.clear()
        if self.stage is not None and (state is None or self.stage.index != index):
            self.stage = None
        if self.stage is None:
            self.stage = Stage(self.config, index, self.device)
        if state is not None:
            self.stage.load_state(state, step)
        return self.get_stage(step)

    def plan_memory(self) -> int:
        """Return how many micro-batches fit into the free memory, and limit the texts to what fits beside them."""
        assert self.stage is not None, "a stage has been loaded"
        plan = buffers.plan_memory(self.stage)
        self.max_caches = plan.texts
        return plan.slots

    def reset_step(self) -> None:
        """Drop this step's gradients, and unfreeze."""
        self.held, self.frozen_attempt, self.snapshot, self.mean, self.replayed = {}, None, None, None, None
        self.weights_hash = None
        if self.stage is not None:
            self.stage.clear_gradients()

    def check_attempt(self, attempt: int) -> None:
        if attempt < self.attempt:
            raise CallRefusedError("stale", f"attempt {attempt} after {self.attempt}")
        self.attempt = attempt

    def get_stage(self, step: int) -> Stage:
        """Return the stage if it is at this step; raise `CallRefusedError`."""
        if self.stage is None or self.stage.version != step:
            version = self.stage.version if self.stage else "none"
            raise CallRefusedError("stale", f"requested step {step}, this worker is at {version}")
        return self.stage

    def copy_state(self, request: StateRequest) -> dict[str, Tensor]:
        """Return a copy of weights and momenta."""
        stage = self.get_stage(request.step)
        if stage.index != request.stage:
            raise CallRefusedError("stale", f"requested stage {request.stage}, this worker has {stage.index}")
        return stage.copy_state()

    # --- a micro-batch ---

    def run_forward(
        self, request: RunRequest, tokens: Tensor, hidden: Tensor | None, targets: Tensor | None
    ) -> ForwardRecord:
        stage = self.get_stage(request.step)
        started = time.perf_counter()
        record = stage.forward(tokens, hidden, targets, learn=request.mode == "learn")
        self.observe_throughput(tokens.numel(), time.perf_counter() - started, share=1 / 3)
        return record

    def compute_nats(self, request: RunRequest, tokens: Tensor, hidden: Tensor | None, targets: Tensor) -> Tensor:
        """Return the last stage's reply to an evaluation."""
        return self.get_stage(request.step).compute_nats(tokens, hidden, targets)

    def advance(self, request: RunRequest, position: CachePosition, tokens: Tensor, hidden: Tensor | None) -> Tensor:
        """Read the next tokens of a text: return the stage's output, at the last stage the next token's logits.

        Refuse a text whose earlier tokens are not in a cache here: the caller starts it again.
        """
        stage = self.get_stage(request.step)
        if not self.max_caches:
            raise CallRefusedError("no_memory", "this worker has too little memory to remember a text")
        length, cache = self.caches.pop(position.name, (0, None))
        if length != position.start:
            raise CallRefusedError("no_cache", f"{length} tokens of this text are here, not {position.start}")
        cache = stage.build_cache() if cache is None else cache
        output = stage.advance(tokens, hidden, cache)
        self.caches[position.name] = length + tokens.size(1), cache
        if len(self.caches) > self.max_caches:
            del self.caches[next(iter(self.caches))]  # the one that was used least recently
        return output

    def run_backward(
        self, request: RunRequest, record: ForwardRecord, gradient: Tensor | None, peer: str = ""
    ) -> Tensor | None:
        """Run a micro-batch's backward pass; return the gradient of its input.

        Accumulate the parameters' gradients if the request needs them from this stage, with an entry in the ledger.
        Refuse requests of another step and while frozen: their gradients are late, and others count instead. A replay
        accumulates nothing; the requested `peer` keeps its gradients aside.
        """
        stage = self.get_stage(request.step)
        if request.replay is not None:
            is_target = request.replay.peer == peer
            input_gradient, gradients = stage.backward(record, gradient, learn=is_target)
            if is_target:
                self.add_to_replay(request.replay.number, gradients)
            return input_gradient
        if self.frozen_attempt is not None:
            raise CallRefusedError("frozen", "this step is being committed")
        is_needed = stage.index in request.need and request.micro_batch not in self.held
        started = time.perf_counter()
        input_gradient, gradients = stage.backward(record, gradient, learn=is_needed)
        self.observe_throughput(record.tokens.numel(), time.perf_counter() - started, share=2 / 3)
        if is_needed:
            nats, targets = (record.nats, record.count) if stage.is_last else (0.0, 0)
            stage.add_gradients(gradients)
            self.held[request.micro_batch] = HeldMicroBatch(micro_batch=request.micro_batch, nats=nats, targets=targets)
        return input_gradient

    def add_to_replay(self, number: int, gradients: Sequence[Tensor]) -> None:
        flat = torch.cat([gradient.flatten() for gradient in gradients]).float()
        if self.replayed is not None and self.replayed[0] == number:
            flat = self.replayed[1] + flat
        self.replayed = (number, flat)

    def take_replay(self, number: int | None) -> Tensor:
        """Return the gradient sum of a replay, and drop it. None is a replay of no micro-batches: zeros."""
        if number is None and self.stage is not None:
            return torch.zeros(self.stage.gradient_sum.numel())
        if self.replayed is None or self.replayed[0] != number:
            raise CallRefusedError("stale", "this replay is not here")
        (_, total), self.replayed = self.replayed, None
        return total.to("cpu")

    def observe_throughput(self, tokens: int, seconds: float, share: float) -> None:
        """Update the throughput. `share` is this pass's part of a micro-batch's work: a third for the forward pass."""
        new = tokens * share / max(seconds, 1e-6)
        self.throughput = new if self.throughput is None else (1 - SMOOTHING) * self.throughput + SMOOTHING * new

    # --- the end of a step ---

    def get_position(self, request: PositionRequest) -> Position:
        stage = self.stage
        return Position(
            stage=None if stage is None else stage.index,
            step=0 if stage is None else stage.version,
            frozen_attempt=self.frozen_attempt,
            digest=stage.compute_digest() if request.digest and stage is not None else None,
        )

    def read_ledger(self, request: StepRequest) -> Ledger:
        """Return the ledger, and unfreeze: the coordinator has started a new attempt."""
        self.check_attempt(request.attempt)
        self.get_stage(request.step)
        self.frozen_attempt, self.snapshot, self.mean = None, None, None
        return Ledger(held=tuple(self.held[number] for number in sorted(self.held)), throughput=self.throughput)

    def drop_step(self, request: StepRequest) -> None:
        self.check_attempt(request.attempt)
        self.get_stage(request.step)
        self.reset_step()

    def freeze(self, request: Prepare) -> None:
        self.check_attempt(request.attempt)
        stage = self.get_stage(request.step)
        if sorted(self.held) != list(request.held):
            raise CallRefusedError("mismatch", f"this worker holds {sorted(self.held)}")
        self.mean = None
        self.snapshot = stage.gradient_sum.detach().to("cpu", DTYPES[self.config.sums], copy=True)
        self.frozen_attempt = request.attempt  # last: readers of it expect the snapshot

    def hash_weights(self, request: Prepare) -> None:
        """Hash the weights while the sums are being read. They do not change before the commit."""
        if self.frozen_attempt == request.attempt:
            self.weights_hash = (request.attempt, self.get_stage(request.step).hash_weights())

    def vote(self, request: Prepare, mean: Tensor) -> Vote:
        self.get_stage(request.step)
        is_frozen = self.frozen_attempt == request.attempt
        if not is_frozen or self.weights_hash is None or self.weights_hash[0] != request.attempt:
            raise CallRefusedError("stale", "this worker has been unfrozen")
        digest = update_hash(self.weights_hash[1].copy(), [mean]).hexdigest()
        vote = Vote(digest=digest, squared_norm=squared_norm(mean))
        self.mean = mean
        return vote

    def commit(self, order: Commit) -> Committed:
        """Make the update. Repeated calls have no effect."""
        stage = self.stage
        if stage is None or stage.version != order.step + 1:
            stage = self.get_stage(order.step)
            if self.frozen_attempt != order.attempt or self.mean is None:
                raise CallRefusedError("stale", "this worker has not voted in this attempt")
            self.check_attempt(order.attempt)
            stage.apply_update(self.mean, order.factor, order.clip_scale)
            self.reset_step()
            self.caches.clear()
        return Committed(step=stage.version)
