"""Validates the trusted scorer's result."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from leaderboard.models import Run, Score
from leaderboard.sanitize import sanitize_json, sanitize_text

MAX_SCORES = 300
MAX_BITS_PER_BYTE = 64.0
"""Random bytes have 8."""

Count = Annotated[int, Field(gt=0, le=2**53)]
Finite = Annotated[float, Field(ge=0, le=1e40, allow_inf_nan=False)]


class Verdict(BaseModel):
    """JSON of `dailytrain score`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    bits_per_byte: Annotated[float, Field(gt=0, le=MAX_BITS_PER_BYTE, allow_inf_nan=False)]
    nats_per_token: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
    stderr: Finite
    tokens: Count
    bytes: Count
    documents: Count
    parameters: Count
    """Floating-point numbers in the checkpoint: trained parameters and stored buffers."""
    parameters_embedding: Annotated[int, Field(ge=0, le=2**53)] | None = None
    train_flops: Finite
    train_tokens: Finite | None = None
    flops_per_token: Finite | None = None
    scoring_flops_per_token: Finite | None = None
    train_seconds: Finite
    checks: dict[str, Any] = {}
    suite: dict[str, dict[str, Any]] = {}
    suite_missing: list[str] = []
    suite_seconds: dict[str, Finite] = {}

    @property
    def passes_differ(self) -> bool:
        """Whether the graph of training predicts otherwise than that of evaluation, beyond random numbers."""
        training = self.checks.get("training")
        return isinstance(training, dict) and training.get("is_beyond_noise") is True

    def run_fields(self) -> dict[str, Any]:
        return {
            "bits_per_byte": self.bits_per_byte,
            "bits_per_byte_stderr": self.stderr,
            "parameters": self.parameters,
            "parameters_embedding": self.parameters_embedding,
            "checks": sanitize_json(self.checks),
            "passes_differ": self.passes_differ,
            "scoring_flops_per_token": self.scoring_flops_per_token,
            "suite_seconds": {
                sanitize_text(name, 100): self.suite_seconds[name] for name in list(self.suite_seconds)[:100]
            },
            "suite_missing": [sanitize_text(name, 100) for name in self.suite_missing[:100]],
        }

    def scores(self, run: Run) -> list[Score]:
        """Return unsaved scores: the two held-out numbers and the readable ones of the suite."""
        rows = {
            "bits_per_byte": Score(run=run, name="bits_per_byte", value=self.bits_per_byte, stderr=self.stderr),
            "nats_per_token": Score(run=run, name="nats_per_token", value=self.nats_per_token),
        }
        for row in rows.values():
            row.count = self.tokens
        for name, value, stderr in self.suite_numbers():
            rows.setdefault(name, Score(run=run, name=name, value=value, stderr=stderr))
        return list(rows.values())[:MAX_SCORES]

    def suite_numbers(self) -> Iterator[tuple[str, float, float | None]]:
        for task, metrics in self.suite.items():
            for metric, answer in metrics.items():
                value, stderr = answer if isinstance(answer, list) and len(answer) == 2 else (answer, None)
                if (number := finite(value)) is not None:
                    yield sanitize_text(f"{task}/{metric}", 120), number, finite(stderr)


def finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value) if abs(value) <= 1e12 else None
