"""What a smoke run found, in sentences: one check a line, and of the first that failed what to do about it.

What comes from inside the sandbox is a stranger's word: numbers are checked, texts are one printable line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainer.accounting.budget import Budget

CheckName = Literal["starts", "fits", "learns", "causal"]
CHECKS: tuple[CheckName, ...] = ("starts", "fits", "learns", "causal")
STAGES = ("imports", "sizes", "trains", "done")
"""Where the process in the sandbox is, in its own words; each is one of the first three checks, then all are over."""

FALL = 0.2
"""Nats a token that 200 steps have to gain. The baseline gains 2.4, and anything that learns soon knows how often each
token comes, which is worth 1."""
LEAST_STEPS = 100
"""A budget that pays for fewer teaches nothing: a mistake in a size."""
SAID_BY_PYTHON = re.compile(r" \([^()]*\.py, line \d+\)$")
"""The end of a SyntaxError."""
DOING = {
    "imports": "while it was imported and built",
    "sizes": "while its full size was counted",
    "trains": "while the small model was trained",
    "done": "after it was trained",
}
CRASHES = {
    132: "an illegal instruction",
    134: "an abort",
    135: "a bus error",
    136: "an arithmetic error",
    139: "a segmentation fault",
}


@dataclass(frozen=True)
class SmokeCheck:
    name: CheckName
    passed: bool
    text: str
    """A sentence where it failed, else what was seen."""
    file: str = ""
    """Where in the architecture's files it failed, with `line` and the text there; empty where nobody can say."""
    line: int = 0
    code: str = ""


@dataclass(frozen=True)
class SmokeLimits:
    """What a smoke run is held against."""

    arch: str
    steps: int
    seconds: float
    """Of one core, the longest that the steps may take."""
    memory_bytes: float | None = None
    """Of the machines that the run is meant for; None: not known."""
    peak: float | None = None
    """FLOP/s of those."""


def decide_checks(told: Mapping[str, Any], losses: Sequence[float], asked: SmokeLimits) -> list[SmokeCheck]:
    """Return the checks that can be decided by what the sandbox has told so far, up to the first that failed."""
    stage = told.get("stage")
    reached = STAGES.index(stage) if stage in STAGES else 0
    failed = failure(told, CHECKS[min(reached, 2)])
    judged = (starts, fits, learns)[:reached]
    found: list[SmokeCheck] = []
    for judge in judged:
        found.append(judge(told, losses, asked))
        if not found[-1].passed:
            return found
    if stage == "trains" and number(told, "steps") is not None and failed is None:
        return [*found, learns(told, losses, asked)]  # the time was up
    return found if failed is None else [*found, failed]


def failure(told: Mapping[str, Any], name: CheckName) -> SmokeCheck | None:
    """Return the check that an error ended."""
    why = told.get("failure")
    if not isinstance(why, dict):
        return None
    line = why.get("line")
    line = line if isinstance(line, int) else 0
    file = words(why.get("file"), 120)
    where = f" ({file}, line {line})" if file else ""
    reason = words(why.get("reason"), 400) or "It failed without a reason."
    reason = SAID_BY_PYTHON.sub("", reason) if file else reason
    return SmokeCheck(name, False, reason.rstrip(".") + where + ".", file, line, words(why.get("text"), 120))


def explain_kill(stage: object, exceeded: str | None, code: int | None) -> SmokeCheck | None:
    """Return the check during which the process was killed; None where that was not the architecture's doing."""
    stage = stage if isinstance(stage, str) and stage in STAGES else "imports"
    name = CHECKS[min(STAGES.index(stage), 2)]
    doing = DOING[stage]
    if exceeded is not None and "of memory" in exceeded:
        return SmokeCheck(name, False, f"Out of memory {doing}: {lower(exceeded)}")
    if exceeded is not None and "longer than" in exceeded:
        return SmokeCheck(name, False, f"Too slow: {lower(exceeded).rstrip('.')} {doing}.")
    if exceeded is not None:
        return SmokeCheck(name, False, f"It went over its limits {doing}: {lower(exceeded)}")
    if code in CRASHES:
        return SmokeCheck(name, False, f"It crashed with {CRASHES[code]} {doing}.")
    return None


def starts(told: Mapping[str, Any], losses: Sequence[float], asked: SmokeLimits) -> SmokeCheck:
    count = number(told, "small_parameters")
    size = f"a small one of {count:,.0f} parameters" if count is not None else "a small one"
    return SmokeCheck("starts", True, f"it imports, and {size} answers in the right shape")


