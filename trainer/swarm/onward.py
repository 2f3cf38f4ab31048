"""The way on from a stage: what the next one says of a micro-batch, and whether that can be believed.

Trusted is what two peers get. Nobody can afford that each time, so it is asked for until it is known how large
gradients usually are, and now and then after that (`SwarmConfig.audit`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.swarm import trust, wire
from trainer.swarm.calls import Below
from trainer.swarm.config import SwarmConfig
from trainer.swarm.frames import DTYPES, CallFailed, Frame, Malformed
from trainer.swarm.stage import Passage
from trainer.swarm.transport import Transport

MOST_ASKED = 3
"""Of one gradient: two, and a third where they contradict each other."""


@dataclass(frozen=True)
class Question:
    """A micro-batch on its way to the next stage."""

    ask: wire.Run
    tensors: tuple[Tensor, ...]
    shape: tuple[int, ...]
    """Of the answer."""
    dtype: torch.dtype
    depth: int
    """Stages from the next one on."""

    def written(self) -> Frame:
        return wire.written(self.ask, *self.tensors)

    def once_more(self, me: str) -> Frame:
        """Return what has it computed without anybody adding anything."""
        aside = self.ask.model_copy(update={"aside": wire.Aside(peer=me, number=0)})
        return wire.written(aside, *self.tensors)


class Onward:
    def __init__(self, transport: Transport, config: SwarmConfig, stage: int) -> None:
        self.me, self.config, self.stage = transport.peer, config, stage
        self.below = Below(transport)
        self.usual = trust.Usual()
        self.chance = random.SystemRandom()

    async def pass_on(self, ask: wire.Run, passage: Passage, targets: Tensor | None) -> tuple[Tensor, wire.Ran]:
        """Return what the stages behind say, and who did; a gradient that is believed. Raises Refused."""
        question = self.question(ask, passage, targets)
        keeper, cost = None if ask.aside is None else ask.aside.peer, passage.tokens.numel()
        clock, odd = asyncio.get_running_loop().time, self.odd(question)
        started = clock()
        answer, ran = await self.below.run(question.written(), question.depth, ask.patience, cost, odd, keeper)
        (found,) = answer.tensors
        if ask.mode == "learn":
            sure = True
            if not self.usual.known or (ask.aside is None and self.chance.random() < self.config.audit):
                left = started + ask.patience * (question.depth + 0.5) - clock()
                found, sure = await self.confirmed(question, ran.path[0], found, left)
            if sure:
                self.usual.take_in(found)
        return found, ran.model_copy(update={"below": clock() - started})

    def question(self, ask: wire.Run, passage: Passage, targets: Tensor | None) -> Question:
        tokens, dtype = passage.tokens, DTYPES[self.config.wire]
        given = (tokens,) if targets is None else (tokens, targets)
        shape = {
            "learn": tuple(passage.output.shape),
            "nats": tuple(tokens.shape),
            "logits": (len(tokens), int(self.config.model["vocabulary_size"])),
        }[ask.mode]
        return Question(
            ask=ask,
            tensors=(*given, passage.output.to(dtype)),
            shape=shape,
            dtype=dtype if ask.mode == "learn" else torch.float32,
            depth=self.config.stages - self.stage - 1,
        )

    def odd(self, question: Question) -> Callable[[str, Frame], str]:
        """Return what says what is strange about an answer, and raises Malformed for one that cannot be."""

        def strange(_: str, answer: Frame) -> str:
            found = only(answer, question.shape, question.dtype)
            return not_finite(found) or (self.usual.odd(found) if question.ask.mode == "learn" else "")

        return strange

    async def confirmed(self, question: Question, by: str, gradient: Tensor, seconds: float) -> tuple[Tensor, bool]:
        """Return what two peers get, or most of three if two contradict each other, and True; blame who gets something
        else. Where not so many answer within these seconds: what is likelier (`trust.believed`), and False.

        Where there is nobody else to ask it is taken as it came. Who asks others in its turn may be wrong by their
        fault, and is only left alone for a while.
        """
        request, tolerance = question.once_more(self.me), trust.close(self.config.precision, self.config.wire)
        said, right = {by: gradient}, [by]
        clock = asyncio.get_running_loop().time
        until, others = clock() + seconds, self.below.others(by)
        for peer in others:
            left = until - clock()
            if len(right) > 1 or len(said) == MOST_ASKED or left < seconds / MOST_ASKED:
                break
            with contextlib.suppress(CallFailed):
                answer, _, why = await self.below.asked(peer, request, left, self.odd(question))
                if not why:
                    (said[peer],) = answer.tensors
                    right = trust.believed(said, tolerance)
        if len(right) > 1:
            accuse = self.below.blame if question.depth == 1 else self.below.ban
            for peer in said.keys() - set(right):
                accuse(peer, "a gradient that two others do not get")
        return said[right[0]], len(right) > 1 or not others


def not_finite(tensor: Tensor) -> str:
    """Say so if it is not; else nothing."""
    return "" if bool(torch.isfinite(tensor).all()) else "not finite"


def only(answer: Frame, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return an answer's one tensor; raise Malformed if it is not what was asked for."""
    if len(answer.tensors) != 1 or answer.tensors[0].shape != torch.Size(shape) or answer.tensors[0].dtype != dtype:
        raise Malformed(f"not the one tensor of shape {list(shape)} that was asked for")
    return answer.tensors[0]
