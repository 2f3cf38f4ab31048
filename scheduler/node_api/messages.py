"""Bodies of node calls."""

from __future__ import annotations

import json
from typing import Any

from scheduler import sanitize
from scheduler.errors import ApiError, InvalidMessageError, VersionMismatchError
from trainer import protocol


def parse_message(body: bytes) -> dict[str, Any]:
    """Return a JSON object that can be stored. Raises ApiError; a wrong protocol version before any other error."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise ApiError("The message is not JSON.") from None
    data = sanitize.sanitize_message(data)
    if not isinstance(data, dict):
        raise InvalidMessageError("The message has to be a JSON object.")
    if data.get("version", protocol.VERSION) != protocol.VERSION:
        raise VersionMismatchError
    return data