def fits(told: Mapping[str, Any], losses: Sequence[float], asked: SmokeLimits) -> SmokeCheck:
    """Its full size, against the machine and the budget that it is meant for."""
    state, flops, step = (number(told, name) for name in ("state_bytes", "flops_per_token", "tokens_per_step"))
    if asked.memory_bytes is not None and state is not None and state > asked.memory_bytes:
        return SmokeCheck(
            "fits",
            False,
            f"Too many parameters for the track: weights, gradients and optimizer alone take {state / 1e9:,.1f} GB, "
            f"and its machines have {asked.memory_bytes / 1e9:,.1f} GB.",
        )
    steps = payable(told.get("budget"), flops, step, asked.peak)
    if steps is not None and steps < LEAST_STEPS:
        return SmokeCheck(
            "fits",
            False,
            f"Too many FLOPs a token for the track: at {flops:.2g} its budget of {told['budget']} pays for "
            f"{steps:,.0f} steps of {step:,.0f} tokens at most, and fewer than {LEAST_STEPS} teach it nothing.",
        )
    return SmokeCheck("fits", True, size(told))


def payable(budget: object, flops: float | None, tokens: float | None, peak: float | None) -> float | None:
    """Return how many steps of so many tokens a budget pays for at most; None where nobody can say."""
    if not isinstance(budget, str) or tokens is None:
        return None
    try:
        whole = Budget.parse(budget)
    except ValueError:
        return None
    if whole.kind in ("steps", "tokens"):
        return None  # the size has no say in it
    if not flops or (whole.kind == "seconds" and peak is None):
        return None
    return math.floor((whole.amount if whole.kind == "flops" else whole.amount * (peak or 0)) / (flops * tokens))


def size(told: Mapping[str, Any]) -> str:
    """Return its full size in words."""
    parameters = told.get("parameters")
    flops = number(told, "flops_per_token")
    if not isinstance(parameters, dict) or (total := number(parameters, "total")) is None:
        return "how large it is could not be counted beforehand"
    embedding = number(parameters, "embedding")
    preset = words(told.get("preset"), 40)
    said = f"as {preset} " if preset else ""
    said += f"{counted(total)} parameters"
    said += f", {counted(embedding)} of them embeddings" if embedding else ""
    return said + (f"; {short(flops)}FLOPs a token" if flops is not None else "")


def learns(told: Mapping[str, Any], losses: Sequence[float], asked: SmokeLimits) -> SmokeCheck:
    steps, seconds, speed = (number(told, name) for name in ("steps", "train_seconds", "tokens_per_second"))
    if steps is None or seconds is None or speed is None or not losses:
        return SmokeCheck("learns", False, "The training ended without a result.")
    if steps < asked.steps:
        return SmokeCheck(
            "learns",
            False,
            f"Too slow: {steps:,.0f} of {asked.steps} small steps in {seconds:,.0f} s of one core, where the baseline "
            "takes under ten for all of them. Is there a loop over positions that could be one product?",
        )
    first, last = losses[0], losses[-1]
    if last > first - FALL:
        return SmokeCheck(
            "learns",
            False,
            f"The loss does not fall: {first:.2f} nats a token before training, {last:.2f} after {steps:,.0f} steps. "
            "Look at the recipe's learning rates, and whether gradients reach every part.",
        )
    return SmokeCheck(
        "learns",
        True,
        f"loss {first:.2f} → {last:.2f} nats a token in {steps:,.0f} steps, {seconds:.0f} s of one core",
    )


def hints(told: Mapping[str, Any], losses: Sequence[float], vocabulary: int) -> list[str]:
    """Return what is no mistake, and worth a look."""
    told_hints = told.get("hints")
    found = [words(hint, 300) for hint in told_hints[:5]] if isinstance(told_hints, list) else []
    blank = math.log(vocabulary)
    if losses and losses[0] > blank + 1:
        found.append(
            f"It starts at {losses[0]:.1f} nats a token, where knowing nothing is {blank:.1f}: a smaller "
            "initialisation of the head saves those steps."
        )
    return [hint for hint in found if hint]


# --- small words ------------------------------------------------------------------------------------------------------


def number(record: Mapping[str, Any], name: str) -> float | None:
    """Return a finite number that is not negative, or None."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e30:
        return None
    return float(value)


def words(text: object, most: int) -> str:
    """Return a stranger's text as one printable line."""
    if not isinstance(text, str):
        return ""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text[: 4 * most]).split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def counted(value: float) -> str:
    """1.38 B, 654 M"""
    return short(value).replace("G", "B").strip()


def short(value: float) -> str:
    """1.38 G, 654 M, before a unit"""
    for unit, name in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.0f} "


def lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
