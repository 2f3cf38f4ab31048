from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
import tiktoken
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from tests.support.paths import DATA
from trainer.data.corpora import open_corpus
from trainer.data.tokenizer import PATTERN, Tokenizer, TokenizerSpec, build_fast_encoder
from trainer.data.tokenizer_training import train_bpe

GPT2, GUTENBERG = DATA / "tokenizers" / "gpt2", DATA / "text" / "gutenberg" / "validation.jsonl.xz"
REPETITIVE = st.text("aab  bc'st1\n", max_size=200)  # many overlapping merges
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
Encode = Callable[[str], list[int]]


def get_encoders(tokenizer: Tokenizer) -> tuple[Encode, Encode]:
    """Return the fast encoder and the library's."""
    assert tokenizer._fast_encoder is not None
    return tokenizer._fast_encoder, lambda text: tokenizer._encode_pieces([text])[0] if text else []


@pytest.fixture(scope="module")
def encoders() -> tuple[Encode, Encode]:
    texts = [document.text for document, _ in zip(open_corpus("python-library"), range(12), strict=False)]
    return get_encoders(train_bpe([*texts, "aabb aaab abab abcabc bcbc a's aat 11 \n\n a b" * 40], 1500))


@given(text=ANY_TEXT | REPETITIVE)
def test_random_text_has_same_ids(encoders: tuple[Encode, Encode], text: str) -> None:
    fast, library = encoders
    assert fast(text) == library(text)


@pytest.mark.parametrize("space", [" ", "\n"])
def test_million_spaces_before_a_word_have_same_ids(encoders: tuple[Encode, Encode], space: str) -> None:
    fast, library = encoders
    text = "a" + space * 1_000_000 + "b"
    assert fast(text) == library(text)


@pytest.mark.skipif(not (GPT2.is_dir() and GUTENBERG.is_file()), reason=f"GPT-2 or Gutenberg is not in {DATA}")
@pytest.mark.slow
def test_books_have_same_ids_with_gpt2() -> None:
    tokenizer = TokenizerSpec.parse(f"gpt2:{GPT2}").tokenizer
    assert tokenizer is not None
    fast, library = get_encoders(tokenizer)
    for document in open_corpus(f"files:{GUTENBERG}"):
        assert fast(document.text) == library(document.text)


@pytest.mark.slow
def test_every_character_has_same_class() -> None:
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    words = [(prefix + character).encode() for character in characters for prefix in "a1!"]
    ranks = {bytes([byte]): byte for byte in range(256)} | {word: number for number, word in enumerate(words, 256)}
    encoding = tiktoken.Encoding("words", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for word in map(bytes.decode, words):
        assert (len(encoding.encode_ordinary(word)) == 1) == (len(splitter.pre_tokenize_str(word)) == 1), ascii(word)


def build_from_merges(merges: list[str], **changes: object) -> Encode | None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, *(merge.replace(" ", "") for merge in merges)]
    model = {"type": "BPE", "vocab": {token: index for index, token in enumerate(tokens)}, "merges": merges}
    steps = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True, "type": "ByteLevel"}
    spec = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": steps, "post_processor": None}
    spec |= {"decoder": steps, "model": model} | changes
    return build_fast_encoder(tokenizers.Tokenizer.from_str(json.dumps(spec)), spec, str.encode)


def test_encoder_vocabulary_with_unreachable_token_is_refused() -> None:
    assert build_from_merges(["a b", "b c", "ab c"]) is not None
    assert build_from_merges(["a b", "b c", "a bc"]) is None  # BPE never makes "abc", but tiktoken would


def test_encoder_pattern_or_normalizer_of_another_kind_is_refused() -> None:
    assert build_from_merges(["a b"], normalizer={"type": "NFC"}) is None
    whole = {"add_prefix_space": False, "trim_offsets": True, "use_regex": False, "type": "ByteLevel"}
    assert build_from_merges(["a b"], pre_tokenizer=whole) is None
    assert build_from_merges(["a b"], pre_tokenizer=None) is None
