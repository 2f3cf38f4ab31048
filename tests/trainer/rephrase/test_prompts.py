"""The prompts, and that published versions never change."""

from __future__ import annotations

import hashlib

import pytest

from trainer.rephrase.prompts import CREDITS, CURRENT_VERSION, STYLES, VERSIONS, build_prompt, get_instructions

PINNED = {1: "c3b2", 2: "cf36"}
"""Hashes of published versions, which never change, since results carry their number. Add a line for a new one."""


@pytest.mark.parametrize("style", STYLES)
def test_prompt_has_instructions_then_text(style: str) -> None:
    prompt = build_prompt(style, "  Two words.\n")
    assert prompt.startswith(get_instructions(style)[0])
    assert prompt.endswith("\n\nTwo words.")


def test_current_version_is_newest_with_all_styles() -> None:
    assert max(VERSIONS) == CURRENT_VERSION
    wrap, finephrase = ("easy", "medium", "hard", "qa"), ("faq", "math", "table", "tutorial")
    assert {number: tuple(styles) for number, styles in VERSIONS.items()} == {1: wrap, 2: (*wrap, *finephrase)}
    assert [credit.styles for credit in CREDITS] == [wrap, finephrase]
    assert all(VERSIONS[2][style] == VERSIONS[1][style] for style in wrap)


@pytest.mark.parametrize("version", sorted(VERSIONS))
def test_published_version_is_unchanged(version: int) -> None:
    prompts = "\n".join(build_prompt(style, "text", version) for style in VERSIONS[version])
    assert hashlib.sha256(prompts.encode()).hexdigest()[:4] == PINNED[version]


def test_unknown_version_or_style_raises_error() -> None:
    with pytest.raises(ValueError, match=r"no version 99 .* too old"):
        build_prompt("easy", "text", 99)
    with pytest.raises(
        ValueError, match="no style 'poem'; there are easy, medium, hard, qa, faq, math, table, tutorial"
    ):
        build_prompt("poem", "text")
