"""Round the factors of a benchmark's matrix products to TF32 where that changes a text's score far less than its error.

On GPUs of NVIDIA from generation 8 on, products in TF32 are several times as fast as in fp32.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.ops import devices
from trainer.scoring.model_scorer import Losses, ModelScorer, Tokens
from trainer.scoring.passes import TF32_WINDOWS

FIRST_GENERATION = 8
MIN_WINDOWS = 8  # fewest windows whose spread says something
MAX_SHARE = 0.1  # of the score's standard error that rounding may take
STDERRS = 2.0  # by which the difference may be larger than measured


@dataclass(frozen=True)
class ProductPrecision:
    """How the products of benchmarks are rounded, and what TF32 changes on the text, in nats a token."""

    name: str  # `fp32` or `tf32`
    difference: float | None = None  # None: not measured, since there is no choice
    stderr: float | None = None  # of the difference


def has_tf32(device: torch.device) -> bool:
    return device.type == "cuda" and devices.get_generation(device) >= FIRST_GENERATION


@contextlib.contextmanager
def round_products(precision: str) -> Iterator[None]:
    """Compute matrix products of a GPU in `fp32`, or with factors that are rounded to `tf32`."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def choose_precision(
    scorer: ModelScorer, inputs: Tokens, targets: Tokens, mask: NDArray[np.bool_], rng: np.random.Generator
) -> ProductPrecision:
    """Compare both on random windows, given as rows `[windows, T]` of which `mask` says what is scored."""
    if not has_tf32(scorer.device) or len(inputs) < MIN_WINDOWS:
        return ProductPrecision("fp32")
    chosen = rng.permutation(len(inputs))[:TF32_WINDOWS]
    exact = scorer.score_rows(inputs[chosen], targets[chosen]).nats
    with round_products("tf32"):
        rounded = scorer.score_rows(inputs[chosen], targets[chosen]).nats
    return compare_precisions(exact, rounded, mask[chosen], len(inputs))


def compare_precisions(exact: Losses, rounded: Losses, mask: NDArray[np.bool_], windows: int) -> ProductPrecision:
    """Return which precision benchmarks take beside a text of so many windows, given losses `[sample, T]` in both."""
    tokens = mask.sum(axis=1)
    means, differences = (np.where(mask, x, 0).sum(axis=1) / tokens for x in (exact, rounded - exact))
    difference, stderr = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(len(differences))
    error = float(means.std(ddof=1)) / math.sqrt(windows)
    is_small = abs(difference) + STDERRS * stderr < MAX_SHARE * error
    return ProductPrecision("tf32" if is_small else "fp32", difference, stderr)
