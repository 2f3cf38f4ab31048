"""What a worker holds for the swarm: one stage, whose gradients are in its sum, what it has promised.

Everything here runs in the worker's one lane, so each method is a transaction: nothing is read or written between its
lines. No network, no clock.

A step at a seat: gradients are added, each with its entry in the ledger (`finish`); the coordinator compares ledgers
until each micro-batch is held once; the seat promises to hold still (`promise`), votes on what the whole stage's sum is
(`vote`), and makes the update (`commit`). A newer attempt of the coordinator's takes an older promise back (`read`).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trainer.swarm.config import SwarmConfig
from trainer.swarm.frames import DTYPES, Refused
from trainer.swarm.router import SMOOTHING
from trainer.swarm.stage import Passage, Stage, fed, squared_norm
from trainer.swarm.wire import Ask, AskWhere, Commit, Committed, Held, Ledger, Prepare, Run, Vote, Where


class Seat:
    def __init__(self, config: SwarmConfig, device: str | torch.device = "cpu") -> None:
        self.config, self.device = config, device
        self.stage: Stage | None = None
        self.held: dict[int, Held] = {}
        self.attempt = 0
        """The newest one heard of: the coordinator counts them, and what is older comes too late."""
        self.promised: int | None = None
        """The attempt in which this seat holds still; set last, when everything belonging to it is there."""
        self.snapshot: Tensor | None = None
        """`[P]`: the sum as it was promised, in what sums are sent in. Never changed, only replaced."""
        self.weighed: tuple[int, hashlib._Hash] | None = None
        """The attempt, and a sha256 that has been fed the weights."""
        self.mean: Tensor | None = None
        """`[P]`, fp32: the whole stage's mean gradient, voted on."""
        self.aside: tuple[int, Tensor] | None = None
        """What has been computed again for a comparison, and its number."""
        self.throughput: float | None = None

    # --- a place ---

    def take(self, attempt: int, index: int, step: int, state: Mapping[str, Tensor] | None) -> Stage:
        """Be at a stage, with this state, or with that of the run's seed; raise `StateError` for another stage's."""
        self.hear(attempt)
        self.leave(unless=index if state is not None else None)
        if self.stage is None:
            self.stage = Stage(self.config, index, self.device)
        if state is not None:
            self.stage.load(state, step)
        return self.at(step)

    def leave(self, unless: int | None = None) -> None:
        self.forget()
        if self.stage is not None and self.stage.index != unless:
            self.stage = None

    def forget(self) -> None:
        """Let go of this step's gradients and promises."""
        self.held, self.promised, self.snapshot, self.mean, self.aside = {}, None, None, None, None
        self.weighed = None
        if self.stage is not None:
            self.stage.clear()

    def hear(self, attempt: int) -> None:
        if attempt < self.attempt:
            raise Refused("stale", f"attempt {attempt} after {self.attempt}")
        self.attempt = attempt

    def at(self, step: int) -> Stage:
        """Return the stage if it is at this step; raise Refused."""
        if self.stage is None or self.stage.version != step:
            raise Refused("stale", f"asked for step {step}, I am at {self.stage.version if self.stage else 'none'}")
        return self.stage

    def state(self, index: int, step: int) -> dict[str, Tensor]:
        """Return weights and momenta, a copy."""
        stage = self.at(step)
        if stage.index != index:
            raise Refused("stale", f"asked for stage {index}, I am {stage.index}")
        return stage.state()

    # --- a micro-batch ---

    def forward(self, ask: Run, tokens: Tensor, hidden: Tensor | None, targets: Tensor | None) -> Passage:
        stage = self.at(ask.step)
        started = time.perf_counter()
        passage = stage.forward(tokens, hidden, targets, learn=ask.mode == "learn")
        self.observe(tokens.numel(), time.perf_counter() - started, share=1 / 3)
        return passage

    def answer(self, ask: Run, tokens: Tensor, hidden: Tensor | None, targets: Tensor | None) -> Tensor:
        """Return what the last stage says without learning."""
        stage = self.at(ask.step)
        if ask.mode == "nats":
            assert targets is not None
            return stage.nats(tokens, hidden, targets)
        return stage.next_logits(tokens, hidden)

    def finish(self, ask: Run, passage: Passage, gradient: Tensor | None, me: str = "") -> Tensor | None:
        """Take a micro-batch's way back; return the gradient of what came in.

        What is missing at this stage is added and noted in one go. Whoever asks for another step, or while a promise
        holds, is refused: that gradient has come too late, and somebody else's counts. A replay adds nothing.
        """
        stage = self.at(ask.step)
        if ask.aside is not None:
            found, gradients = stage.backward(passage, gradient, learn=ask.aside.peer == me)
            if ask.aside.peer == me:
                self.put_aside(ask.aside.number, gradients)
            return found
        if self.promised is not None:
            raise Refused("frozen", "this step is being committed")
        adds = stage.index in ask.need and ask.micro_batch not in self.held
        started = time.perf_counter()
        found, gradients = stage.backward(passage, gradient, learn=adds)
        self.observe(passage.tokens.numel(), time.perf_counter() - started, share=2 / 3)
        if adds:
            nats, targets = (passage.nats, passage.count) if stage.last else (0.0, 0)
            stage.add(gradients)
            self.held[ask.micro_batch] = Held(micro_batch=ask.micro_batch, nats=nats, targets=targets)
        return found

    def put_aside(self, number: int, gradients: Sequence[Tensor]) -> None:
        flat = torch.cat([gradient.flatten() for gradient in gradients]).float()
        same = self.aside is not None and self.aside[0] == number
        self.aside = (number, self.aside[1] + flat if same and self.aside is not None else flat)

    def taken_aside(self, number: int) -> Tensor:
        """Return what was computed again for this comparison, and let go of it."""
        if self.aside is None or self.aside[0] != number:
            raise Refused("stale", "that is not kept aside")
        (_, mine), self.aside = self.aside, None
        return mine.to("cpu")

    def observe(self, tokens: int, seconds: float, share: float) -> None:
        """Take in how long a part of the work on a micro-batch took, forward being a third of it."""
        seen = tokens * share / max(seconds, 1e-6)
        self.throughput = seen if self.throughput is None else (1 - SMOOTHING) * self.throughput + SMOOTHING * seen

    # --- a step's end ---

    def where(self, ask: AskWhere) -> Where:
        stage = self.stage
        return Where(
            stage=None if stage is None else stage.index,
            step=0 if stage is None else stage.version,
            promised=self.promised,
            digest=stage.digest() if ask.digest and stage is not None else None,
        )

    def read(self, ask: Ask) -> Ledger:
        """Return the ledger, and take a promise back: the coordinator has begun anew."""
        self.hear(ask.attempt)
        self.at(ask.step)
        self.promised, self.snapshot, self.mean = None, None, None
        return Ledger(held=tuple(self.held[number] for number in sorted(self.held)), throughput=self.throughput)

    def drop(self, ask: Ask) -> None:
        self.hear(ask.attempt)
        self.at(ask.step)
        self.forget()

    def promise(self, ask: Prepare) -> None:
        self.hear(ask.attempt)
        stage = self.at(ask.step)
        if sorted(self.held) != list(ask.held):
            raise Refused("mismatch", f"I hold {sorted(self.held)}")
        self.mean = None
        self.snapshot = stage.total.detach().to("cpu", DTYPES[self.config.sums], copy=True)
        self.promised = ask.attempt  # last: whoever sees it finds the snapshot

    def weigh(self, ask: Prepare) -> None:
        """Hash the weights, while the sums are being read: they stay as they are until the commit."""
        if self.promised == ask.attempt:
            self.weighed = (ask.attempt, self.at(ask.step).hashed())

    def vote(self, ask: Prepare, mean: Tensor) -> Vote:
        self.at(ask.step)
        if self.promised != ask.attempt or self.weighed is None or self.weighed[0] != ask.attempt:
            raise Refused("stale", "the promise has been taken back")
        vote = Vote(digest=fed(self.weighed[1].copy(), [mean]).hexdigest(), squared_norm=squared_norm(mean))
        self.mean = mean
        return vote

    def commit(self, ask: Commit) -> Committed:
        """Make the update, once, however often it is asked for."""
        stage = self.stage
        if stage is None or stage.version != ask.step + 1:
            stage = self.at(ask.step)
            if self.promised != ask.attempt or self.mean is None:
                raise Refused("stale", "I have not voted in this attempt")
            self.hear(ask.attempt)
            stage.apply(self.mean, ask.factor, ask.clip_scale)
            self.forget()
        return Committed(step=stage.version)


def summed(parts: Sequence[Tensor]) -> Tensor:
    """Add tensors up in fp32 in the order given: the same order, the same sum, to the last bit."""
    total = parts[0].float() if parts[0].dtype != torch.float32 else parts[0].clone()
    for part in parts[1:]:
        total.add_(part)
    return total
