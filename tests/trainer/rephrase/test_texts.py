"""Texts of a campaign: chunks, prompts whose published versions never change, and offline language identification."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.genesis import texts
from trainer.rephrase.chunks import MAX_SENTENCE_RATIO, count_tokens, split_into_chunks
from trainer.rephrase.languages import UNKNOWN, identify_language
from trainer.rephrase.prompts import CREDITS, CURRENT_VERSION, STYLES, VERSIONS, build_prompt, get_instructions

SENTENCES = st.lists(
    st.sampled_from(["Mr. Smith went.", "No!", "word " * 50 + "end.", "\n\n", "東京は。"]), max_size=80
)


@given(st.text(max_size=2000) | SENTENCES.map(" ".join), st.integers(min_value=1, max_value=400))
def test_joined_chunks_are_the_text(text: str, tokens: int) -> None:
    chunks = split_into_chunks(text, tokens)
    assert "".join(chunks) == text
    assert all(chunks)


def test_chunks_end_with_sentences_and_have_similar_lengths() -> None:
    text = " ".join(texts(60))
    chunks = split_into_chunks(text)
    assert len(chunks) == round(count_tokens(text) / 300)
    assert all(chunk.rstrip().endswith((".", "?", "!", '"')) for chunk in chunks)
    assert all(200 <= count_tokens(chunk) <= 400 for chunk in chunks)


@pytest.mark.parametrize("abbreviation", ["Mr.", "e.g.", "U.S."])
def test_abbreviation_does_not_end_sentence(abbreviation: str) -> None:
    text = f"We met {abbreviation} Jones there today. Then we went home again at once."
    assert split_into_chunks(text, 9) == [
        f"We met {abbreviation} Jones there today. ",
        "Then we went home again at once.",
    ]


def test_line_end_ends_sentence_only_in_unwrapped_text() -> None:
    line = "Of all the lines in this long book none ends where a sentence does,\n"
    assert all(
        chunk.rstrip().endswith(".") for chunk in split_into_chunks((line * 3 + "or so I was told by them.\n") * 8, 60)
    )
    assert (
        split_into_chunks("A heading without a mark\nThe first paragraph begins here and ends.", 6)[0]
        == "A heading without a mark\n"
    )


def test_very_long_sentence_is_split_inside() -> None:
    chunks = split_into_chunks("word " * 3000 + "x" * 5000, 300)
    assert all(count_tokens(chunk) <= MAX_SENTENCE_RATIO * 300 * 2 for chunk in chunks)
    assert len(chunks) > 10
    with pytest.raises(ValueError, match="one token"):
        split_into_chunks("text", 0)


PINNED = {1: "c3b2", 2: "cf36"}
"""Hashes of published versions, which never change, since results carry their number. Add a line for a new one."""


def test_published_versions_of_prompts_are_unchanged() -> None:
    assert max(VERSIONS) == CURRENT_VERSION
    wrap, finephrase = ("easy", "medium", "hard", "qa"), ("faq", "math", "table", "tutorial")
    assert {number: tuple(styles) for number, styles in VERSIONS.items()} == {1: wrap, 2: (*wrap, *finephrase)}
    assert [credit.styles for credit in CREDITS] == [wrap, finephrase]
    assert all(VERSIONS[2][style] == VERSIONS[1][style] for style in wrap)
    for version, start in PINNED.items():
        prompts = [build_prompt(style, "text", version) for style in VERSIONS[version]]
        assert hashlib.sha256("\n".join(prompts).encode()).hexdigest()[:4] == start
    for style in STYLES:
        prompt = build_prompt(style, "  Two words.\n")
        assert prompt.startswith(get_instructions(style)[0])
        assert prompt.endswith("\n\nTwo words.")


def test_old_english_is_english_and_few_letters_are_unknown() -> None:
    assert {identify_language(text) for text in texts(100)} == {"en"}
    assert {identify_language(text) for text in ("", "Yes.", "1,024 + 2,048 = 3,072", "???")} == {UNKNOWN}
