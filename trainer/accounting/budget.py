"""A run's budget: how much it may use, of what, and which part of it is used.

`24h`, `15s`, `3m`, `1.5h` are seconds of training; `3B-tokens`, `10M-tokens` tokens; `500steps` optimizer steps;
`1e19flops` training FLOPs as `trainer.accounting.flops` counts them. Evaluation, checkpoints and everything before
the first step are not charged. With a budget in steps, tokens or FLOPs nothing that a run computes depends on
the clock.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Literal, Self

Kind = Literal["seconds", "tokens", "steps", "flops"]

SECONDS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
}
COUNTED: dict[str, Kind] = {
    "token": "tokens",
    "tokens": "tokens",
    "step": "steps",
    "steps": "steps",
    "flop": "flops",
    "flops": "flops",
}
LARGE = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
MOST: dict[Kind, float] = {"seconds": 30 * 86_400, "tokens": 1e14, "steps": 1e9, "flops": 1e26}
"""Beyond these it is a slip of the finger: a month, six times the largest text corpus, a frontier laboratory's run."""

NUMBER = r"(?P<number>\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)"
WORD = re.compile(rf"\s*{NUMBER}\s*(?P<large>[kmbt]?)[\s_-]*(?P<unit>{'|'.join(COUNTED)})\s*", re.IGNORECASE)
CLOCK = re.compile(rf"\s*{NUMBER}\s*(?P<unit>{'|'.join(SECONDS)})\s*", re.IGNORECASE)
EXAMPLES = "try 15s, 3m, 24h, 500steps, 3B-tokens or 1e19flops"


@dataclass
class Usage:
    """What a run has used so far."""

    steps: int = 0
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    """Of training: evaluation and checkpoints are not charged."""


@dataclass(frozen=True)
class Budget:
    kind: Kind
    amount: float
    """Whole for steps and tokens."""

    def __post_init__(self) -> None:
        unit = "training FLOPs" if self.kind == "flops" else self.kind
        if not 1 <= self.amount <= MOST[self.kind]:
            most = f"{MOST[self.kind]:,.0f}" if MOST[self.kind] < 1e12 else f"{MOST[self.kind]:.0e}"
            raise ValueError(f"a budget of {self.amount:g} {unit} is impossible: it must be from 1 to {most} {unit}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a budget; raise ValueError with one line if it cannot be meant."""
        if match := CLOCK.fullmatch(text):
            return cls("seconds", float(match["number"]) * SECONDS[match["unit"].lower()])
        if match := WORD.fullmatch(text):
            kind, amount = COUNTED[match["unit"].lower()], float(match["number"]) * LARGE[match["large"].lower()]
            if kind != "flops" and amount != round(amount):
                raise ValueError(f"impossible budget {text!r}: {kind} come in whole numbers")
            return cls(kind, amount)
        if re.fullmatch(rf"\s*{NUMBER}\s*", text):
            raise ValueError(f"impossible budget {text!r}: a number of what? {EXAMPLES}")
        raise ValueError(f"impossible budget {text!r}: {EXAMPLES}")

    def __str__(self) -> str:
        """Return a text that `parse` reads back as the same budget: 12.5s, 500steps, 1.25e12flops."""
        if self.kind == "flops":
            return f"{Decimal(repr(self.amount)).normalize():e}flops".replace("e+", "e")
        number = repr(self.amount) if self.amount != round(self.amount) or self.amount >= 1e15 else f"{self.amount:.0f}"
        return f"{number}s" if self.kind == "seconds" else f"{number}{self.kind}"

    def times(self, factor: float) -> Self:
        """Return this budget times `factor`; steps and tokens to the nearest whole number and at least 1.

        Raises ValueError where the result is impossible.
        """
        if self.kind in ("seconds", "flops"):
            return replace(self, amount=self.amount * factor)
        return replace(self, amount=float(max(1, round(Fraction(self.amount) * Fraction(factor)))))

    def share_of(self, whole: Budget) -> float | None:
        """Return which part of another budget this is; None where they count different things."""
        return self.amount / whole.amount if self.kind == whole.kind else None

    def steps(self, tokens_per_step: int, flops_per_step: float) -> int | None:
        """Return how many steps this pays for, rounded up and at least 1; None if only the clock can tell."""
        if self.kind == "seconds":
            return None
        price = {"steps": 1.0, "tokens": float(tokens_per_step), "flops": flops_per_step}[self.kind]
        assert price > 0
        return max(1, math.ceil(self.amount / price))

    def used(self, spent: Usage, tokens_per_step: int, flops_per_step: float) -> float:
        """Return the used fraction in [0, 1]; a budget whose steps are known is used up by exactly that many steps."""
        steps = self.steps(tokens_per_step, flops_per_step)
        return min(1.0, spent.seconds / self.amount if steps is None else spent.steps / steps)
