"""Byte-level tokenizers: decoding the tokens of a text returns it byte for byte.

Only byte-level vocabularies (GPT-2's scheme) are accepted: each byte is a token, so no text is unknown. The bytes of
each token are known, so that bits per byte can be compared between tokenizers. What changes the text before it is split
(a normalizer, an added leading space) is removed when a file is loaded.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from trainer.data.shards import write_file
from trainer.data.tokenizer_names import check_tokenizer_name, find_tokenizer_file, find_vocabulary
from trainer.errors import TokenizerError, describe_exception
from trainer.text_files import decode_text

# --- fast encoding with tiktoken --------------------------------------------------------------------------------------
# tiktoken joins the two neighbors whose concatenation has the lowest rank; BPE joins the pair that stands first in the
# list of merges. With ids as ranks both do the same in every text if later merges have larger ids, and if BPE turns the
# bytes of each token into that one token: up to the rank of a token its bytes are then joined in one way only.
# `build_fast_encoder` checks both conditions for the whole vocabulary (0.1 s for 32,768 entries).


PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
"""GPT-2's words as tiktoken writes them. Both libraries put every Unicode character into the same class."""
LONG_SPACE = 1 << 19
"""Characters of white space in a row that are left to `backend`: tiktoken panics at a million before a word."""
LONG_SPACE_PATTERN = re.compile(rf"(?<!\s)\s{{{LONG_SPACE}}}")
PLAIN_MODEL = {"type": "BPE", "dropout": None, "unk_token": None, "byte_fallback": False, "ignore_merges": False}


def build_fast_encoder(
    backend: tokenizers.Tokenizer, spec: dict[str, Any], to_bytes: Callable[[str], bytes]
) -> Callable[[str], list[int]] | None:
    """Return a function with the ids of `backend`, None if tiktoken is not installed or might give other ids.

    `spec` is the content of the tokenizer's file. `to_bytes` returns the bytes of an entry of its vocabulary.
    """
    try:
        import tiktoken
    except ImportError:  # a node with an older environment
        return None
    model, splitter = spec["model"], spec.get("pre_tokenizer") or {}
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for token, index in model["vocab"].items() if set(token) <= alphabet}
    added = backend.get_added_tokens_decoder()
    for index, token in added.items():
        if not token.special:  # splits the text before the model sees it
            return None
        if vocabulary.get(token.content) == index:
            del vocabulary[token.content]
    if splitter.get("type") != "ByteLevel" or splitter.get("add_prefix_space") or not splitter.get("use_regex", True):
        return None
    if spec.get("normalizer") or any(model.get(key, value) != value for key, value in PLAIN_MODEL.items()):
        return None
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    if not all(first < second for first, second in pairwise(model["vocab"]["".join(merge)] for merge in merges)):
        return None
    if any([part.id for part in backend.model.tokenize(token)] != [index] for token, index in vocabulary.items()):
        return None
    ranks = {to_bytes(token): index for token, index in vocabulary.items()}
    encoding = tiktoken.Encoding("dataset", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})

    def encode(text: str) -> list[int]:
        if len(text) >= LONG_SPACE and LONG_SPACE_PATTERN.search(text):
            return backend.encode(text, add_special_tokens=False).ids
        return encoding.encode_ordinary(text)

    return encode


WORLD = "trainer.data.world"  # imported where a World vocabulary is used
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


# --- names of tokenizers, and saved ones ------------------------------------------------------------------------------
# A spec names a tokenizer:
#
#     bpe:8192            trained on the corpus, with 8192 entries in all
#     gpt2:FOLDER         encoder.json and vocab.bpe, as OpenAI published them (or a tokenizer.json)
#     world:FILE          RWKV's World vocabulary as its authors published it, see `trainer.data.world`
#     PATH/tokenizer.json  any byte-level tokenizer in the format of the `tokenizers` library


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Load a saved tokenizer of any kind."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror or error}") from error
    if content.startswith(WORLD_PREFIX):
        tokenizer: Tokenizer = importlib.import_module(WORLD).WorldTokenizer(content, path.name)
        return tokenizer
    return Tokenizer(remove_normalization(content, path.name), path.name)


def load_gpt2(folder: Path) -> Tokenizer:
    """Load GPT-2's tokenizer from encoder.json and vocab.bpe, else from tokenizer.json."""
    vocabulary, merges = folder / "encoder.json", folder / "vocab.bpe"
    if not (vocabulary.is_file() and merges.is_file()):
        if (folder / "tokenizer.json").is_file():
            return load_tokenizer(folder / "tokenizer.json")
        raise TokenizerError(f"{folder} contains neither encoder.json with vocab.bpe nor tokenizer.json")
    try:
        backend = build_byte_level(models.BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{folder} does not contain GPT-2's tokenizer: {describe_exception(error)}") from error
    backend.add_special_tokens([END_OF_TEXT])
    return Tokenizer(backend.to_str().encode(), str(folder))


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """A parsed spec: the size of a tokenizer to train, or an existing tokenizer."""

    text: str
    train_size: int | None = None  # entries of the BPE to train; None with an existing tokenizer
    tokenizer: Tokenizer | None = None

    @classmethod
    def parse(cls, text: str) -> TokenizerSpec:
        """Parse a spec and load the files that it names."""
        check_tokenizer_name(text)
        kind, _, argument = text.partition(":")
        if kind == "bpe":
            return cls(text, train_size=int(argument))
        if kind == "gpt2" and argument:
            return cls(text, tokenizer=load_gpt2(Path(argument).expanduser()))
        if kind == "world" and argument:
            world = importlib.import_module(WORLD)
            return cls(text, tokenizer=world.load_vocabulary(find_vocabulary(argument)))
        return cls(text, tokenizer=load_tokenizer(find_tokenizer_file(text)))
