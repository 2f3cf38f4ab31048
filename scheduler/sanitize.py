"""JSON and text from nodes, sanitized: the databases accept neither NaN in JSON nor NUL in text."""

from __future__ import annotations

import json
import math
from typing import Any

from scheduler.errors import ApiError, InvalidMessageError, VersionMismatchError
from trainer import protocol

MAX_NESTING = 16
INTEGER_LIMIT = 2**63


def parse_message(body: bytes) -> dict[str, Any]:
    """Return a JSON object that can be stored. Raises ApiError; a wrong protocol version before any other error."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise ApiError("The message is not JSON.") from None
    data = sanitize_message(data)
    if not isinstance(data, dict):
        raise InvalidMessageError("The message has to be a JSON object.")
    if data.get("version", protocol.VERSION) != protocol.VERSION:
        raise VersionMismatchError
    return data


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
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "?").encode("utf-8", "replace").decode()
