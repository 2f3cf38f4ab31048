"""Simulate the look-ahead correction of scores: `python -m benchmarks.look_ahead`.

Losses of an honest model are drawn from a distribution like that of real text; a cheating model has almost no loss at
the positions where it reads a later token. Printed: how often the corrected loss equals the honest one within its
interval of two standard errors, with and without what the standard error allows for positions that were not drawn, how
large correction and interval are, and how often the model is found to use later tokens.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from trainer.scoring.look_ahead import DRAWS, Losses, draw_positions, estimate_correction, estimate_reference

VOCABULARY = 32_768
SEEN = 0.01  # loss of a token that the model has read, in nats
REPEATS = 256  # positions that are computed twice
QUANTILE = 2.0  # standard errors: what pages show as the interval
ROW = 2048  # tokens
SHARES = (1e-4, 1e-3, 1e-2, 0.1, 1.0)
DISTANCES = (1, 2, 16, 256, 1024, ROW - 1)  # tokens ahead
ROUNDING = {"float32": 1e-6, "bfloat16": 5e-3, "another device": 2e-3}  # standard deviation of a loss, in nats


@dataclass(frozen=True)
class Text:
    """A text of N tokens and what two honest models lose on it."""

    tokens: NDArray[np.int64]
    frequencies: Losses  # of each token: the probability that a replacement is the same token
    honest: Losses
    baseline: Losses


@dataclass(frozen=True)
class Case:
    """A model: where it looks ahead, and how exactly it computes."""

    name: str
    peeks: NDArray[np.bool_]
    rounding: float
    distance: int | None = None  # to the token that it reads; None: no replacement can be the right one by chance


def sample_text(count: int, rng: np.random.Generator) -> Text:
    """Draw tokens by Zipf's law, and losses that grow with a token's rarity: on average 3.2 nats."""
    ranks = np.arange(1, VOCABULARY + 1)
    frequencies = 1 / ranks / np.sum(1 / ranks)
    tokens = rng.choice(VOCABULARY, size=count, p=frequencies)
    surprise = -np.log(frequencies[tokens])
    honest = surprise * rng.beta(0.6, 0.9, size=count)
    baseline = np.clip(honest + rng.normal(0.02, 0.25, size=count) * np.sqrt(honest), 0, None)
    return Text(tokens, frequencies[tokens], honest, baseline)


def list_cases(text: Text, rng: np.random.Generator) -> Iterator[Case]:
    nowhere = np.zeros(len(text.honest), dtype=bool)
    for name, rounding in ROUNDING.items():
        yield Case(f"honest, {name}", nowhere, rounding)
    for share in SHARES:
        yield Case(f"looks ahead on {share:g} of the positions", rng.random(len(text.honest)) < share, 1e-6)
        costliest = text.honest >= np.quantile(text.honest, 1 - share)
        yield Case(f"looks ahead on the costliest {share:g}", costliest, 5e-3)
    places = np.arange(len(text.honest)) % ROW
    for distance in DISTANCES:
        yield Case(f"reads the token at distance {distance:,}", places + distance < ROW, 1e-6, distance)


@dataclass(frozen=True)
class Outcome:
    """Values of one trial, in nats per token."""

    error: float  # of the corrected mean
    stderr: float
    sampling_stderr: float  # without the allowance for positions that were not drawn
    correction: float
    is_flagged: float  # 1 if it is beyond rounding


def run_trial(text: Text, case: Case, has_baseline: bool, rng: np.random.Generator) -> Outcome:
    def compute(values: Losses) -> Losses:
        return np.clip(values + rng.normal(0, case.rounding, size=len(values)), 0, None)

    full = compute(np.where(case.peeks, SEEN, text.honest))
    reference = text.baseline if has_baseline else estimate_reference(text.tokens, VOCABULARY)
    sample = draw_positions(full, reference, DRAWS, rng)
    # Without later tokens, a model that relied on them may lose more than an honest one: that is its true loss.
    misled = np.where(case.peeks, text.honest + 0.5, text.honest)
    luck = np.zeros(len(full))
    if case.distance is not None:
        luck[case.peeks] = np.roll(text.frequencies, -case.distance)[case.peeks]

    def replace(positions: NDArray[np.int64]) -> Losses:
        is_lucky = rng.random(len(positions)) < luck[positions]
        return compute(np.where(is_lucky, SEEN, misled[positions]))

    alone, again = replace(sample.positions), replace(sample.positions[:REPEATS])
    found = estimate_correction(sample, alone - full[sample.positions], again - alone[:REPEATS])
    true = float(np.mean(luck * SEEN + (1 - luck) * misled))
    return Outcome(
        error=float(full.mean()) + found.nats - true,
        stderr=found.stderr,
        sampling_stderr=math.sqrt(found.stderr**2 - found.unseen**2),
        correction=found.nats,
        is_flagged=float(found.is_beyond_rounding),
    )


def simulate(has_baseline: bool, trials: int, count: int, seed: int) -> list[dict[str, float | str]]:
    rng = np.random.default_rng(seed)
    rows = []
    text = sample_text(count, rng)
    for case in list_cases(text, rng):
        outcomes = [astuple(run_trial(text, case, has_baseline, rng)) for _ in range(trials)]
        error, stderr, sampling_stderr, correction, is_flagged = np.array(outcomes).T
        rows.append(
            {
                "case": case.name,
                "coverage": float(np.mean(np.abs(error) <= QUANTILE * stderr)),
                "sampling_coverage": float(np.mean(np.abs(error) <= QUANTILE * sampling_stderr)),
                "error": float(error.mean()),
                "stderr": float(stderr.mean()),
                "correction": float(correction.mean()),
                "flagged": float(is_flagged.mean()),
            }
        )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.look_ahead")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    run = partial(simulate, trials=options.trials, count=options.tokens, seed=options.seed)
    with ProcessPoolExecutor(2) as pool:
        results = zip((True, False), pool.map(run, (True, False)), strict=True)
    for has_baseline, rows in results:
        if options.json:
            sys.stdout.write(json.dumps({"reference": "baseline" if has_baseline else "unigram", "rows": rows}) + "\n")
            continue
        reference = "the baseline's losses" if has_baseline else "unigram frequencies"
        sys.stdout.write(f"\nReference: {reference}. {options.trials} trials of {options.tokens:,} tokens.\n\n")
        sys.stdout.write(
            "| model | coverage of ± 2 standard errors | of the sampling error alone | mean error | standard error "
            "| correction | found |\n|---|---|---|---|---|---|---|\n"
        )
        for row in rows:
            sys.stdout.write(
                f"| {row['case']} | {row['coverage']:.1%} | {row['sampling_coverage']:.1%} | {row['error']:+.1e} "
                f"| {row['stderr']:.1e} | {row['correction']:+.2e} | {row['flagged']:.1%} |\n"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
