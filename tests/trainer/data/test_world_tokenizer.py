"""The World tokenizer encodes any bytes as RWKV's own does, and is saved and loaded like other tokenizers."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.paths import DATA
from trainer.data import world
from trainer.data.dataset import prepare_dataset
from trainer.data.tokenizer import TokenizerSpec, load_tokenizer
from trainer.errors import TokenizerError

FILE = DATA / "tokenizers" / "rwkv-world" / "rwkv_vocab_v20230424.txt"
MORE = ("the", "the ", " th", "theatre", "é", "日本", "\n\n", "'s", "a b")

published = pytest.mark.skipif(not FILE.is_file(), reason=f"the vocabulary is not at {FILE}")


def small(folder: Path) -> Path:
    """Write a vocabulary in the published format: all bytes and a few longer tokens."""
    tokens: list[str | bytes] = [bytes([byte]) if byte > 127 else chr(byte) for byte in range(256)] + list(MORE)
    lines = [f"{n} {t!r} {len(t.encode() if isinstance(t, str) else t)}" for n, t in enumerate(tokens, start=1)]
    file = folder / "vocabulary.txt"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> world.WorldTokenizer:
    return world.load_vocabulary(small(tmp_path_factory.mktemp("world")))


@pytest.fixture(scope="module")
def full() -> world.WorldTokenizer:
    return world.load_vocabulary(FILE)


@pytest.fixture(scope="module")
def rwkv_encode() -> Callable[[bytes], list[int]]:
    """The encoder of the package rwkv, loaded from its file, since the package itself imports torch."""
    found = importlib.util.find_spec("rwkv")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the package rwkv is not installed")
    source = Path(found.submodule_search_locations[0]) / "rwkv_tokenizer.py"
    spec = importlib.util.spec_from_file_location("rwkv_tokenizer", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TRIE_TOKENIZER(str(FILE)).encodeBytes


@published
def test_tokens_equal_the_authors(full: world.WorldTokenizer, rwkv_encode: Callable[[bytes], list[int]]) -> None:
    assert (full.vocabulary_size, full.end_of_text, len(full._tokens)) == (65536, 0, 65529)
    text_file = DATA / "text" / "wikitext-2-raw/wiki.test.raw"
    scripts = "".join(map(chr, [*range(1, 0xD800, 7), *range(0x1F300, 0x1F700)]))
    for text in (scripts, text_file.read_text(encoding="utf-8")[:60_000] if text_file.is_file() else ""):
        ids = full.encode(text)
        assert ids == rwkv_encode(text.encode())
        assert full.decode(ids) == text
        assert int(full.byte_lengths()[ids].sum()) == len(text.encode())
    chance, known = random.Random(5), list(full._tokens.values())
    for length in (1, 2, 50, 5000):
        for data in (chance.randbytes(length), b"".join(chance.choices(known, k=length))):
            ids = full.encode_bytes(data)
            assert ids == rwkv_encode(data)
            assert b"".join(map(full.get_token_bytes, ids)) == data


@given(st.binary(max_size=60) | st.lists(st.sampled_from(MORE), max_size=20).map(lambda words: "".join(words).encode()))
@settings(deadline=None)
def test_encoding_is_greedy_longest_match(tokenizer: world.WorldTokenizer, data: bytes) -> None:
    known, place = {token: number for number, token in tokenizer._tokens.items()}, 0
    for number in tokenizer.encode_bytes(data):
        longest = next(data[place : place + n] for n in range(9, 0, -1) if data[place : place + n] in known)
        assert number == known[longest]
        place += len(longest)
    assert place == len(data)


def test_dataset_and_file_use_world_tokenizer(corpus_folder: Path, tmp_path: Path) -> None:
    dataset = prepare_dataset(f"files:{corpus_folder}/*.txt", f"world:{small(tmp_path)}", tmp_path / "dataset")
    loaded = load_tokenizer(tmp_path / "dataset" / "tokenizer.json")
    assert isinstance(loaded, world.WorldTokenizer)
    assert (loaded.sha256, loaded.vocabulary_size) == (dataset.tokenizer.sha256, 320)
    assert TokenizerSpec.parse(str(tmp_path / "dataset" / "tokenizer.json")).tokenizer is not None
    ids = dataset.open_stream("dev").read_tokens(0, 50)
    assert ids[0] == loaded.end_of_text == 0
    assert loaded.decode(int(each) for each in ids).startswith("The ")
    assert loaded.decode([*loaded.encode("日本é")[:-1], *loaded.encode_bytes(b"\xff"), 0, 319]) == "日本\ufffd"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda text: text.replace("257 'the' 3", "257 'the' 4"), "line 257, is not an entry of a World vocabulary"),
        (lambda text: text.replace("257 'the' 3", "256 'the' 3"), "line 257, repeats the id 256"),
        (lambda text: text.replace("66 'A' 1\n", ""), "no token for 1 of the bytes"),
        (lambda text: text.replace("257 'the' 3", "257 __import__('os') 3"), "line 257, is not an entry"),
        (lambda text: text.replace("257 'the' 3", "0 'the' 3"), "an id below 1"),
        (lambda text: "", "has no tokens"),
    ],
)
def test_invalid_vocabulary_raises_one_line(change: Any, sentence: str, tmp_path: Path) -> None:
    file = small(tmp_path)
    file.write_text(change(file.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(TokenizerError, match=sentence) as caught:
        TokenizerSpec.parse(f"world:{file}")
    assert "\n" not in str(caught.value)


def test_invalid_tokenizer_of_a_dataset_raises_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "World"}, "tokens": [["x"]]}')
    with pytest.raises(TokenizerError, match="its tokens cannot be read"):
        load_tokenizer(tmp_path / "tokenizer.json")
