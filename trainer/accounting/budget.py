"""A run's budget: seconds, tokens, steps or FLOPs, and the used fraction.

`24h`, `15s`, `3m`, `1.5h` are seconds of training; `3B-tokens`, `10M-tokens` tokens; `500steps` optimizer steps;
`1e19flops` training FLOPs as `trainer.accounting.flops` counts them. Evaluation, checkpoints and everything before
the first step are not charged. With a budget in steps, tokens or FLOPs, a run's results do not depend on the clock.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Literal, Self

from trainer.errors import UserError

Kind = Literal["seconds", "tokens", "steps", "flops"]

SECONDS_PER_UNIT = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
}
COUNTED_UNITS: dict[str, Kind] = {
    "token": "tokens",
    "tokens": "tokens",
    "step": "steps",
    "steps": "steps",
    "flop": "flops",
    "flops": "flops",
}
MAGNITUDES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
LIMITS: dict[Kind, float] = {"seconds": 30 * 86_400, "tokens": 1e14, "steps": 1e9, "flops": 1e26}
"""Larger amounts are typing errors: a month, six times the largest text corpus, a frontier laboratory's run."""
NUMBER = r"(?P<number>\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)"
COUNT_PATTERN = re.compile(
    rf"\s*{NUMBER}\s*(?P<magnitude>[kmbt]?)[\s_-]*(?P<unit>{'|'.join(COUNTED_UNITS)})\s*", re.IGNORECASE
)
TIME_PATTERN = re.compile(rf"\s*{NUMBER}\s*(?P<unit>{'|'.join(SECONDS_PER_UNIT)})\s*", re.IGNORECASE)
EXAMPLES = "try 15s, 3m, 24h, 500steps, 3B-tokens or 1e19flops"


@dataclass
class Usage:
    """The used part of a run's budget."""

    steps: int = 0
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0  # of training: evaluation and checkpoints are not charged


class BudgetError(UserError):
    """The budget cannot be parsed or is impossible."""


@dataclass(frozen=True)
class Budget:
    kind: Kind
    amount: float  # whole for steps and tokens

    def __post_init__(self) -> None:
        unit = "training FLOPs" if self.kind == "flops" else self.kind
        if not 1 <= self.amount <= LIMITS[self.kind]:
            limit = LIMITS[self.kind]
            top = f"{limit:,.0f}" if limit < 1e12 else f"{limit:.0e}"
            raise BudgetError(f"a budget of {self.amount:g} {unit} is impossible: it must be from 1 to {top} {unit}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a budget. Raises `BudgetError`."""
        if match := TIME_PATTERN.fullmatch(text):
            return cls("seconds", float(match["number"]) * SECONDS_PER_UNIT[match["unit"].lower()])
        if match := COUNT_PATTERN.fullmatch(text):
            kind = COUNTED_UNITS[match["unit"].lower()]
            amount = float(match["number"]) * MAGNITUDES[match["magnitude"].lower()]
            if kind != "flops" and amount != round(amount):
                raise BudgetError(f"impossible budget {text!r}: {kind} come in whole numbers")
            return cls(kind, amount)
        if re.fullmatch(rf"\s*{NUMBER}\s*", text):
            raise BudgetError(f"impossible budget {text!r}: the unit is missing; {EXAMPLES}")
        raise BudgetError(f"impossible budget {text!r}: {EXAMPLES}")

    def __str__(self) -> str:
        """Return a text that `parse` reads back as the same budget: 12.5s, 500steps, 1.25e12flops."""
        if self.kind == "flops":
            return f"{Decimal(repr(self.amount)).normalize():e}flops".replace("e+", "e")
        number = repr(self.amount) if self.amount != round(self.amount) or self.amount >= 1e15 else f"{self.amount:.0f}"
        return f"{number}s" if self.kind == "seconds" else f"{number}{self.kind}"

    def times(self, factor: float) -> Self:
        """Return this budget times `factor`; steps and tokens to the nearest whole number and at least 1.

        Raises `BudgetError` if the result is impossible.
        """
        if self.kind in ("seconds", "flops"):
            return replace(self, amount=self.amount * factor)
        return replace(self, amount=float(max(1, round(Fraction(self.amount) * Fraction(factor)))))

    def share_of(self, whole: Budget) -> float | None:
        """Return this budget as a fraction of another one, or None if their kinds differ."""
        return self.amount / whole.amount if self.kind == whole.kind else None

    def steps(self, tokens_per_step: int, flops_per_step: float) -> int | None:
        """Return the number of steps, rounded up and at least 1. None for a budget of seconds."""
        if self.kind == "seconds":
            return None
        price = {"steps": 1.0, "tokens": float(tokens_per_step), "flops": flops_per_step}[self.kind]
        assert price > 0
        return max(1, math.ceil(self.amount / price))

    def used_fraction(
        self, spent: Usage, tokens_per_step: int, flops_per_step: float, initial_flops: float = 0.0
    ) -> float:
        """Return the used fraction in [0, 1]. A budget whose steps are known is used up after exactly that many.

        `initial_flops`: charged before the first step.
        """
        if self.kind == "flops":
            used = min(1.0, initial_flops / self.amount)
            left = max(1, math.ceil((self.amount - initial_flops) / flops_per_step))
            return min(1.0, used + (1 - used) * (spent.steps / left))
        steps = self.steps(tokens_per_step, flops_per_step)
        return min(1.0, spent.seconds / self.amount if steps is None else spent.steps / steps)


# --- sizes in bytes, and numbers of tokens ----------------------------------------------------------------------------


UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def parse_size(text: str) -> int:
    """Return the bytes of 1048576, 16MiB, 16MB or 1.5g."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?\s*", text.lower())
    if not match or match[2] not in UNITS or float(match[1]) == 0:
        raise UserError(f"{text!r} is not a size: give bytes, such as 1048576, 16MiB or 1GB")
    return int(float(match[1]) * UNITS[match[2]])


BYTES_PER_TOKEN = 5.5  # read for each wanted token, more than the 4 to 5 of English with usual vocabularies


def parse_tokens(text: str) -> int:
    """Return the bytes of text to read for 12B, 500M or 1000000 tokens."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmbt]?)\s*", text.lower())
    if not match or float(match[1]) == 0:
        raise UserError(f"{text!r} is not a number of tokens: try 500M or 12B")
    return int(float(match[1]) * UNITS["g" if match[2] == "b" else match[2]] * BYTES_PER_TOKEN)
