"""One chunk in one style: ask the model, clean up, look at it as the site will, and ask again if it is no good."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Final

from trainer import protocol
from trainer.rephrase.backends import Answer, Declined, PromptTooLong
from trainer.rephrase.checks import Judgement, Thresholds, judge
from trainer.rephrase.prompts import prompt

TRIES: Final = 3
"""How often the model is asked for one output: it draws, so the next one may be good."""
MOST: Final = 100_000
"""Characters of an output; a longer one has gone astray."""

Ask = Callable[[str, Mapping[str, float], int], Answer]
"""`Writer.write`, or what waits for it."""


@dataclass(frozen=True)
class Piece:
    """What is written at one time."""

    packet: int
    chunk: protocol.Chunk
    style: protocol.Style


@dataclass(frozen=True)
class Made:
    output: protocol.RephraseOutput
    judgement: Judgement | None
    """Of our own checks; None: nothing was written."""
    tokens: int
    """Of all tries."""


def make(
    piece: Piece, order: protocol.RephraseOrder, thresholds: Mapping[str, Thresholds], known: Container[str], ask: Ask
) -> Made:
    """Write one output. `known`: keys of those that were taken before. Whatever else `ask` raises passes through."""
    question = prompt(piece.style, piece.chunk.text, order.prompt_version)
    tokens = 0
    for tries in range(1, TRIES + 1):
        try:
            answer = ask(question, order.sampling.model_dump(), random.randrange(2**31))
        except PromptTooLong:
            return Made(nothing(piece, "prompt_too_long", tries), None, tokens)
        except Declined:
            return Made(nothing(piece, "declined", tries), None, tokens)
        tokens += answer.tokens
        judgement = judge(
            piece.chunk.text,
            piece.style,
            answer.text[:MOST],
            ended=answer.ended,
            language=order.language,
            thresholds=thresholds,
            known=known,
        )
        if judgement.accepted:
            break
    return Made(written(piece, answer, judgement, tries), judgement, tokens)


def written(piece: Piece, answer: Answer, judgement: Judgement, tries: int) -> protocol.RephraseOutput:
    return protocol.RephraseOutput(
        chunk=piece.chunk.index,
        style=piece.style,
        source_sha256=piece.chunk.sha256,
        text=judgement.text,
        sha256=digest(judgement.text),
        ended=answer.ended,
        trouble=judgement.reasons[0] if judgement.reasons else "",
        tokens=answer.tokens,
        tries=tries,
    )


def nothing(piece: Piece, reason: str, tries: int) -> protocol.RephraseOutput:
    return protocol.RephraseOutput(
        chunk=piece.chunk.index,
        style=piece.style,
        source_sha256=piece.chunk.sha256,
        sha256=digest(""),
        ended="none",
        trouble=reason,
        tries=tries,
    )


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
