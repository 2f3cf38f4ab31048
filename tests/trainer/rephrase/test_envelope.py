"""The envelope check: a result matches its packet and order."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.support.rephrasings import GOOD, SOURCE
from trainer import protocol
from trainer.rephrase.checks import REASONS, check_envelope

ORDER = protocol.RephraseOrder(campaign="c", model="m", revision="r", styles=("easy", "qa"), prompt_version=1)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


CHUNKS = (protocol.Chunk(index=3, text=SOURCE, sha256=sha256(SOURCE), styles=("easy", "qa")),)


def output(style: protocol.Style, **changes: Any) -> protocol.RephraseOutput:
    text = changes.pop("text", GOOD[style])
    fields = {"chunk": 3, "style": style, "source_sha256": sha256(SOURCE), "text": text, "sha256": sha256(text)}
    return protocol.RephraseOutput(**{**fields, **changes})


def result(*outputs: protocol.RephraseOutput, **changes: Any) -> protocol.RephrasedPacket:
    fields = {"packet": 1, "prompt_version": 1, "model": "m", "revision": "r", "sampling": ORDER.sampling}
    return protocol.RephrasedPacket(**{**fields, "outputs": outputs or (output("easy"), output("qa")), **changes})


def test_matching_result_has_no_reasons() -> None:
    assert check_envelope(result(), CHUNKS, ORDER) == ()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (result(prompt_version=2), "wrong_prompt_version"),
        (result(model="n"), "wrong_model"),
        (result(revision=""), "wrong_model"),
        (result(sampling=protocol.Sampling(temperature=0)), "wrong_sampling"),
        (result(output("easy")), "missing"),
        (result(output("easy"), output("qa"), output("hard")), "unasked"),
        (result(output("easy"), output("qa"), output("qa")), "unasked"),
        (result(output("easy", chunk=4), output("qa")), "unasked"),
        (result(output("easy", source_sha256="0" * 64), output("qa")), "wrong_source"),
        (result(output("easy", sha256="0" * 64), output("qa")), "wrong_hash"),
        (result(output("easy", text="A\x00b."), output("qa")), "not_text"),
        (result(output("easy", text="word " * 19_000), output("qa")), "too_big"),
    ],
)
def test_mismatched_result_has_reason(wrong: protocol.RephrasedPacket, reason: str) -> None:
    assert reason in check_envelope(wrong, CHUNKS, ORDER)
    assert reason in REASONS


def test_output_without_text_matches() -> None:
    nothing = output("easy", text="", ended="none", trouble="prompt_too_long")
    assert check_envelope(result(nothing, output("qa")), CHUNKS, ORDER) == ()
