"""Read a table by hashes of the last tokens, and keep the gradient of the rows that were read.

Hashed n-grams as in BLT (arXiv 2412.09871, section 3.2.1) and Engram (arXiv 2601.07372). A hash is a polynomial modulo
a prime whose variable differs for each order and number (a universal family: Carter and Wegman 1979), so that n-grams
that meet in one hash are apart in another.

The gradient of a table never exists as a whole: each pass leaves the rows that its tokens read and the tokens'
gradients, and `trainer.optim.row_adagrad` steps the rows of a step. What torch.compile compiles takes the rows that
were read before (`trainer.models.ngram_memory`), so that this part stays outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer.ops.devices import get_row_gradients
from trainer.ops.elementwise import cast_for_autocast, is_exporting

PRIME = 2**31 - 1
GENERATOR = 48_271  # of the multiplicative group modulo `PRIME` (Park, Miller and Stockmeyer 1993)
FIRST_POWER = 11  # smaller powers of the generator would hardly wrap around
MAX_ORDER, MAX_HASHES = 16, 16


class RowGradients:
    """The gradient of a table `[rows, slices, width]` in one step: what each pass's tokens have read, and theirs."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.rows: list[Tensor] = []  # `[tokens, hashes]` for each pass
        self.gradients: list[Tensor] = []  # `[tokens, slices x width]` for each pass
        self.factor: Tensor | float = 1.0  # of clipping
        self.groups: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, rows: Tensor, gradient: Tensor) -> None:
        """Add those of a pass: `rows [B, T, hashes]`, `gradient [B, T, slices, width]`."""
        self.rows.append(rows.flatten(0, 1))
        self.gradients.append(gradient.flatten(0, 1).flatten(1))
        self.groups = []

    def iterate_sums(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield for each hash the rows that the step has read, their gradients `[rows, slices x width]` in fp32, and
        whether each is one: on a GPU, where their number is unknown, the rest are row 0 and zeros.

        A row's gradients are summed in the order of the tokens, however these were split into passes.
        """
        if not self.rows:
            return
        self.groups = self.groups or [group_rows(column) for column in torch.cat(self.rows).unbind(1)]
        gradients = torch.cat(self.gradients).float()
        for rows, places, is_read in self.groups:
            sums = torch.ops.aten.embedding_dense_backward(gradients, places, len(rows), -1, False)
            yield rows, sums * self.factor, is_read


def group_rows(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the different ones of `rows [N]` in ascending order, the place of each of the N among them, and which of
    the first are real: a GPU, whose number is unknown here, returns N with zeros at the end."""
    ordered, order = rows.sort(stable=True)
    numbers = F.pad(ordered[1:] != ordered[:-1], (1, 0)).cumsum(0)
    places = torch.empty_like(rows).scatter_(0, order, numbers)
    count = int(numbers[-1]) + 1 if is_count_known(rows) else len(rows)
    is_read = torch.arange(count, device=rows.device) <= numbers[-1]
    return rows.new_zeros(count).scatter_(0, numbers, ordered), places, is_read


def is_count_known(rows: Tensor) -> bool:
    """Return whether a number can be read without waiting for a GPU."""
    return not rows.is_cuda


class ReadRowsFunction(torch.autograd.Function):
    """The sum of the rows of a table that each token reads."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor) -> Tensor:
        ctx.gradients = get_row_gradients(table)
        ctx.save_for_backward(rows)
        return sum_rows(table, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        (rows,) = ctx.saved_tensors
        if gradient.is_meta:  # the addition of each token's gradient to each row that it has read, for the count
            for column in rows.flatten(0, 1).unbind(1):
                gradient.new_empty(gradient.shape).flatten(0, 1).index_add_(0, column, gradient.flatten(0, 1))
        elif ctx.gradients is not None:
            ctx.gradients.add(rows, gradient)
        return None, None


def sum_rows(table: Tensor, rows: Tensor) -> Tensor:
    """Return the sums `[B, T, slices, width]` of rows `[B, T, hashes]` of a table, in autocast's type."""
    flat = table.flatten(1)
    columns = [F.embedding(column, flat) for column in rows.unbind(2)]
    total = columns[0]
    for column in columns[1:]:
        total = total + column
    return cast_for_autocast(total.unflatten(-1, table.shape[1:]))


def hash_ngrams(tokens: Tensor, rows: int, orders: Sequence[int], hashes: int, end_of_text: int | None) -> Tensor:
    """Return the rows that each of the tokens `[B, T]` reads, `[B, T, orders x hashes]`: each hash has its own rows.

    Before a row of tokens is token 0. So is, with `end_of_text`, what is before a document, which that token starts.
    """
    before, columns = [tokens], []
    for _ in range(max(orders) - 1):
        earlier = F.pad(before[-1][:, :-1], (1, 0))
        before.append(earlier if end_of_text is None else torch.where(tokens == end_of_text, 0, earlier))
    for order in orders:
        for _ in range(hashes):
            factor = pow(GENERATOR, FIRST_POWER + len(columns), PRIME)
            value = (tokens + 1) * factor % PRIME
            for token in before[1:order]:
                value = (value + token) * factor % PRIME
            columns.append(value % rows + rows * len(columns))
    return torch.stack(columns, -1)


def read_ngram_memory(
    tokens: Tensor, table: Tensor, orders: Sequence[int], hashes: int = 1, end_of_text: int | None = None
) -> Tensor:
    """Return the sum `[B, T, slices, width]` of the rows that each token reads, one for each order and hash.

    `tokens [B, T]`; `table [rows, slices, width]`, shared equally among orders and hashes, or what was read of it for
    these tokens, which is returned. `hash_ngrams` describes the rest. In autocast's type.
    """
    if table.dim() == 4:
        return table
    check_arguments(tokens, table, orders, hashes)
    if is_exporting():
        return torch.ops.dailytrain.ngram_memory(tokens, table, orders, hashes, end_of_text)
    rows = hash_ngrams(tokens, table.size(0) // (len(orders) * hashes), orders, hashes, end_of_text)
    if torch.is_grad_enabled() and table.requires_grad:
        result: Tensor = ReadRowsFunction.apply(table, rows)
        return result
    return sum_rows(table, rows)


def check_arguments(tokens: Tensor, table: Tensor, orders: Sequence[int], hashes: int) -> None:
    """Raise `ValueError` for arguments that `read_ngram_memory` does not take."""
    if tokens.dim() != 2 or table.dim() != 3:
        raise ValueError("a memory takes tokens [rows, positions] and a table [rows, slices, width]")
    is_known = 0 < len(orders) <= MAX_ORDER and all(0 < order <= MAX_ORDER for order in orders)
    if not is_known or len(set(orders)) < len(orders) or not 0 < hashes <= MAX_HASHES:
        raise ValueError(f"a memory cannot have the orders {list(orders)} with {hashes} hashes each")
    if not 0 < table.size(0) <= PRIME or table.size(0) % (len(orders) * hashes):
        raise ValueError(f"{table.size(0)} rows cannot be shared equally by {len(orders) * hashes} hashes")
