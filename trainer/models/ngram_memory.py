"""A memory for any architecture: a table of rows that each token reads by hashes of the last tokens.

`NGramMemory` reads it, `GatedMemory` adds a slice of what was read to a residual stream. Call the memory once for each
pass and outside of repeated blocks, which may be computed twice. Its table needs a group with the optimizer
`row_adagrad` in the recipe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.ops.elementwise import norm
from trainer.ops.ngram_memory import RowGradients, read_ngram_memory


class NGramMemory(nn.Module):
    """Reads `table [rows, slices, width]` for tokens `[B, T]`: `[B, T, slices, width]`.

    `orders`: lengths of the n-grams; `hashes`: rows that each of them reads. All share the rows of the table equally.
    `end_of_text`: the token that starts a document, if n-grams stay within documents.
    """

    def __init__(self, table: Tensor, orders: Sequence[int], hashes: int = 1, end_of_text: int | None = None) -> None:
        super().__init__()
        self.table = table if isinstance(table, nn.Parameter) else nn.Parameter(table)
        self.orders, self.hashes, self.end_of_text = list(orders), hashes, end_of_text
        self.fetched: Tensor | None = None
        self.table.row_gradients = RowGradients()  # type: ignore[attr-defined]

    def forward(self, tokens: Tensor) -> Tensor:
        table = self.table if self.fetched is None else self.fetched
        return read_ngram_memory(tokens, table, self.orders, self.hashes, self.end_of_text)


@contextmanager
def fetch_rows(memories: Iterable[NGramMemory], tokens: Tensor) -> Iterator[None]:
    """Context manager in which a forward pass over `tokens` finds its rows read. It may be compiled: the gradients of
    the rows then stay outside."""
    for memory in memories:
        memory.fetched = memory(tokens)
    try:
        yield
    finally:
        for memory in memories:
            memory.fetched = None


class GatedMemory(nn.Module):
    """Adds to a stream x a slice m of the memory: `x + lambda 2 sigmoid(<norm(x), g>) P m`.

    P is a matrix if the slice has another width than the stream, else left out. Lambda starts at `strength`, the gate
    at 1.
    """

    def __init__(self, width: int, memory_width: int, number: int, strength: float) -> None:
        """`number`: of the slice."""
        super().__init__()
        self.number = number
        self.gate = nn.Parameter(torch.zeros(width))
        self.read_lambda = nn.Parameter(torch.full((1,), strength))
        self.projection = nn.Linear(memory_width, width, bias=False) if memory_width != width else None

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """`x [B, T, width]`, `memory [B, T, slices, memory width]`."""
        values = memory[:, :, self.number]
        if self.projection is not None:
            values = self.projection(values)
        openness = 2 * torch.sigmoid(F.linear(norm(x), self.gate[None]))
        return x + self.read_lambda[0] * openness * values
