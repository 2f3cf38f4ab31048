"""RWKV's World tokenizer: a list of byte strings with greedy longest-match encoding.

The published file has a line for each token, `ID LITERAL LENGTH`: a Python literal (text or bytes) and its number of
bytes (https://github.com/BlinkDL/ChatRWKV, tokenizer/). Id 0 is the end of text. All 256 bytes are tokens, so any bytes
are reproduced exactly.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.tokenizer import WORLD_PREFIX, Tokenizer
from trainer.errors import TokenizerError
from trainer.text_files import TextError, decode_text

VOCABULARY_MULTIPLE = 64
"""The vocabulary size is a multiple of this: 65536 for the published 65529 tokens and the end of text."""

TrieNode = list[Any]  # [children by byte (a dict, None if there are none), id of the token that ends here (0 if none)]


class WorldTokenizer(Tokenizer):
    """A World vocabulary, saved as JSON: `{"model": {"type": "World"}, "tokens": [[ID, HEX], ...]}`."""

    def __init__(self, content: bytes, name: str = "The tokenizer") -> None:
        try:
            self._tokens = {int(number): bytes.fromhex(token) for number, token in json.loads(content)["tokens"]}
        except (ValueError, TypeError, KeyError) as error:
            raise TokenizerError(f"{name} is not a World tokenizer: its tokens cannot be read") from error
        if missing := 256 - len({token for token in self._tokens.values() if len(token) == 1}):
            raise TokenizerError(f"{name} has no token for {missing} of the bytes, so some text could not be encoded")
        if min(self._tokens) < 1 or max(self._tokens) > 1 << 20 or b"" in self._tokens.values():
            raise TokenizerError(f"{name} has an empty token, or an id below 1 or beyond {1 << 20}")
        self._content = content
        self._lengths = np.zeros(
            -(-(max(self._tokens) + 1) // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE, dtype=np.int64
        )
        for number, token in self._tokens.items():
            self._lengths[number] = len(token)
        self.end_of_text = 0
        self.sha256 = hashlib.sha256(content).hexdigest()
        self._root: TrieNode | None = None

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without end-of-text tokens."""
        return [self.encode_bytes(text.encode()) for text in texts]

    def encode_bytes(self, data: bytes) -> list[int]:
        """Return the token ids of any bytes."""
        if self._root is None:
            self._root = build_trie(self._tokens)
        first: dict[int, TrieNode] = self._root[0]
        ids: list[int] = []
        start, end = 0, len(data)
        while start < end:
            position = start
            children: dict[int, TrieNode] | None = first
            # Every byte is a token, so the first step finds one.
            while children is not None and position < end and (node := children.get(data[position])) is not None:
                position += 1
                children = node[0]
                if node[1]:
                    token, start = node[1], position
            ids.append(token)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(map(self.get_token_bytes, ids)).decode(errors="replace")

    def get_token_bytes(self, token: int) -> bytes:
        return self._tokens.get(token, b"")


def build_trie(tokens: dict[int, bytes]) -> TrieNode:
    """Return the root of a trie of all tokens."""
    root: TrieNode = [{}, 0]
    for number, token in tokens.items():
        node = root
        for byte in token:
            if node[0] is None:
                node[0] = {}
            node = node[0].setdefault(byte, [None, 0])
        node[1] = number
    return root


def load_vocabulary(file: Path) -> WorldTokenizer:
    """Load a vocabulary in the published format."""
    try:
        lines = decode_text(file.read_bytes()).split("\n")
    except OSError as error:
        raise TokenizerError(f"{file} cannot be read: {error.strerror or error}") from error
    except TextError as error:
        raise TokenizerError(f"{file} is not a World vocabulary: {error}") from error
    tokens: dict[int, bytes] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            identifier, token = _parse_entry(line, f"{file.name}, line {number},")
            if identifier in tokens:
                raise TokenizerError(f"{file.name}, line {number}, repeats the id {identifier}")
            tokens[identifier] = token
    if len(set(tokens.values())) < max(len(tokens), 1):
        raise TokenizerError(f"{file.name} has no tokens, or one of them twice")
    pairs = json.dumps([[number, token.hex()] for number, token in tokens.items()], separators=(",", ":"))
    return WorldTokenizer(WORLD_PREFIX + f', "tokens": {pairs}}}'.encode(), file.name)


def _parse_entry(line: str, location: str) -> tuple[int, bytes]:
    """Return the id and the bytes of a token. `location` of the line is for the error."""
    identifier, _, rest = line.strip().partition(" ")
    literal, _, length = rest.rpartition(" ")
    try:
        value = ast.literal_eval(literal)
        token = value.encode() if isinstance(value, str) else value
        is_valid = isinstance(token, bytes) and len(token) == int(length)
        number = int(identifier)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        is_valid = False
    if not is_valid:
        raise TokenizerError(
            f"{location} is not an entry of a World vocabulary: an id, a token and its length in bytes"
        )
    return number, token
