"""Checks that a result matches its packet and the campaign's settings. Does not check the text itself."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from trainer import protocol

MAX_SIZE_RATIO = 8  # maximum size of an output: this times its source's bytes, plus `EXTRA_BYTES`
EXTRA_BYTES = 8000
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f\ud800-\udfff\ufffe\uffff]")


def check_envelope(
    result: protocol.RephrasedPacket, chunks: Sequence[protocol.Chunk], order: protocol.RephraseOrder
) -> tuple[str, ...]:
    """Return the reasons to reject a whole result, keys of `checks.REASONS`; empty if it matches the packet."""
    matches = {
        "wrong_prompt_version": result.prompt_version == order.prompt_version,
        "wrong_model": (result.model, result.revision) == (order.model, order.revision),
        "wrong_sampling": result.sampling == order.sampling,
    }
    reasons = [reason for reason, is_match in matches.items() if not is_match]
    requested = {(chunk.index, style): chunk for chunk in chunks for style in chunk.styles}
    received = [(output.chunk, output.style) for output in result.outputs]
    if set(requested) - set(received):
        reasons.append("missing")
    if set(received) - set(requested) or len(set(received)) < len(received):
        reasons.append("unasked")
    for output in result.outputs:
        chunk = requested.get((output.chunk, output.style))
        reasons += _check_output(output, chunk) if chunk else []
    return tuple(dict.fromkeys(reasons))


def _check_output(output: protocol.RephraseOutput, chunk: protocol.Chunk) -> list[str]:
    """Return the reasons to reject one output."""
    if UNPRINTABLE.search(output.text):
        return ["not_text"]
    content = output.text.encode()
    matches = {
        "wrong_source": output.source_sha256 == chunk.sha256,
        "wrong_hash": output.sha256 == hashlib.sha256(content).hexdigest(),
        "too_big": len(content) <= MAX_SIZE_RATIO * len(chunk.text.encode()) + EXTRA_BYTES,
    }
    return [reason for reason, is_match in matches.items() if not is_match]
