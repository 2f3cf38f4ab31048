"""Tokenizers are exact, deterministic and safe to load; the fast encoder has the ids of the library."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from tests.support.paths import DATA, REPOSITORY
from trainer.data import world
from trainer.data.corpora import open_corpus
from trainer.data.dataset import prepare_dataset
from trainer.data.tokenizer import PIECE_CHARACTERS, Tokenizer, TokenizerSpec, build_fast_encoder, load_tokenizer
from trainer.data.tokenizer_training import LONGEST_WORD, run_interruptibly, split_long_words, train_bpe
from trainer.errors import TokenizerError

GPT2, NEOX = DATA / "tokenizers" / "gpt2", DATA / "tokenizers" / "neox" / "20B_tokenizer.json"
needs_gpt2 = pytest.mark.skipif(not GPT2.is_dir(), reason=f"GPT-2's tokenizer is not at {GPT2}")
needs_neox = pytest.mark.skipif(not NEOX.is_file(), reason=f"NeoX's tokenizer is not at {NEOX}")
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
HARD = "Hello  wörld <|endoftext|> ﬁ e\u0301 \u212b\n\n  \t x" + " " * 9 + "\x00\r\n😀 don't 123456 \ufeff\u3000字"


def sample(size: int = 200_000) -> list[str]:
    taken, texts = 0, []
    for document in open_corpus("python-docs"):
        texts.append(document.text)
        taken += len(document.text)
        if taken > size:
            break
    return texts


@pytest.fixture(scope="module")
def bpe_tokenizer() -> Tokenizer:
    return train_bpe(sample(), 1024)


@pytest.fixture(
    scope="module", params=["bpe", pytest.param("gpt2", marks=needs_gpt2), pytest.param("neox", marks=needs_neox)]
)
def tokenizer(request: pytest.FixtureRequest, bpe_tokenizer: Tokenizer) -> Tokenizer:
    specs = {"gpt2": f"gpt2:{GPT2}", "neox": str(NEOX)}
    return TokenizerSpec.parse(specs[request.param]).tokenizer if request.param in specs else bpe_tokenizer


@settings(deadline=None)
@given(text=ANY_TEXT | st.sampled_from([HARD, "", " ", HARD * 3]))
def test_any_text_round_trips_and_byte_lengths_add_up(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.byte_lengths()[ids].sum() == len(text.encode())
    assert tokenizer.end_of_text not in ids
    assert tokenizer.byte_lengths()[tokenizer.end_of_text] == 0
    assert tokenizer.decode([tokenizer.end_of_text]) == ""


def test_long_text_has_same_tokens_as_unsplit(tokenizer: Tokenizer) -> None:
    text = "\n".join(sample(3 * PIECE_CHARACTERS)) + HARD
    assert len(text) > 3 * PIECE_CHARACTERS
    assert tokenizer.encode(text) == tokenizer._backend.encode(text, add_special_tokens=False).ids
    texts = [HARD, "", "one", "two " * PIECE_CHARACTERS, "ab" * PIECE_CHARACTERS]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.decode(tokenizer.encode(texts[-1])) == texts[-1]


@pytest.mark.parametrize("text", ["", "short words only", "x" * 5000 + " y" + "z" * 257, " " * 5000 + "x", "é" * 256])
def test_long_words_are_cut_for_training_without_loss(text: str) -> None:
    parts = list(split_long_words(text))
    assert "".join(parts) == text
    assert not any(re.search(rf"\S{{{LONGEST_WORD + 1}}}|\s{{{LONGEST_WORD + 1}}}", part) for part in parts)


def test_work_of_a_library_is_interrupted_by_a_signal() -> None:
    started, ended = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        ended.wait()

    def raise_interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def interrupt() -> None:
        started.wait()
        signal.pthread_kill(main_thread, signal.SIGUSR1)

    main_thread, before = threading.get_ident(), signal.signal(signal.SIGUSR1, raise_interrupt)
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            run_interruptibly(work)
        with pytest.raises(ZeroDivisionError):
            run_interruptibly(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    finally:
        ended.set()
        signal.signal(signal.SIGUSR1, before)


def test_saved_tokenizer_has_same_bytes_and_hash(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert loaded.sha256 == tokenizer.sha256
    assert loaded.encode(HARD) == tokenizer.encode(HARD)
    assert loaded.end_of_text == tokenizer.end_of_text


@pytest.mark.processes
def test_training_is_deterministic_and_has_requested_size(bpe_tokenizer: Tokenizer) -> None:
    assert bpe_tokenizer.vocabulary_size == 1024
    assert train_bpe(["abc"], 8192).vocabulary_size == 257, "a short text has no more"
    script = "from tests.trainer.data.test_tokenizer import sample, train_bpe\nprint(train_bpe(sample(), 1024).sha256)"
    environment = {
        **os.environ,
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONHASHSEED": "7",
        "PYTHONPATH": str(REPOSITORY),
    }
    printed = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True).stdout
    assert printed.decode().strip() == bpe_tokenizer.sha256


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("bpe:many", "takes a vocabulary size"),
        ("bpe:256", "between 257"),
        ("gpt2:nowhere", "there is no folder nowhere"),
        ("wordpiece", "is not a tokenizer"),
    ],
)
def test_invalid_spec_raises_one_line(spec: str, complaint: str) -> None:
    with pytest.raises(TokenizerError, match=complaint) as caught:
        TokenizerSpec.parse(spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b'{"model": {}}', b"not json"])
def test_invalid_file_raises_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(TokenizerError, match=r"^tokenizer.json is not a tokenizer"):
        load_tokenizer(tmp_path / "tokenizer.json")


def save_changed(bpe_tokenizer: Tokenizer, path: Path, **changes: object) -> Path:
    bpe_tokenizer.save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


def test_normalization_is_removed_on_load(bpe_tokenizer: Tokenizer, tmp_path: Path) -> None:
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    path = save_changed(bpe_tokenizer, tmp_path / "t.json", normalizer={"type": "Lowercase"}, pre_tokenizer=byte_level)
    assert load_tokenizer(path).encode(HARD) == bpe_tokenizer.encode(HARD)


def test_inexact_vocabulary_is_rejected(bpe_tokenizer: Tokenizer, tmp_path: Path) -> None:
    whitespace = save_changed(bpe_tokenizer, tmp_path / "a.json", pre_tokenizer={"type": "Whitespace"}, decoder=None)
    with pytest.raises(TokenizerError, match="not a byte-level BPE"):
        load_tokenizer(whitespace)
    model = json.loads(whitespace.read_text())["model"]
    model["vocab"] = {token: index for token, index in model["vocab"].items() if token not in "Äx"}
    model["merges"] = []
    with pytest.raises(TokenizerError, match="no token for 2 of the bytes"):
        load_tokenizer(save_changed(bpe_tokenizer, tmp_path / "b.json", model=model))
    with pytest.raises(TokenizerError, match="has no end-of-text token"):
        load_tokenizer(save_changed(bpe_tokenizer, tmp_path / "c.json", added_tokens=[]))


# --- the fast encoder -------------------------------------------------------------------------------------------------

REPETITIVE = st.text("aab  bc'st1\n", max_size=200)  # many overlapping merges
Encode = Callable[[str], list[int]]


def get_encoders(tokenizer: Tokenizer) -> tuple[Encode, Encode]:
    """Return the fast encoder and the library's."""
    assert tokenizer._fast_encoder is not None
    return tokenizer._fast_encoder, lambda text: tokenizer._encode_pieces([text])[0] if text else []


