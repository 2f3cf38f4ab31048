"""Rules that carry a recipe from the size where it was tuned to others. Each is a power law with its anchor."""

from __future__ import annotations


def batch_tokens(trained: float) -> float:
    """Return the tokens of an optimizer step for a run of so many tokens in all.

    ~ D^0.383, whatever the model's size (Power Lines: Bergsma et al., arXiv 2505.13738), through nanochat's 2^19
    tokens at 1e10.
    """
    return 2**19 * (trained / 1e10) ** 0.383


def weight_decay(width: int, at_768: float) -> float:
    """Return the decoupled weight decay of matrices for a width, from what is best at width 768: ~ 1 / width^2.

    At a depth in proportion to the width and tokens in proportion to the parameters, a run has ~ width^3 tokens, and
    the share of a weight that decays in a run should stay the same (arXiv 2505.13738, section 3): the square is what
    nanochat measured for Muon.
    """
    return at_768 * (768 / width) ** 2
