"""Sizes in bytes as people write them."""

from __future__ import annotations

import re

from trainer.errors import UserError

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def parse_size(text: str) -> int:
    """Return the bytes of 1048576, 16MiB, 16MB or 1.5g."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?\s*", text.lower())
    if not match or match[2] not in UNITS or float(match[1]) == 0:
        raise UserError(f"{text!r} is not a size: give bytes, such as 1048576, 16MiB or 1GB")
    return int(float(match[1]) * UNITS[match[2]])