@pytest.fixture(scope="module")
def encoders() -> tuple[Encode, Encode]:
    texts = [document.text for document, _ in zip(open_corpus("python-docs"), range(12), strict=False)]
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


# --- the World tokenizer of RWKV --------------------------------------------------------------------------------------


FILE = DATA / "tokenizers" / "rwkv-world" / "rwkv_vocab_v20230424.txt"
MORE = ("the", "the ", " th", "theatre", "é", "日本", "\n\n", "'s", "a b")

needs_vocabulary = pytest.mark.skipif(not FILE.is_file(), reason=f"the vocabulary is not at {FILE}")


def small(folder: Path) -> Path:
    """Write a vocabulary in the needs_vocabulary format: all bytes and a few longer tokens."""
    tokens: list[str | bytes] = [bytes([byte]) if byte > 127 else chr(byte) for byte in range(256)] + list(MORE)
    lines = [f"{n} {t!r} {len(t.encode() if isinstance(t, str) else t)}" for n, t in enumerate(tokens, start=1)]
    file = folder / "vocabulary.txt"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def world_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> world.WorldTokenizer:
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


@needs_vocabulary
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
def test_encoding_is_greedy_longest_match(world_tokenizer: world.WorldTokenizer, data: bytes) -> None:
    known, place = {token: number for number, token in world_tokenizer._tokens.items()}, 0
    for number in world_tokenizer.encode_bytes(data):
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
