"""Byte-level tokenizers: decoding the tokens of a text returns it byte for byte.

Only byte-level vocabularies (GPT-2's scheme) are accepted: each byte is a token, so no text is unknown. The bytes of
each token are known, so that bits per byte can be compared between tokenizers. What changes the text before it is split
(a normalizer, an added leading space) is removed when a file is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from trainer.data.errors import TokenizerError, describe_exception
from trainer.data.fast_encoder import build_fast_encoder
from trainer.data.shards import write_file
from trainer.text_files import decode_text

WORLD_PREFIX = b'{"model": {"type": "World"}'  # the first bytes of a saved `trainer.data.world.WorldTokenizer`
END_OF_TEXT = "<|endoftext|>"
# Names in other model families, in order of preference.
END_OF_TEXT_NAMES = (
    *(END_OF_TEXT, "<|end_of_text|>", "<|begin_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>"),
    *("<|im_end|>", "<|eot_id|>", "<|return|>", "<|end|>"),  # of chats
)
NOT_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
# Longer texts are encoded in pieces of about this size, so that all cores share a book and memory stays bounded.
PIECE_CHARACTERS = 1 << 16
GROUP_CHARACTERS = 1 << 21  # characters passed to the library at once


class Tokenizer:
    """A byte-level tokenizer and the content of its file.

    Text never becomes a special token: "<|endoftext|>" in a document is thirteen ordinary characters.
    """

    def __init__(self, content: bytes, name: str = "The tokenizer") -> None:
        try:
            self._backend = tokenizers.Tokenizer.from_str(decode_text(content))
        except Exception as error:  # the library raises bare Exception
            raise TokenizerError(f"{name} is not a tokenizer: {describe_exception(error)}") from error
        self._backend.encode_special_tokens = True
        self._content = content
        self._lengths = _compute_byte_lengths(self._backend, json.loads(content), name)
        self.end_of_text = _find_end_of_text(self._backend, name)
        self.sha256 = hashlib.sha256(content).hexdigest()

    @property
    def vocabulary_size(self) -> int:
        """The largest id plus one: the rows of an embedding."""
        return len(self._lengths)

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without end-of-text tokens."""
        if self._fast_encoder is not None:
            return [self._fast_encoder(text) for text in texts]
        texts_in_pieces = [split_text(text) for text in texts]
        encoded = iter(self._encode_pieces([piece for pieces in texts_in_pieces for piece in pieces]))
        return [[token for ids in islice(encoded, len(pieces)) for token in ids] for pieces in texts_in_pieces]

    @cached_property
    def _fast_encoder(self) -> Callable[[str], list[int]] | None:
        def to_bytes(token: str) -> bytes:
            return bytes(_BYTES[symbol] for symbol in token)

        return build_fast_encoder(self._backend, json.loads(self._content), to_bytes)

    def _encode_pieces(self, pieces: list[str]) -> list[list[int]]:
        """Encode in groups, since the library holds about 100 bytes for each id."""
        encoded: list[list[int]] = []
        group: list[str] = []
        size = 0
        for piece in pieces:
            group.append(piece)
            size += len(piece)
            if size >= GROUP_CHARACTERS or len(group) + len(encoded) == len(pieces):
                batch = self._backend.encode_batch_fast(group, add_special_tokens=False)
                encoded.extend(encoding.ids for encoding in batch)
                group, size = [], 0
        return encoded

    def decode(self, ids: Iterable[int]) -> str:
        """Decode without special tokens. Bytes that are not UTF-8, such as a split character, become U+FFFD."""
        return self._backend.decode(list(ids), skip_special_tokens=True)

    def get_token_bytes(self, token: int) -> bytes:
        """Return a token's bytes, possibly a part of a character; b"" for special tokens and unused ids."""
        if not self._lengths[token]:
            return b""
        symbols = self._backend.id_to_token(token)
        if token in self._backend.get_added_tokens_decoder():
            return symbols.encode()
        return bytes(_BYTES[symbol] for symbol in symbols)

    def byte_lengths(self) -> np.ndarray:
        """Return the number of bytes of each token, [V] int64; 0 for special tokens and unused ids.

        The sum over the tokens of a text is the length of its UTF-8.
        """
        return self._lengths.copy()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file with this tokenizer's sha256, whole or not at all."""
        write_file(Path(path), self._content)


def build_byte_level(model: models.Model) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def split_text(text: str) -> list[str]:
    """Split a long text between a letter and the following space, which does not change its tokens.

    GPT-2's pattern and its successors never put a letter and the space after it into one word.
    """
    pieces, start = [], 0
    while len(text) - start > PIECE_CHARACTERS:
        cut = start + PIECE_CHARACTERS
        match = _LETTER_SPACE.search(text, cut)
        if match is None:
            break
        pieces.append(text[start : match.start() + 1])
        start = match.start() + 1
    pieces.append(text[start:])
    return pieces


_LETTER_SPACE = re.compile(r"[a-z] (?=[a-z])")


def remove_normalization(content: bytes, name: str) -> bytes:
    """Remove what changes the text from a tokenizer file; return the same bytes if there is nothing to remove."""
    try:
        spec = json.loads(content)
    except ValueError as error:
        raise TokenizerError(f"{name} is not a tokenizer: {describe_exception(error)}") from error
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


def _compute_byte_lengths(backend: tokenizers.Tokenizer, spec: dict[str, Any], name: str) -> np.ndarray:
    """Return the number of bytes of each id. Raise TokenizerError if the vocabulary cannot reproduce every text."""
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    model, added = spec["model"], backend.get_added_tokens_decoder()
    vocabulary = backend.get_vocab(with_added_tokens=True)
    in_model = backend.get_vocab(with_added_tokens=False)
    if model.get("type") != "BPE" or "ByteLevel" not in json.dumps([spec["pre_tokenizer"], spec["decoder"]]):
        raise TokenizerError(f"{name} is not a byte-level BPE, so bits per byte could not be computed exactly")
    if missing := {_byte_to_symbol(byte) for byte in range(256) if byte not in NOT_IN_UTF8} - set(in_model):
        raise TokenizerError(f"{name} has no token for {len(missing)} of the bytes, so some text could not be encoded")
    if any(model.get(key) for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout")):
        raise TokenizerError(f"{name} marks or drops parts of words, so text could not be reproduced exactly")
    lengths = np.zeros(max(vocabulary.values()) + 1, dtype=np.int64)
    for token, index in in_model.items():
        # A character of the alphabet is a byte. An entry with other characters is never produced.
        lengths[index] = len(token) if set(token) <= alphabet else 0
    for index, token in added.items():
        if not token.special and (token.lstrip or token.rstrip or token.single_word):
            raise TokenizerError(f"{name} has an entry {token.content!r} that strips the spaces around it")
        lengths[index] = 0 if token.special else len(token.content.encode())
    return lengths


def _byte_to_symbol(byte: int) -> str:
    """Return GPT-2's symbol for a byte: the character itself if visible, else a character from 256 on."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte) if byte in visible else chr(256 + sum(other not in visible for other in range(byte)))


_BYTES = {_byte_to_symbol(byte): byte for byte in range(256)}


def _find_end_of_text(backend: tokenizers.Tokenizer, name: str) -> int:
    specials = {token.content: index for index, token in backend.get_added_tokens_decoder().items() if token.special}
    for candidate in END_OF_TEXT_NAMES:
        if candidate in specials:
            return specials[candidate]
    raise TokenizerError(f"{name} has no end-of-text token (one of {', '.join(END_OF_TEXT_NAMES)})")
