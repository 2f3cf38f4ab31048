"""Expected results of a part, and verdicts on the measured ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Content = dict[str, Any]
"""A part's JSON."""


@dataclass(frozen=True)
class Expectation:
    """A figure of a part's JSON with the range that is expected, both ends included; None: no prediction."""

    name: str
    read: Callable[[Content], float | None]
    low: float | None = None
    high: float | None = None
    unit: str = ""
    digits: int = 0

    def describe(self) -> str:
        if self.low is None and self.high is None:
            return "no prediction"
        if self.low is None or self.high is None:
            bound = f"at most {self.format(self.high)}" if self.low is None else f"at least {self.format(self.low)}"
            return f"{bound}{self.unit}"
        return f"{self.format(self.low)} to {self.format(self.high)}{self.unit}"

    def judge(self, measured: float | None) -> str:
        if measured is None:
            return "missing"
        if self.low is not None and measured < self.low:
            return "lower"
        if self.high is not None and measured > self.high:
            return "higher"
        return "measured" if self.low is None and self.high is None else "as expected"

    def format(self, value: float | None) -> str:
        return "" if value is None else f"{value:,.{self.digits}f}"


def expect_profile(
    tokens: tuple[float, float] | None = None,
    mfu: tuple[float, float] | None = None,
    gibibytes: tuple[float | None, float] | None = None,
) -> tuple[Expectation, ...]:
    """Expectations of `dailytrain profile --json`."""
    low, high = tokens or (None, None)
    share = mfu or (None, None)
    memory = gibibytes or (None, None)
    return (
        Expectation("tokens/s", lambda content: content["tokens_per_second"], low, high),
        Expectation("MFU as nanochat counts", lambda content: content["mfu_windowed"], *share, digits=3),
        Expectation(
            "peak memory", lambda content: content["peak_memory_bytes"] / 2**30, *memory, unit=" GiB", digits=1
        ),
        Expectation("idle share of the GPU", lambda content: content["idle"], None, 0.05, digits=3),
    )
