"""What the model is asked: one prompt for each style, and versions that never change."""

from __future__ import annotations

import hashlib

import pytest

from trainer.rephrase.prompts import CURRENT_VERSION, STYLES, VERSIONS, build_prompt, get_instructions

PINNED = {1: "c3b2"}
"""A version that has been used is never changed: results carry its number. A new one gets a line here."""


@pytest.mark.parametrize("style", STYLES)
def test_a_prompt_says_what_to_do_and_then_holds_the_text(style: str) -> None:
    asked = build_prompt(style, "  Two words.\n")
    assert asked.startswith(get_instructions(style)[0])
    assert asked.endswith("\n\nTwo words.")


def test_the_current_version_is_the_newest_and_knows_every_style() -> None:
    assert max(VERSIONS) == CURRENT_VERSION
    assert {tuple(styles) for styles in VERSIONS.values()} == {("easy", "medium", "hard", "qa")}


@pytest.mark.parametrize("version", sorted(VERSIONS))
def test_a_version_that_was_used_has_not_changed(version: int) -> None:
    said = "\n".join(build_prompt(style, "text", version) for style in STYLES)
    assert hashlib.sha256(said.encode()).hexdigest()[:4] == PINNED[version]


def test_what_there_is_not_is_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"no version 99 .* too old"):
        build_prompt("easy", "text", 99)
    with pytest.raises(ValueError, match="no style 'poem'; there are easy, medium, hard, qa"):
        build_prompt("poem", "text")
