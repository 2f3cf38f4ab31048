"""Sizes in bytes, and numbers of tokens, as people write them."""

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


BYTES_PER_TOKEN = 5.5  # read for each wanted token, more than the 4 to 5 of English with usual vocabularies


def parse_tokens(text: str) -> int:
    """Return the bytes of text to read for 12B, 500M or 1000000 tokens."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmbt]?)\s*", text.lower())
    if not match or float(match[1]) == 0:
        raise UserError(f"{text!r} is not a number of tokens: try 500M or 12B")
    return int(float(match[1]) * UNITS["g" if match[2] == "b" else match[2]] * BYTES_PER_TOKEN)
