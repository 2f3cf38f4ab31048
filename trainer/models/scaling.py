"""Scaling rules for recipes: power laws, each anchored at the size where it was tuned."""

from __future__ import annotations


def batch_tokens(total_tokens: float) -> float:
    """Return the tokens of an optimizer step for a run of `total_tokens`.

    ~ D^0.383 for models of any size (Power Lines: Bergsma et al., arXiv 2505.13738), through nanochat's 2^19
    tokens at 1e10.
    """
    return 2**19 * (total_tokens / 1e10) ** 0.383


def weight_decay(width: int, at_768: float) -> float:
    """Return the decoupled weight decay of matrices for a width, from what is best at width 768: ~ 1 / width^2.

    With depth proportional to width and tokens to parameters, a run has ~ width^3 tokens, and the share of a weight
    that decays in a run should be constant (arXiv 2505.13738, section 3). nanochat measured the square for Muon.
    """
    return at_768 * (768 / width) ** 2
