"""Documents are cut at sentence ends, and nothing of them is lost."""

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
def test_joined_sentences_are_the_text_whatever_they_are(parts: list[str]) -> None:
    text = " ".join(parts)
    assert "".join(split_into_chunks(text, 60)) == text


def test_chunks_end_with_sentences_and_are_about_as_long_as_each_other() -> None:
    text = " ".join(texts(60))
    chunks = split_into_chunks(text)
    assert len(chunks) == round(count_tokens(text) / 300)
    assert all(chunk.rstrip().endswith((".", "?", "!", '"')) for chunk in chunks)
    assert all(200 <= count_tokens(chunk) <= 400 for chunk in chunks)


@pytest.mark.parametrize("abbreviation", ["Mr.", "Dr.", "e.g.", "J.", "U.S.", "No."])
def test_an_abbreviation_is_no_end(abbreviation: str) -> None:
    text = f"We met {abbreviation} Jones there today. Then we went home again at once."
    assert split_into_chunks(text, 9) == [
        f"We met {abbreviation} Jones there today. ",
        "Then we went home again at once.",
    ]


def test_the_end_of_a_wrapped_line_is_no_end_of_a_sentence_and_that_of_a_heading_is() -> None:
    line = "Of all the lines in this long book none ends where a sentence does,\n"
    assert all(
        chunk.rstrip().endswith(".") for chunk in split_into_chunks((line * 3 + "or so I was told by them.\n") * 8, 60)
    )
    assert (
        split_into_chunks("A heading without a mark\nThe first paragraph begins here and ends.", 6)[0]
        == "A heading without a mark\n"
    )


def test_a_sentence_without_an_end_is_cut_inside() -> None:
    chunks = split_into_chunks("word " * 3000 + "x" * 5000, 300)
    assert all(count_tokens(chunk) <= MAX_SENTENCE_RATIO * 300 * 2 for chunk in chunks)
    assert len(chunks) > 10


def test_nothing_is_cut_into_no_chunks_and_a_chunk_holds_something() -> None:
    assert split_into_chunks("") == []
    with pytest.raises(ValueError, match="one token"):
        split_into_chunks("text", 0)


def test_real_documents_lose_nothing_and_are_cut_to_size() -> None:
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
