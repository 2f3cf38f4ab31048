"""The pull requests of a flood: what each idea truly is, which the site does not know, and what tracing it shows."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from leaderboard.submissions.intake import CommitSummary

DAY = 86_400.0
GAINS, COPIES, BROKEN, CHEATS = 0.023, 0.2, 0.25, 0.05
"""Shares of the pull requests; the others are level or worse."""
ENOUGH, LARGEST = 1.02, 1.3
BURSTS, BURST_SHARE = 4, 200 / 2_048
"""Days with this share of all pull requests."""
OWN_RECIPE, RATES_ONLY = 0.3, 0.1
"""Shares of ideas that change rates, and that change nothing else."""
NEAR_GAINS = 0.05
"""Share of near copies that are gains of their own."""
LEAST_AHEAD, MOST_AHEAD = 0.003, 0.45
"""Nats per token that a cheat gains by later tokens: 0.3 % to 50 % of compute."""
POOL = [f"pattern-{number}" for number in range(300)]
WEIGHTS = [1 / (number + 1) for number in range(len(POOL))]
"""Ideas share patterns, some of them often."""
RATE = 0.01
BASE_PATTERNS = tuple(f"base-{number}" for number in range(40))


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
    patterns: tuple[str, ...] = ()
    rate: float = RATE
    original: int = 0
    """Number of the idea that has this graph."""
    ahead: float = 0.0
    """Nats per token that its losses gain by later tokens."""

    @property
    def is_gain(self) -> bool:
        return self.multiplier >= ENOUGH and not self.ahead and self.kind not in ("copy", "broken", "cap")

    def summarize_commit(self, repository: str, sha: str) -> CommitSummary:
        name, path = f"idea{self.number}", f"trainer/models/idea{self.number}.py"
        size = 21_000 if self.kind == "cap" and self.number % 2 else 900
        return CommitSummary(
            repository, sha, f"author{self.author}", name, "b" * 40, [path], f"bundle of {name}".encode(),
            {"gpt": "trainer.models.gpt", name: f"trainer.models.{name}"}, source_bytes=size,
        )  # fmt: skip

    def summarize_graph(self) -> dict[str, Any]:
        """Return what tracing it prints, without the graph's hash."""
        return {
            "vocabulary_size": 32_768, "sequence_length": 1024, "parameters": 50_000_000, "stored_bytes": 200_000_000,
            "constant_bytes": 60_000 if self.kind == "cap" else 0, "flops_per_token": 3e8, "bytes_per_token": 4_000.0,
            "product_flops_per_token": 2.9e8, "scoring_flops_per_token": 1e8, "operators": [], "modules": [],
            "calls": {"features": {"aten::linear": 8}, "logits": {"aten::linear": 1}},
            "patterns": dict.fromkeys((*BASE_PATTERNS, *self.patterns), 1),
            "recipe": {"clip": None, "groups": [{"name": "all", "match": ["*"], "learning_rate": self.rate}]},
            "canonical_hash": f"{self.original:064x}",
        }  # fmt: skip


BASELINE = Idea(0, 0.0, 0, "level", 1.0)


def draw_ideas(days: int, count: int, seed: int) -> list[Idea]:
    """Return the pull requests in the order of time."""
    rng, ideas = random.Random(seed), [BASELINE]
    for number, at in enumerate(sorted(draw_times(days, count, rng)), start=1):
        kind, author = draw_kind(rng), 1 + int(count / 2 * rng.random() ** 2)  # a few send many
        drawn, patterns = rng.random(), tuple(sorted(set(rng.choices(POOL, WEIGHTS, k=6))))
        rate = RATE * rng.uniform(0.7, 1.5) if drawn < OWN_RECIPE else RATE
        ahead = draw_logarithmic(LEAST_AHEAD, MOST_AHEAD, rng) if kind == "cheat" else 0.0
        patterns = () if drawn < RATES_ONLY else patterns
        idea = Idea(number, at, author, kind, draw_multiplier(kind, rng), patterns, rate, number, ahead)
        ideas.append(copy_idea(idea, ideas, rng) if kind in ("copy", "near") else idea)
    return ideas[1:]


def draw_times(days: int, count: int, rng: random.Random) -> Iterator[float]:
    bursts, size = rng.sample(range(days), min(BURSTS, days // 2)), int(BURST_SHARE * count)
    for day in bursts:
        yield from (day * DAY + rng.uniform(0, DAY) for _ in range(size))
    yield from (rng.uniform(0, days * DAY) for _ in range(count - size * len(bursts)))


def draw_kind(rng: random.Random) -> str:
    names = ("gain", "copy", "near", "broken", "cap", "cheat", "level")
    shares = (GAINS, COPIES / 2, COPIES / 2, BROKEN / 2, BROKEN / 2, CHEATS)
    return rng.choices(names, (*shares, 1 - sum(shares)))[0]


def draw_multiplier(kind: str, rng: random.Random) -> float:
    if kind == "gain":
        return draw_logarithmic(ENOUGH, LARGEST, rng)
    return 1.0 if rng.random() < 0.3 else rng.uniform(0.5, 1.0)


def draw_logarithmic(low: float, high: float, rng: random.Random) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def copy_idea(idea: Idea, ideas: Sequence[Idea], rng: random.Random) -> Idea:
    """Return a copy, or nearly one, of an earlier idea that trains."""
    source = rng.choice([other for other in ideas if other.kind not in ("broken", "cap")])
    same = replace(source, number=idea.number, at=idea.at, author=idea.author, kind=idea.kind)
    if idea.kind == "copy":
        return same
    near = (
        draw_multiplier("gain", rng) if rng.random() < NEAR_GAINS else source.multiplier * rng.lognormvariate(0, 0.01)
    )
    patterns = (*source.patterns[1:], rng.choice(POOL))
    return replace(same, multiplier=near, patterns=patterns, original=idea.number)
