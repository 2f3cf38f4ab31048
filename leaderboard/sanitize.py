"""Clean untrusted text and JSON for database rows, pages and Markdown. Pages still show it as text, never as HTML."""

from __future__ import annotations

import json
import math
from typing import Any

from scheduler.sanitize import replace_unstorable

KEPT_CONTROLS = "\n\t"
MAX_LEAVES = 400
MAX_DEPTH = 5
MAX_INTEGER = 2**53  # beyond that JSON readers (and JavaScript) lose digits


def sanitize_text(text: str, limit: int) -> str:
    """Return the text without control characters and lone surrogates (PostgreSQL takes neither), cut to `limit`."""
    clean = text[: 4 * limit].encode("utf-8", "replace").decode()
    return "".join(c for c in clean if c in KEPT_CONTROLS or (c >= " " and not "\x7f" <= c <= "\x9f"))[:limit]


def sanitize_json(value: Any) -> Any:
    """Return a copy with finite numbers, plain texts and a bounded size; what does not fit is left out."""
    left = [MAX_LEAVES]

    def copy(value: Any, depth: int) -> Any:
        left[0] -= 1
        if left[0] < 0 or depth > MAX_DEPTH:
            return None
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, int):
            return value if abs(value) <= MAX_INTEGER else None
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, str):
            return sanitize_text(value, 500)
        if isinstance(value, dict):
            pairs = list(value.items())[: max(left[0], 0)]
            return {sanitize_text(str(name), 100): copy(item, depth + 1) for name, item in pairs}
        if isinstance(value, (list, tuple)):
            return [copy(item, depth + 1) for item in value[: max(left[0], 0)]]
        return None

    return copy(value, 0)


def replace_unstorable_in_json(value: Any) -> Any:
    """Return the JSON value with `?` for each character that no database stores."""
    if isinstance(value, str):
        return replace_unstorable(value)
    if isinstance(value, dict):
        return {replace_unstorable_in_json(name): replace_unstorable_in_json(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [replace_unstorable_in_json(inner) for inner in value]
    return value


def check_storable(value: Any) -> None:
    """Raise ValueError if no database stores the JSON value: for NaN, infinities, NUL and lone surrogates."""
    try:
        json.dumps(value, allow_nan=False)
        is_clean = replace_unstorable_in_json(value) == value
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError:
        raise ValueError("NaN and infinite numbers are not allowed") from None
    if not is_clean:
        raise ValueError("null bytes and lone surrogates are not allowed")
