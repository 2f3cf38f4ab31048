"""Where the checks draw their lines, style by style."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final


@dataclass(frozen=True)
class Thresholds:
    shortest: float
    """Tokens of the output over tokens of the source: at least."""
    longest: float
    """The same: at most."""
    meaning: float
    """Cosine of character 3-grams: at least. It tells sentences apart; for longer texts there is `subject`."""
    subject: float
    """Cosine of the sets of stems, where a source has enough of them: at least."""
    copied: float = 0.9
    """Share of the output's word 4-grams that are the source's: below."""
    repetition: float = 0.25
    """Size after zlib over size before: above."""

    def __post_init__(self) -> None:
        if not 0 <= self.shortest < self.longest:
            raise ValueError(f"An output cannot be longer than {self.shortest} and shorter than {self.longest}.")
        for name in ("meaning", "subject", "copied", "repetition"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"The threshold {name} lies between 0 and 1, not at {getattr(self, name)}.")


DEFAULT_THRESHOLDS: Final[Mapping[str, Thresholds]] = {
    # Medium: a meaning of 0.41 keeps all human paraphrases of MRPC and refuses 99.5 % of random pairs of sentences, a
    # subject of 0.25 most of longer texts. Rewritings that change most words keep less of both, and how much a model
    # keeps is a guess here: `dailytrain rephrase calibrate` finds it out.
    "easy": Thresholds(0.4, 2.5, 0.2, 0.15),
    "medium": Thresholds(0.5, 2.0, 0.41, 0.25),
    "hard": Thresholds(0.3, 1.5, 0.2, 0.15),
    "qa": Thresholds(0.5, 3.0, 0.3, 0.25),  # questions have words of their own
}

THRESHOLD_NAMES: Final = tuple(field.name for field in fields(Thresholds))


def merge_thresholds(changes: Mapping[Any, Mapping[str, float]] | None) -> dict[str, Thresholds]:
    """Return the start values with a campaign's changes, such as `{"easy": {"meaning": 0.25}}`; raise ValueError."""
    made = dict(DEFAULT_THRESHOLDS)
    for style, values in (changes or {}).items():
        if style not in made:
            raise ValueError(f"There is no style {style!r}; there are {', '.join(made)}.")
        if unknown := set(values) - set(THRESHOLD_NAMES):
            raise ValueError(f"There is no threshold {min(unknown)!r}; there are {', '.join(THRESHOLD_NAMES)}.")
        made[style] = Thresholds(**{**asdict(made[style]), **values})
    return made
