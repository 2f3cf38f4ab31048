"""The pull requests of a flood: what each idea truly is, which the site does not know, and what tracing it shows."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from leaderboard.submissions.intake import CommitSummary

DAY = 86_400.0
GAINS, COPIES, BROKEN, CHEATS = 0.023, 0.2, 0.25, 0.05
"""Shares of the pull requests; the others are level or worse."""
ENOUGH, LARGEST = 1.02, 1.3
BURSTS, BURST = 4, 200
"""Days with so many pull requests, in a flood of 44 days."""
OWN_RECIPE = 0.3
"""Share of ideas that change rates or the schedule."""
SOURCE_CAP = 20_000
RECIPE: dict[str, Any] = {"clip": None, "groups": [{"name": "all", "match": ["*"], "learning_rate": 0.01}]}
BASE_PATTERNS = tuple(f"base-{number}" for number in range(40))
SUMMARY: dict[str, Any] = {
    "vocabulary_size": 32_768,
    "sequence_length": 1024,
    "buffer_elements": 512,
    "stored_bytes": 200_000_000,
    "flops_per_token": 3e8,
    "product_flops_per_token": 2.9e8,
    "bytes_per_token": 4_000.0,
    "reference_seconds_per_token": 1e-9,
    "calls": {"initialization": {"aten::randn": 9}, "features": {"aten::linear": 8}, "logits": {"aten::linear": 1}},
    "operators": [],
    "modules": [],
}


@dataclass(frozen=True)
class Idea:
    number: int
    at: float
    """Seconds from the beginning."""
    author: int
    kind: str
    """gain, copy, near, broken, cap, cheat or level."""
    multiplier: float
    """Its true one, on all tracks."""
    patterns: tuple[str, ...]
    learning_rate: float = 0.01
    original: int = 0
    """Number of the idea whose graph it has; its own by default."""

    @property
    def sha(self) -> str:
        return f"{self.number:040x}"

    @property
    def is_gain(self) -> bool:
        return self.kind == "gain"

    @property
    def seeming(self) -> float:
        """The multiplier of its uncorrected losses: later tokens flatter those of a cheat."""
        return 1.5 if self.kind == "cheat" else self.multiplier

    def summarize_commit(self, repository: str, sha: str) -> CommitSummary:
        name = f"idea{self.number}"
        return CommitSummary(
            repository=repository,
            sha=sha,
            author=f"author{self.author}",
            subject=f"Idea {self.number}",
            base_sha="b" * 40,
            changed_files=[f"trainer/models/{name}.py"],
            bundle=f"bundle of {name}".encode(),
            architectures={"gpt": "trainer.models.gpt", name: f"trainer.models.{name}"},
            source_bytes=SOURCE_CAP + 1_000 if self.kind == "cap" and self.number % 2 else 900,
        )

    def summarize_graph(self) -> dict[str, Any]:
        """Return what tracing it prints, without its hash."""
        groups = [{**RECIPE["groups"][0], "learning_rate": self.learning_rate}]
        is_large = self.kind == "cap" and self.number % 2 == 0
        return {
            **SUMMARY,
            "parameters": 50_000_000,
            "constant_bytes": 60_000 if is_large else 0,
            "scoring_flops_per_token": 1e8,
            "patterns": dict.fromkeys((*BASE_PATTERNS, *self.patterns), 1),
            "recipe": {**RECIPE, "groups": groups},
            "canonical_hash": f"{self.original or self.number:064x}",
        }


BASELINE = Idea(0, 0.0, 0, "level", 1.0, ())


def draw_ideas(days: int, count: int, seed: int) -> list[Idea]:
    """Return the pull requests in the order of time."""
    rng, ideas = random.Random(seed), [BASELINE]
    for number, at in enumerate(sorted(draw_times(days, count, rng)), start=1):
        kind = draw_kind(rng)
        # Few authors send many pull requests, most send one or two.
        author = 1 + int(count / 2 * rng.random() ** 2)
        is_faster = rng.random() < OWN_RECIPE
        idea = Idea(
            number, at, author, kind, draw_multiplier(kind, rng), tuple(f"{number}-{part}" for part in range(6)),
            0.01 * rng.uniform(0.7, 1.5) if is_faster else 0.01,
        )  # fmt: skip
        if kind in ("copy", "near"):
            idea = copy_idea(idea, ideas, rng)
        ideas.append(idea)
    return ideas[1:]


def draw_times(days: int, count: int, rng: random.Random) -> Iterator[float]:
    bursts = rng.sample(range(days), min(BURSTS, days // 2))
    share = min(BURST * days / 44 * 2_048 / count, count / (2 * max(len(bursts), 1))) if bursts else 0.0
    share = min(BURST, share) if count >= 2_048 else share
    for day in bursts:
        yield from (day * DAY + rng.uniform(0, DAY) for _ in range(int(share)))
    yield from (rng.uniform(0, days * DAY) for _ in range(count - int(share) * len(bursts)))


def draw_kind(rng: random.Random) -> str:
    names = ("gain", "copy", "near", "broken", "cap", "cheat", "level")
    shares = (GAINS, COPIES / 2, COPIES / 2, BROKEN / 2, BROKEN / 2, CHEATS)
    return rng.choices(names, (*shares, 1 - sum(shares)))[0]


def draw_multiplier(kind: str, rng: random.Random) -> float:
    if kind == "gain":
        return math.exp(rng.uniform(math.log(ENOUGH), math.log(LARGEST)))
    return 1.0 if rng.random() < 0.3 else rng.uniform(0.5, 1.0)


def copy_idea(idea: Idea, ideas: list[Idea], rng: random.Random) -> Idea:
    """Return a copy, or nearly one, of an earlier idea that trains."""
    earlier = [other for other in ideas if other.kind not in ("broken", "cap")]
    source = rng.choice(earlier)
    same = {"multiplier": source.multiplier, "learning_rate": source.learning_rate, "patterns": source.patterns}
    if idea.kind == "copy":
        return replace(idea, **same, original=source.original or source.number)
    patterns = (*source.patterns[:5], f"{idea.number}-0")
    return replace(idea, **same | {"multiplier": source.multiplier * rng.lognormvariate(0, 0.01), "patterns": patterns})
