"""Sanitize JSON and text from nodes: the databases accept neither NaN in JSON nor NUL in text."""

from __future__ import annotations

import math
from typing import Any

from scheduler.errors import InvalidMessageError

MAX_NESTING = 16
INTEGER_LIMIT = 2**63


def sanitize_message(value: Any, depth: int = MAX_NESTING) -> Any:
    """Return the value with None for NaN, infinities and integers beyond 64 bits.

    Raises InvalidMessageError if it is nested too deeply.
    """
    if depth < 0:
        raise InvalidMessageError(f"The message is nested more than {MAX_NESTING} levels deep. Nothing was stored.")
    if isinstance(value, str):
        return replace_unstorable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value if -INTEGER_LIMIT <= value < INTEGER_LIMIT else None
    if isinstance(value, dict):
        return {replace_unstorable(str(key)): sanitize_message(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [sanitize_message(item, depth - 1) for item in value]
    return value


def replace_unstorable(text: str) -> str:
    """Return the text with `?` for NUL and lone surrogates; its length in bytes stays, for offsets."""
    return text.replace("\0", "?").encode("utf-8", "replace").decode()
