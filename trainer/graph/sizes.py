"""Sizes that depend on rows and positions: `a + b batch + c positions + d batch positions` with whole numbers a to d.

Both numbers are at least 1. Arithmetic has no other results: what is no such sum raises `ValueError`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NamedTuple

from trainer.graph.schema import MAX_SIZE, SIZE_NAMES


class SizeSum(NamedTuple):
    """A size; the fields are a, b, c and d."""

    constant: int
    batch: int = 0
    positions: int = 0
    both: int = 0

    @property
    def is_constant(self) -> bool:
        return not any(self[1:])

    def describe(self) -> str:
        terms = zip(self, ("", *SIZE_NAMES, " ".join(SIZE_NAMES)), strict=True)
        return " + ".join(f"{factor} {name}".strip() for factor, name in terms if factor) or "0"


SIZES = dict(zip(SIZE_NAMES, (SizeSum(0, 1), SizeSum(0, 0, 1)), strict=True))


def compute_size(name: str, *values: SizeSum) -> SizeSum:
    """Return the result of an operator `size::*`. Raises `ValueError`, or `ZeroDivisionError`."""
    size = ARITHMETIC[name](*values)
    if size is None or any(abs(factor) > MAX_SIZE for factor in size):
        result = "" if size is None else f" {size.describe()}"
        raise ValueError(f"whose result{result} is no sum of multiples of rows and positions, and no other sizes load")
    if any(factor < 0 for factor in size[1:]):
        raise ValueError(f"whose result {size.describe()} falls when rows or positions grow, and no such sizes load")
    return size


def add(left: SizeSum, right: SizeSum) -> SizeSum:
    return SizeSum(*map(operator.add, left, right))


def subtract(left: SizeSum, right: SizeSum) -> SizeSum:
    return SizeSum(*map(operator.sub, left, right))


def negate(value: SizeSum) -> SizeSum:
    return SizeSum(*map(operator.neg, value))


def multiply(left: SizeSum, right: SizeSum) -> SizeSum | None:
    """Return the product; None if it has a square. The numbers of terms are sets: 1 is batch, 2 positions, 3 both."""
    product = [0] * len(left)
    for i, factor in enumerate(left):
        for j, other in enumerate(right):
            if factor and other and i & j:
                return None
            product[i | j] += factor * other
    return SizeSum(*product)


def divide(left: SizeSum, right: SizeSum) -> SizeSum | None:
    """Return the quotient, rounded down, if it is the same sum for all rows and positions."""
    if right.is_constant:
        quotient, remainders = zip(*(divmod(factor, right.constant) for factor in left), strict=True)
        return None if any(remainders[1:]) else SizeSum(*quotient)
    terms = [number for number, factor in enumerate(right) if factor]
    if len(terms) > 1:  # only a multiple of it has a quotient
        factor = left[terms[0]] // right[terms[0]]
        return SizeSum(factor) if left == multiply(SizeSum(factor), right) else None
    parts = [0] * len(left)
    for number, factor in enumerate(left):
        if factor % right[terms[0]] or (factor and number & terms[0] != terms[0]):
            return None
        parts[number & ~terms[0]] += factor // right[terms[0]]
    return SizeSum(*parts)


def take_remainder(left: SizeSum, right: SizeSum) -> SizeSum | None:
    quotient = divide(left, right)
    product = None if quotient is None else multiply(quotient, right)
    return None if product is None else subtract(left, product)


def take_larger(left: SizeSum, right: SizeSum) -> SizeSum | None:
    """Return the size that is never the smaller one; None if that depends on rows or positions."""
    for one, other in ((left, right), (right, left)):
        gap = subtract(one, other)
        if min(gap[1:]) >= 0 and sum(gap) >= 0:
            return one
    return None


def take_smaller(left: SizeSum, right: SizeSum) -> SizeSum | None:
    larger = take_larger(left, right)
    return None if larger is None else right if larger is left else left


ARITHMETIC: dict[str, Callable[..., SizeSum | None]] = {
    "size::add": add,
    "size::sub": subtract,
    "size::neg": negate,
    "size::mul": multiply,
    "size::floordiv": divide,
    "size::mod": take_remainder,
    "size::min": take_smaller,
    "size::max": take_larger,
}
