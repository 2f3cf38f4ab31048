"""Names under which attention and the element-wise parts stand in an exported graph.

While `torch.export` runs, `trainer.ops` calls these operators, so that a graph holds one call for each instead of a
device's kernel. They have a shape and no implementation: a graph that is built calls the Python functions again.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LIBRARY = torch.library.Library("dailytrain", "DEF")


def is_exporting() -> bool:
    """Return whether a graph is being exported.

    `torch.compiler.is_exporting()` is also true while torch 2.11 compiles.
    """
    return bool(torch.compiler._is_exporting_flag)


def register(schema: str, shape: Callable[..., Tensor | tuple[Tensor, ...]]) -> None:
    """Define an operator of the namespace `dailytrain`. `shape` returns empty tensors like its results."""
    name = LIBRARY.define(schema)
    torch.library.register_fake(f"dailytrain::{name}", shape, lib=LIBRARY)


def like_first(first: Tensor, *_: object) -> Tensor:
    return torch.empty_like(first)


register("attention(Tensor query, Tensor key, Tensor value, int? window, Tensor? documents) -> Tensor", like_first)
register("norm(Tensor x, Tensor? gain) -> Tensor", like_first)
register("rotate(Tensor x, Tensor cosine, Tensor sine) -> Tensor", like_first)
register("squared_relu(Tensor x) -> Tensor", like_first)
register("softcap(Tensor x, float cap) -> Tensor", lambda x, _: torch.empty_like(x, dtype=torch.float32))
register("cast_for_autocast(Tensor x) -> Tensor", like_first)
register(
    "ngram_memory(Tensor tokens, Tensor table, int[] orders, int hashes, int? end_of_text) -> Tensor",
    lambda tokens, table, *_: table.new_empty((*tokens.shape, *table.shape[1:])),
)
register("balance_load(Tensor gates, Tensor bias, Tensor load) -> Tensor", like_first)
register(
    "recurrence(Tensor r, Tensor k, Tensor v, Tensor rate, Tensor bonus, Tensor state) -> (Tensor, Tensor)",
    lambda r, k, v, rate, bonus, state: (v.new_empty(v.shape), torch.empty_like(state)),
)
