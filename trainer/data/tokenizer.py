"""Byte-level tokenizers: every text becomes tokens and comes back byte for byte.

Only byte-level vocabularies are taken (GPT-2's scheme): each byte is a token, so nothing is unknown, and the bytes that
each token stands for are known, which is what makes bits per byte comparable between tokenizers. Whatever would change
the text before it is cut (a normaliser, an added space in front) is taken off when a file is loaded.

A spec names one:

    bpe:8192            trained on the corpus, with 8192 entries in all
    gpt2:FOLDER         encoder.json and vocab.bpe, as OpenAI published them (or a tokenizer.json)
    world:FILE          RWKV's World vocabulary as its authors published it, see `trainer.data.world`
    PATH/tokenizer.json  any byte-level tokenizer in the format of the `tokenizers` library
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

WORLD = b'{"model": {"type": "World"}'
"""How the file of a `trainer.data.world.WorldTokenizer` begins."""
END_OF_TEXT = "<|endoftext|>"
# Other families' names for it, tried in this order.
END_OF_TEXT_NAMES = (END_OF_TEXT, "<|end_of_text|>", "<|begin_of_text|>", "</s>", "<eos>")
SMALLEST_VOCABULARY = 257  # 256 bytes and the end of text
LARGEST_VOCABULARY = 1 << 20
NOT_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
# Longer texts are encoded in pieces of about this size: all cores work on one book, and memory stays bounded.
PIECE = 1 << 16  # characters
GROUP = 1 << 21  # characters given to the library at once


class TokenizerError(ValueError):
    """The tokenizer cannot be read or would not be exact; the message is one line for whoever named it."""


class Tokenizer:
    """A byte-level tokenizer and the file it is saved as.

    Text never becomes a special token: "<|endoftext|>" in a document is thirteen ordinary characters.
    """

    def __init__(self, content: bytes, name: str = "The tokenizer") -> None:
        try:
            self._backend = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
        except Exception as error:  # the library raises bare Exception
            raise TokenizerError(f"{name} is not a tokenizer: {_line(error)}") from error
        self._backend.encode_special_tokens = True
        self._content = content
        self._lengths = _byte_lengths(self._backend, json.loads(content), name)
        self.end_of_text = _end_of_text(self._backend, name)
        self.sha256 = hashlib.sha256(content).hexdigest()

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id: the number of rows that an embedding needs."""
        return len(self._lengths)

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, without end-of-text tokens. The library's threads share the work."""
        pieces: list[str] = []
        ends = []
        for text in texts:
            pieces.extend(_pieces(text))
            ends.append(len(pieces))
        encoded = self._encode_pieces(pieces)
        batch, start = [], 0
        for end in ends:
            batch.append([token for ids in encoded[start:end] for token in ids])
            start = end
        return batch

    def _encode_pieces(self, pieces: list[str]) -> list[list[int]]:
        """In groups: beside each id the library keeps about a hundred bytes of other things."""
        encoded: list[list[int]] = []
        group: list[str] = []
        size = 0
        for piece in pieces:
            group.append(piece)
            size += len(piece)
            if size >= GROUP or len(group) + len(encoded) == len(pieces):
                batch = self._backend.encode_batch_fast(group, add_special_tokens=False)
                encoded.extend(encoding.ids for encoding in batch)
                group, size = [], 0
        return encoded

    def decode(self, ids: Iterable[int]) -> str:
        """The text; special tokens are left out, bytes that are no UTF-8 become U+FFFD (a cut in a character)."""
        return self._backend.decode(list(ids), skip_special_tokens=True)

    def bytes_of(self, token: int) -> bytes:
        """The bytes a token stands for, possibly a part of a character; none for a special one or one not used."""
        if not self._lengths[token]:
            return b""
        written = self._backend.id_to_token(token)
        if token in self._backend.get_added_tokens_decoder():
            return written.encode()
        return bytes(_BYTES[symbol] for symbol in written)

    def byte_lengths(self) -> np.ndarray:
        """[V] int64: bytes of UTF-8 that each token stands for; 0 for special tokens and ids that are not used.

        Over the tokens of any text they add up to the length of its UTF-8.
        """
        return self._lengths.copy()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file whose sha256 this tokenizer has."""
        Path(path).write_bytes(self._content)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        path = Path(path)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise TokenizerError(f"{path} cannot be read: {error.strerror or error}") from error
        if content.startswith(WORLD):
            from trainer.data.world import WorldTokenizer

            return WorldTokenizer(content, path.name)
        return cls(_made_exact(content, path.name), path.name)


def train_bpe(texts: Iterable[str], vocabulary_size: int, progress: bool = False) -> Tokenizer:
    """A byte-level BPE with up to `vocabulary_size` entries, the 256 bytes and the end of text among them.

    The same texts in the same order give the same file. A short text gives a smaller vocabulary: pairs seen once do
    not become entries.
    """
    _check_size(vocabulary_size)
    backend = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=progress,
    )
    backend.train_from_iterator((piece for text in texts for piece in _pieces(text)), trainer)
    return Tokenizer(backend.to_str().encode())


def load_gpt2(folder: Path) -> Tokenizer:
    """GPT-2's own tokenizer from encoder.json and vocab.bpe, else from tokenizer.json."""
    vocabulary, merges = folder / "encoder.json", folder / "vocab.bpe"
    if not (vocabulary.is_file() and merges.is_file()):
        if (folder / "tokenizer.json").is_file():
            return Tokenizer.load(folder / "tokenizer.json")
        raise TokenizerError(f"{folder} holds neither encoder.json with vocab.bpe nor tokenizer.json")
    try:
        backend = _byte_level(models.BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{folder} does not hold GPT-2's tokenizer: {_line(error)}") from error
    backend.add_special_tokens([END_OF_TEXT])
    return Tokenizer(backend.to_str().encode(), str(folder))


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """A parsed spec: a size to train, or a tokenizer that exists."""

    text: str
    # Entries of the BPE to train; None where a tokenizer is given.
    train_size: int | None = None
    given: Tokenizer | None = None

    @classmethod
    def parse(cls, text: str) -> TokenizerSpec:
        """Read the spec and the files that it names. Raise TokenizerError, one clear line."""
        kind, _, argument = text.partition(":")
        if kind == "bpe":
            if not re.fullmatch(r"\d{1,9}", argument):
                raise TokenizerError(f"{text!r} is not a tokenizer: bpe: takes a vocabulary size, such as bpe:8192")
            _check_size(int(argument))
            return cls(text, train_size=int(argument))
        if kind == "gpt2" and argument:
            return cls(text, given=load_gpt2(Path(argument).expanduser()))
        if kind == "world" and argument:
            from trainer.data import world

            return cls(text, given=world.read(world.find(argument)))
        path = Path(text).expanduser()
        if path.is_dir():
            path = path / "tokenizer.json"
        if not path.is_file():
            known = "bpe:8192, gpt2:FOLDER, world:FILE or PATH/tokenizer.json"
            raise TokenizerError(f"{text!r} is not a tokenizer: it is none of {known}, and there is no such file")
        return cls(text, given=Tokenizer.load(path))


def _byte_level(model: models.Model) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def _check_size(size: int) -> None:
    if not SMALLEST_VOCABULARY <= size <= LARGEST_VOCABULARY:
        limits = f"between {SMALLEST_VOCABULARY} (the bytes and the end of text) and {LARGEST_VOCABULARY}"
        raise TokenizerError(f"A vocabulary of {size} entries is not possible: it has {limits}")


def _pieces(text: str) -> list[str]:
    """Cut a long text where the tokens stay the same: between a letter and the space after it.

    GPT-2's pattern, and those made after it, never put a letter and the space behind it into one word.
    """
    pieces, start = [], 0
    while len(text) - start > PIECE:
        cut = start + PIECE
        match = _LETTER_SPACE.search(text, cut)
        if match is None:
            break
        pieces.append(text[start : match.start() + 1])
        start = match.start() + 1
    pieces.append(text[start:])
    return pieces


_LETTER_SPACE = re.compile(r"[a-z] (?=[a-z])")


def _made_exact(content: bytes, name: str) -> bytes:
    """The file without what would change the text; the same bytes if there is nothing of that kind."""
    try:
        spec = json.loads(content)
    except ValueError as error:
        raise TokenizerError(f"{name} is not a tokenizer: {_line(error)}") from error
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
        raise TokenizerError(f"{name} is not a tokenizer.json")
    before = json.dumps(spec)
    spec.update(normalizer=None, truncation=None, padding=None)
    steps = [spec.get("pre_tokenizer") or {}]
    steps += steps[0].get("pretokenizers", [])
    for step in steps:
        if "add_prefix_space" in step:
            step["add_prefix_space"] = False
    if json.dumps(spec) == before:
        return content
    return json.dumps(spec, ensure_ascii=False, separators=(",", ":")).encode()


def _byte_lengths(backend: tokenizers.Tokenizer, spec: dict[str, Any], name: str) -> np.ndarray:
    """Bytes of each id. Raise TokenizerError where the vocabulary is not exact for every text."""
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    model, added = spec["model"], backend.get_added_tokens_decoder()
    vocabulary = backend.get_vocab(with_added_tokens=True)
    in_model = backend.get_vocab(with_added_tokens=False)
    if model.get("type") != "BPE" or "ByteLevel" not in json.dumps([spec["pre_tokenizer"], spec["decoder"]]):
        raise TokenizerError(f"{name} is not a byte-level BPE, so bits per byte could not be told exactly")
    if lacking := {_symbol(byte) for byte in range(256) if byte not in NOT_IN_UTF8} - set(in_model):
        raise TokenizerError(f"{name} has no token for {len(lacking)} of the bytes, so some text could not be encoded")
    if any(model.get(key) for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout")):
        raise TokenizerError(f"{name} marks or drops parts of words, so text would not come back exactly")
    lengths = np.zeros(max(vocabulary.values()) + 1, dtype=np.int64)
    for token, index in in_model.items():
        # One character of the alphabet for one byte; a special entry spelled in other characters is never produced.
        lengths[index] = len(token) if set(token) <= alphabet else 0
    for index, token in added.items():
        if not token.special and (token.lstrip or token.rstrip or token.single_word):
            raise TokenizerError(f"{name} has an entry {token.content!r} that swallows spaces around it")
        lengths[index] = 0 if token.special else len(token.content.encode())
    return lengths


def _symbol(byte: int) -> str:
    """How GPT-2's scheme writes a byte in a vocabulary: itself where that is visible, else a character from 256 on."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte) if byte in visible else chr(256 + sum(other not in visible for other in range(byte)))


_BYTES = {_symbol(byte): byte for byte in range(256)}


def _end_of_text(backend: tokenizers.Tokenizer, name: str) -> int:
    specials = {token.content: index for index, token in backend.get_added_tokens_decoder().items() if token.special}
    for candidate in END_OF_TEXT_NAMES:
        if candidate in specials:
            return specials[candidate]
    raise TokenizerError(f"{name} has no end-of-text token (one of {', '.join(END_OF_TEXT_NAMES)})")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
