"""Thresholds of the checks, by style."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from trainer.errors import UserError


@dataclass(frozen=True)
class Thresholds:
    shortest: float  # minimum ratio of output tokens to source tokens
    longest: float  # maximum of the same ratio
    meaning: float  # Minimum of `measure_meaning`. Distinguishes sentences; `subject` distinguishes longer texts.
    subject: float  # minimum of `measure_subject`
    copied: float = 0.9  # `measure_copied` must be below
    repetition: float = 0.25  # `measure_repetition` must be above

    def __post_init__(self) -> None:
        if not 0 <= self.shortest < self.longest:
            raise UserError(f"shortest ({self.shortest}) must be at least 0 and below longest ({self.longest}).")
        for name in ("meaning", "subject", "copied", "repetition"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"The threshold {name} must be between 0 and 1, not {getattr(self, name)}.")


DEFAULT_THRESHOLDS: Final[Mapping[str, Thresholds]] = {
    # Medium: a meaning of 0.41 accepts all human paraphrases of MRPC and rejects 99.5 % of random pairs of sentences; a
    # subject of 0.25 rejects most pairs of longer texts. Rewritings that change most words score lower on both. The
    # other values are guesses until `dailytrain rephrase calibrate` has measured a model.
    "easy": Thresholds(0.4, 2.5, 0.2, 0.15),
    "medium": Thresholds(0.5, 2.0, 0.41, 0.25),
    "hard": Thresholds(0.3, 1.5, 0.2, 0.15),
    "qa": Thresholds(0.5, 3.0, 0.3, 0.25),  # questions have words of their own
    "faq": Thresholds(0.5, 3.0, 0.3, 0.25),
    "math": Thresholds(0.3, 3.0, 0.15, 0.05),  # takes over the subject, not the statements
    "table": Thresholds(0.3, 2.5, 0.2, 0.15),
    "tutorial": Thresholds(0.4, 3.0, 0.25, 0.2),
}

THRESHOLD_NAMES: Final = tuple(field.name for field in fields(Thresholds))


def merge_thresholds(changes: Mapping[Any, Mapping[str, float]] | None) -> dict[str, Thresholds]:
    """Return the defaults with a campaign's changes, such as `{"easy": {"meaning": 0.25}}`. Raise `UserError`."""
    merged = dict(DEFAULT_THRESHOLDS)
    for style, values in (changes or {}).items():
        if style not in merged:
            raise UserError(f"There is no style {style!r}; there are {', '.join(merged)}.")
        if unknown := set(values) - set(THRESHOLD_NAMES):
            raise UserError(f"There is no threshold {min(unknown)!r}; there are {', '.join(THRESHOLD_NAMES)}.")
        merged[style] = Thresholds(**{**asdict(merged[style]), **values})
    return merged
