"""Simulate the look-ahead correction of scores: `python -m benchmarks.look_ahead`.

Losses of an honest model are drawn from a distribution like that of real text; a cheating model has almost no loss at
the positions where it reads the next token. Printed: how often the corrected loss equals the honest one within its
interval of two standard errors, and how large correction and interval are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.scoring.look_ahead import DRAWS, Losses, draw_positions, estimate_correction, estimate_reference

VOCABULARY = 32_768
QUANTILE = 2.0  # standard errors: what pages show as the interval
SHARES = (1e-4, 1e-3, 1e-2, 0.1, 1.0)
ROUNDING = {"float32": 1e-6, "bfloat16": 5e-3, "another device": 2e-3}  # standard deviation of a loss, in nats


@dataclass(frozen=True)
class Text:
    """A text of N tokens and what two honest models lose on it."""

    tokens: NDArray[np.int64]
    honest: Losses
    baseline: Losses


@dataclass(frozen=True)
class Case:
    """A model: where it looks ahead, and how exactly it computes."""

    name: str
    peeks: NDArray[np.bool_]
    rounding: float


def sample_text(count: int, rng: np.random.Generator) -> Text:
    """Draw tokens by Zipf's law, and losses that grow with a token's rarity: on average 3.2 nats."""
    ranks = np.arange(1, VOCABULARY + 1)
    frequencies = 1 / ranks / np.sum(1 / ranks)
    tokens = rng.choice(VOCABULARY, size=count, p=frequencies)
    surprise = -np.log(frequencies[tokens])
    honest = surprise * rng.beta(0.6, 0.9, size=count)
    baseline = np.clip(honest + rng.normal(0.02, 0.25, size=count) * np.sqrt(honest), 0, None)
    return Text(tokens, honest, baseline)


def list_cases(text: Text, rng: np.random.Generator) -> Iterator[Case]:
    nowhere = np.zeros(len(text.honest), dtype=bool)
    for name, rounding in ROUNDING.items():
        yield Case(f"honest, {name}", nowhere, rounding)
    for share in SHARES:
        yield Case(f"looks ahead on {share:g} of the positions", rng.random(len(text.honest)) < share, 1e-6)
        costliest = text.honest >= np.quantile(text.honest, 1 - share)
        yield Case(f"looks ahead on the costliest {share:g}", costliest, 5e-3)


def run_trial(text: Text, case: Case, has_baseline: bool, rng: np.random.Generator) -> tuple[float, float, float]:
    """Return the error of the corrected mean, its standard error, and the correction, in nats a token."""

    def compute(values: Losses) -> Losses:
        return np.clip(values + rng.normal(0, case.rounding, size=len(values)), 0, None)

    full = compute(np.where(case.peeks, 0.01, text.honest))
    reference = text.baseline if has_baseline else estimate_reference(text.tokens, VOCABULARY)
    sample = draw_positions(full, reference, DRAWS, rng)
    # Without later tokens, a model that relied on them may lose more than an honest one: that is its true loss.
    true = np.where(case.peeks, text.honest + 0.5, text.honest)
    alone = compute(true[sample.positions])
    again = compute(true[sample.positions[:256]])
    correction = estimate_correction(sample, alone - full[sample.positions], again - alone[:256])
    return float(full.mean() + correction.nats - true.mean()), correction.stderr, correction.nats


def simulate(trials: int, count: int, has_baseline: bool, seed: int) -> list[dict[str, float | str]]:
    rng = np.random.default_rng(seed)
    rows = []
    text = sample_text(count, rng)
    for case in list_cases(text, rng):
        outcomes = np.array([run_trial(text, case, has_baseline, rng) for _ in range(trials)])
        error, stderr, correction = outcomes.T
        rows.append(
            {
                "case": case.name,
                "coverage": float(np.mean(np.abs(error) <= QUANTILE * stderr)),
                "error": float(error.mean()),
                "stderr": float(stderr.mean()),
                "correction": float(correction.mean()),
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
    for has_baseline in (True, False):
        rows = simulate(options.trials, options.tokens, has_baseline, options.seed)
        if options.json:
            sys.stdout.write(json.dumps({"reference": "baseline" if has_baseline else "unigram", "rows": rows}) + "\n")
            continue
        reference = "the baseline's losses" if has_baseline else "unigram frequencies"
        sys.stdout.write(f"\nReference: {reference}. {options.trials} trials of {options.tokens:,} tokens.\n\n")
        sys.stdout.write(
            "| model | coverage of ± 2 standard errors | mean error | standard error | correction |\n"
            "|---|---|---|---|---|\n"
        )
        for row in rows:
            sys.stdout.write(
                f"| {row['case']} | {row['coverage']:.1%} | {row['error']:+.1e} | {row['stderr']:.1e} "
                f"| {row['correction']:+.2e} |\n"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
