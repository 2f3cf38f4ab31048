"""Numbers and times for people, always with units after a no-break space."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

SPACE = "\u00a0"
MISSING = "–"
SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
BUDGET = re.compile(r"([0-9.e+]+)([smhdkMBT]?)-?(s|m|h|d|tokens|steps|flops|)$")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def budget(text: str) -> str:
    """180s is 3 min, 3B-tokens is 3 B tokens, 1.25e12flops is 1.25 × 10¹² FLOPs. Unknown text stays as it is."""
    found = BUDGET.match(text)
    if found is None:
        return text
    number, size, unit = found.groups()
    if not unit and size in SECONDS:
        return duration(float(number) * SECONDS[size])
    if unit == "flops":
        return f"{power(float(number), 3)} FLOPs"  # long enough to break where a column is narrow
    whole = f"{int(number):,}" if number.isdecimal() else number
    return SPACE.join(part for part in (whole, size, unit) if part)


def format_or_missing(write: Callable[..., str], value: float | None) -> str:
    return MISSING if value is None else write(value)


def decimals(value: float | None, digits: int) -> str:
    return MISSING if value is None else f"{value:.{digits}f}"


def compact(value: float) -> str:
    """12,345,678 is 12.3 M."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return f"{significant(value / size)}{SPACE}{letter}"
    return f"{value:g}" if value == round(value, 3) else significant(value)


def significant(value: float) -> str:
    """Return three significant digits without trailing zeros."""
    decimals = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def points(part: float) -> str:
    """0.1153 is 11.5 %."""
    return f"{part * 100:.1f}{SPACE}%"


def share(part: float) -> str:
    """0.125 is 1/8 of the budget, 1 is the whole budget, 2 is 2 × the budget."""
    if part == 1:
        return "the whole budget"
    return f"{rung(part)} of the budget" if part < 1 else f"{rung(part)}{SPACE}× the budget"


def rung(part: float) -> str:
    """0.125 is 1/8, 2 is 2."""
    if part >= 1:
        return significant(part)
    below = round(1 / part)
    return f"1/{below}" if abs(1 / part - below) < 0.01 else significant(part)


def power(value: float, digits: int = 2) -> str:
    """1.23e15 is 1.2 × 10¹⁵. Trailing zeros after the first decimal are dropped."""
    if not value:
        return "0"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    whole, decimals = mantissa.split(".")
    written = f"{whole}.{decimals.rstrip('0') or '0'}"
    return f"{written}{SPACE}×{SPACE}10{str(int(exponent)).translate(SUPERSCRIPTS)}"


def binary(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{significant(size)}{SPACE}{unit}"
        size /= 1024
    return f"{significant(size)}{SPACE}TiB"


def duration(seconds: float) -> str:
    """11520 is 3 h 12 min: the two largest units."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}{SPACE}s"
    for size, unit, smaller, small_unit in ((60, "min", 1, "s"), (3600, "h", 60, "min"), (86_400, "d", 3600, "h")):
        if whole < size * (24 if unit == "h" else 60) or unit == "d":
            rest = whole % size // smaller
            return f"{whole // size}{SPACE}{unit}" + (f"{SPACE}{rest:02d}{SPACE}{small_unit}" if rest else "")
    raise AssertionError
