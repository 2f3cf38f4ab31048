"""Results of a smoke test: one check per line, and for the first failure what to do about it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from trainer.accounting.budget import Budget, BudgetError
from trainer.errors import CRASH_SIGNALS
from trainer.scoring.look_ahead import Correction
from trainer.smoke.report import Stage, TraceReport
from trainer.smoke.small_model import TrainingResult
from trainer.smoke.traced_files import FullSize

CheckName = Literal["starts", "fits", "learns", "causal"]
CHECKS: tuple[CheckName, ...] = ("starts", "fits", "learns", "causal")
MIN_LOSS_DECREASE = 0.2
"""Nats per token that 200 steps must gain. The baseline gains 2.4. Token frequencies alone, which any model learns
soon, are worth 1."""
MIN_STEPS = 100  # a budget for fewer steps indicates a mistake in a size
SYNTAX_ERROR_SUFFIX = re.compile(r" \([^()]*\.py, line \d+\)$")  # the location at the end of a SyntaxError's message
STAGE_CHECKS: dict[Stage, CheckName] = {"imports": "starts", "sizes": "fits", "done": "fits"}
"""The check that fails if the tracing sandbox fails at this stage."""
ACTIVITIES = {
    "imports": "while it was imported and traced",
    "sizes": "while its full size was traced",
    "done": "after it was traced",
}


@dataclass(frozen=True)
class SmokeCheck:
    name: CheckName
    passed: bool
    text: str  # why it failed, or what was measured
    file: str = ""  # the architecture's file that failed, with `line` and its `code`; empty if unknown
    line: int = 0
    code: str = ""


@dataclass(frozen=True)
class SmokeLimits:
    """Limits that a smoke test checks against."""

    steps: int  # of the small model
    memory_bytes: float | None = None  # of the target machines; None: unknown
    peak: float | None = None  # FLOP/s of the target machines


def describe_failure(report: TraceReport) -> SmokeCheck | None:
    """Return the failed check of an error in the tracing sandbox."""
    failure = report.failure
    if failure is None:
        return None
    location = f" ({failure.file}, line {failure.line})" if failure.file else ""
    reason = failure.reason or "It failed without a reason."
    reason = SYNTAX_ERROR_SUFFIX.sub("", reason) if failure.file else reason
    sentence = f"{reason.rstrip('.')}{location}."
    return SmokeCheck(STAGE_CHECKS[report.stage], False, sentence, failure.file, failure.line, failure.text)


def explain_kill(stage: Stage, exceeded: str | None, code: int | None) -> SmokeCheck | None:
    """Return the check during which the process was killed; None if the architecture was not the cause."""
    name, activity = STAGE_CHECKS[stage], ACTIVITIES[stage]
    if exceeded is not None and "of memory" in exceeded:
        return SmokeCheck(name, False, f"Out of memory {activity}: {lower(exceeded)}")
    if exceeded is not None and "longer than" in exceeded:
        return SmokeCheck(name, False, f"Too slow: {lower(exceeded).rstrip('.')} {activity}.")
    if exceeded is not None:
        return SmokeCheck(name, False, f"It exceeded its limits {activity}: {lower(exceeded)}")
    if code in CRASH_SIGNALS:
        return SmokeCheck(name, False, f"It crashed with {CRASH_SIGNALS[code]} {activity}.")
    return None


def check_start(small_parameters: int | None) -> SmokeCheck:
    """`small_parameters`: None if no small model is trained."""
    if small_parameters is None:
        return SmokeCheck("starts", True, "it imports")
    text = f"it imports and traces, and a small one of {small_parameters:,} parameters answers in the right shape"
    return SmokeCheck("starts", True, text)


def check_size(report: TraceReport, size: FullSize, limits: SmokeLimits) -> SmokeCheck:
    """Check the full size against the target machine and budget."""
    state, flops, step = size.state_bytes, size.summary["flops_per_token"], report.tokens_per_step
    if limits.memory_bytes is not None and state > limits.memory_bytes:
        return SmokeCheck(
            "fits",
            False,
            f"Too many parameters for the track: weights, gradients and optimizer alone take {state / 1e9:,.1f} GB, "
            f"and its machines have {limits.memory_bytes / 1e9:,.1f} GB.",
        )
    steps = count_affordable_steps(report.budget, flops, step, limits.peak)
    if steps is not None and steps < MIN_STEPS:
        return SmokeCheck(
            "fits",
            False,
            f"Too many FLOPs a token for the track: at {flops:.2g} its budget of {report.budget} pays for "
            f"{steps:,.0f} steps of {step:,.0f} tokens at most, and it needs at least {MIN_STEPS} to learn anything.",
        )
    return SmokeCheck("fits", True, describe_size(report, size))


def count_affordable_steps(budget: str, flops: float | None, tokens: float | None, peak: float | None) -> float | None:
    """Return how many steps of `tokens` a budget pays for at most; None if unknown."""
    try:
        parsed = Budget.parse(budget)
    except BudgetError:
        return None
    if parsed.kind in ("steps", "tokens"):
        return None  # does not depend on the size
    if not flops or tokens is None or (parsed.kind == "seconds" and peak is None):
        return None
    return math.floor((parsed.amount if parsed.kind == "flops" else parsed.amount * (peak or 0)) / (flops * tokens))


def describe_size(report: TraceReport, size: FullSize) -> str:
    """Return a description of the full size."""
    text = f"as {report.preset} " if report.preset else ""
    text += f"{format_count(size.summary['parameters'])} parameters"
    text += f", {format_count(size.parameters_embedding)} of them embeddings" if size.parameters_embedding else ""
    return text + f"; {format_si(size.summary['flops_per_token'])}FLOPs a token"


def check_learning(result: TrainingResult, limits: SmokeLimits) -> SmokeCheck:
    steps, seconds = result.steps, result.train_seconds
    if steps < limits.steps:
        return SmokeCheck(
            "learns",
            False,
            f"Too slow: {steps:,} of {limits.steps} small steps in {seconds:,.0f} s of one core, where the baseline "
            "takes under ten for all of them. Is there a loop over positions that could be one product?",
        )
    first, last = result.losses[0], result.losses[-1]
    if last > first - MIN_LOSS_DECREASE:
        return SmokeCheck(
            "learns",
            False,
            f"The loss does not fall: {first:.2f} nats a token before training, {last:.2f} after {steps:,} steps. "
            "Look at the recipe's learning rates, and whether gradients reach every part.",
        )
    return SmokeCheck(
        "learns", True, f"loss {first:.2f} → {last:.2f} nats a token in {steps:,} steps, {seconds:.0f} s of one core"
    )


def check_causality(correction: Correction) -> SmokeCheck:
    """Check what the trained small model loses without later tokens."""
    sentence = "The model's predictions depend on tokens that come after them"
    if correction.depends_on_replacement:
        return SmokeCheck("causal", False, f"{sentence}: with others its losses change by more than rounding.")
    if correction.is_beyond_rounding:
        return SmokeCheck(
            "causal", False, f"{sentence}: without those its loss changes by {correction.nats:+.2g} nats a token."
        )
    return SmokeCheck(
        "causal", True, f"without later tokens it loses {correction.nats:+.1g} nats a token more: rounding"
    )


def list_hints(report: TraceReport, result: TrainingResult | None, vocabulary_size: int) -> list[str]:
    """Return warnings about what is not a failure."""
    hints = (report.hints or [])[:5]
    uniform = math.log(vocabulary_size)
    if result is not None and result.losses[0] > uniform + 1:
        hints.append(
            f"It starts at {result.losses[0]:.1f} nats a token, where a uniform guess is {uniform:.1f}: a smaller "
            "initialization of the head saves those steps."
        )
    return [hint for hint in hints if hint]


# --- formatting ------------------------------------------------------------------------------------------------------


def format_count(value: float) -> str:
    """1.38 B, 654 M"""
    return format_si(value).replace("G", "B").strip()


def format_si(value: float) -> str:
    """1.38 G, 654 M, before a unit"""
    for unit, name in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.0f} "


def lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
