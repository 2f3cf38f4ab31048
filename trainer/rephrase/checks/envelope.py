"""Is a result what was asked for, and made with what was asked for? Nothing of its text is read here."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from trainer import protocol

MAX_SIZE_RATIO = 8
"""Bytes of an output over those of its source, for texts above a thousand bytes."""
EXTRA_BYTES = 8000
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f\ud800-\udfff\ufffe\uffff]")


def check_envelope(
    result: protocol.RephrasedPacket, chunks: Sequence[protocol.Chunk], order: protocol.RephraseOrder
) -> tuple[str, ...]:
    """Return the reasons against a whole result, keys of `checks.REASONS`; none if it fits what was given out."""
    made_with = {
        "wrong_prompt_version": result.prompt_version == order.prompt_version,
        "wrong_model": (result.model, result.revision) == (order.model, order.revision),
        "wrong_sampling": result.sampling == order.sampling,
    }
    reasons = [reason for reason, fits in made_with.items() if not fits]
    asked = {(chunk.index, style): chunk for chunk in chunks for style in chunk.styles}
    given = [(output.chunk, output.style) for output in result.outputs]
    if set(asked) - set(given):
        reasons.append("missing")
    if set(given) - set(asked) or len(set(given)) < len(given):
        reasons.append("unasked")
    for output in result.outputs:
        chunk = asked.get((output.chunk, output.style))
        reasons += _check_output(output, chunk) if chunk else []
    return tuple(dict.fromkeys(reasons))


def _check_output(output: protocol.RephraseOutput, chunk: protocol.Chunk) -> list[str]:
    """Return the reasons against one output as it was sent."""
    if UNPRINTABLE.search(output.text):
        return ["not_text"]
    content = output.text.encode()
    fits = {
        "wrong_source": output.source_sha256 == chunk.sha256,
        "wrong_hash": output.sha256 == hashlib.sha256(content).hexdigest(),
        "too_big": len(content) <= MAX_SIZE_RATIO * len(chunk.text.encode()) + EXTRA_BYTES,
    }
    return [reason for reason, fit in fits.items() if not fit]
