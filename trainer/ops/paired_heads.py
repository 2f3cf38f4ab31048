"""Paired heads: two heads attend as one head over a row twice as long, in which their positions alternate.

From modded-nanogpt (https://github.com/KellerJordan/modded-nanogpt, `CausalSelfAttention`, paired). Of token t, the
first head of a pair sees the keys of both heads at earlier tokens and its own key at t; the second sees all of them.
One softmax weighs both. Queries and keys are rotated before, by the token's position, where modded-nanogpt counts
the positions of the longer row. Products of queries and keys double: half the heads, twice the length squared.
"""

from __future__ import annotations

from torch import Tensor


def pair_heads(x: Tensor) -> Tensor:
    """`[B, T, H, D] -> [B, 2 T, H / 2, D]`."""
    return x.unflatten(2, (-1, 2)).transpose(2, 3).flatten(1, 2)


def unpair_heads(x: Tensor) -> Tensor:
    """Undo `pair_heads`: `[B, 2 T, H / 2, D] -> [B, T, H, D]`."""
    return x.unflatten(1, (-1, 2)).transpose(2, 3).flatten(2, 3)


def pair_documents(documents: Tensor | None) -> Tensor | None:
    """`[B, T] -> [B, 2 T]`: the document of each position of the longer row."""
    return None if documents is None else documents.repeat_interleave(2, dim=1)
