"""Rephrase one chunk in one style: prompt the model, check the output as the server will, retry if it fails."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainer import protocol
from trainer.rephrase.backends import Completion, PromptRejectedError, PromptTooLongError
from trainer.rephrase.checks import CheckResult, Thresholds, check_output
from trainer.rephrase.prompts import build_prompt

MAX_ATTEMPTS: Final = 3  # per output: sampling is random, so the next attempt may pass
MAX_OUTPUT_CHARS: Final = 100_000  # a longer output is truncated, and then fails the checks

CompletePrompt = Callable[[str, Mapping[str, float], int], Completion]
"""`CompletionClient.complete`, or a function that retries it."""


@dataclass(frozen=True)
class ChunkTask:
    packet: int
    chunk: protocol.Chunk
    style: protocol.Style


@dataclass(frozen=True)
class ChunkResult:
    output: protocol.RephraseOutput
    check: CheckResult | None  # None: the model generated nothing
    tokens: int  # of all attempts

    @property
    def is_accepted(self) -> bool:
        return self.check is not None and self.check.accepted


def rephrase_chunk(
    task: ChunkTask,
    order: protocol.RephraseOrder,
    thresholds: Mapping[str, Thresholds],
    accepted_keys: Container[str],
    complete: CompletePrompt,
) -> ChunkResult:
    """Rephrase a chunk. `accepted_keys`: duplicate keys of accepted outputs. Other errors of `complete` propagate."""
    prompt = build_prompt(task.style, task.chunk.text, order.prompt_version)
    tokens = 0
    for tries in range(1, MAX_ATTEMPTS + 1):
        try:
            completion = complete(prompt, order.sampling.model_dump(exclude_none=True), random.randrange(2**31))
        except (PromptTooLongError, PromptRejectedError) as error:
            trouble = "prompt_too_long" if isinstance(error, PromptTooLongError) else "declined"
            return ChunkResult(build_output(task, "", ended="none", trouble=trouble, tries=tries), None, tokens)
        tokens += completion.tokens
        check = check_output(
            task.chunk.text,
            task.style,
            completion.text[:MAX_OUTPUT_CHARS],
            ended=completion.ended,
            language=order.language,
            thresholds=thresholds,
            accepted_keys=accepted_keys,
        )
        if check.accepted:
            break
    trouble = next(iter(check.reasons), "")
    output = build_output(
        task, check.text, ended=completion.ended, trouble=trouble, tokens=completion.tokens, tries=tries
    )
    return ChunkResult(output, check, tokens)


def build_output(task: ChunkTask, text: str, **fields: Any) -> protocol.RephraseOutput:
    return protocol.RephraseOutput(
        chunk=task.chunk.index,
        style=task.style,
        source_sha256=task.chunk.sha256,
        text=text,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        **fields,
    )
