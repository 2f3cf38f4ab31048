"""Splitting documents into chunks."""

from __future__ import annotations

import json
import lzma
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.genesis import texts
from trainer.rephrase.chunks import MAX_SENTENCE_RATIO, count_tokens, split_into_chunks

DATA = Path(os.environ.get("DAILYTRAIN_DATA", "../shared/data")) / "text"


@given(st.text(max_size=2000), st.integers(min_value=1, max_value=400))
def test_joined_chunks_are_the_text(text: str, tokens: int) -> None:
    chunks = split_into_chunks(text, tokens)
    assert "".join(chunks) == text
    assert all(chunks)


@given(
    st.lists(st.sampled_from(["Mr. Smith went.", "No!", "word " * 50 + "end.", "\n\n", " ", "東京は。"]), max_size=80)
)
def test_joined_chunks_of_sentences_are_the_text(parts: list[str]) -> None:
    text = " ".join(parts)
    assert "".join(split_into_chunks(text, 60)) == text


def test_chunks_end_with_sentences_and_have_similar_lengths() -> None:
    text = " ".join(texts(60))
    chunks = split_into_chunks(text)
    assert len(chunks) == round(count_tokens(text) / 300)
    assert all(chunk.rstrip().endswith((".", "?", "!", '"')) for chunk in chunks)
    assert all(200 <= count_tokens(chunk) <= 400 for chunk in chunks)


@pytest.mark.parametrize("abbreviation", ["Mr.", "Dr.", "e.g.", "J.", "U.S.", "No."])
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


def test_empty_text_has_no_chunks_and_zero_tokens_raise() -> None:
    assert split_into_chunks("") == []
    with pytest.raises(ValueError, match="one token"):
        split_into_chunks("text", 0)


def test_real_documents_are_split_to_size_without_loss() -> None:
    if not DATA.is_dir():
        pytest.skip(f"no real text at {DATA}")
    documents = [json.loads(line)["text"] for line in (DATA / "c4_sample" / "c4_sample.jsonl").read_text().splitlines()]
    with lzma.open(DATA / "gutenberg" / "validation.jsonl.xz", "rt") as books:
        documents += [json.loads(next(books))["text"][:100_000] for _ in range(3)]
    for document in documents:
        chunks = split_into_chunks(document)
        assert "".join(chunks) == document
        sizes = [count_tokens(chunk) for chunk in chunks]
        assert max(sizes) <= 600
        assert len(chunks) == 1 or min(sizes) >= 120
