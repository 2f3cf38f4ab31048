"""RWKV's World tokenizer: a list of byte strings, and of those that fit the longest is taken, each time.

Its file has a line for each token, `ID LITERAL LENGTH`: a Python literal, text or bytes, and how many bytes it has
(https://github.com/BlinkDL/ChatRWKV, tokenizer/). Id 0 is the end of text. All 256 bytes are tokens, so every text
comes back byte for byte, and any other bytes would, too.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.tokenizer import WORLD, Tokenizer, TokenizerError

PADDING = 64
"""Models have embeddings for a multiple of so many tokens: 65536 for the published 65529 and the end of text."""

Node = list[Any]
"""A place in the trie: what follows a byte, as a dict of nodes or None, and the token that ends here, or 0."""


class WorldTokenizer(Tokenizer):
    """Saved as JSON, `{"model": {"type": "World"}, "tokens": [[ID, HEX], ...]}`, and loaded as any other tokenizer."""

    def __init__(self, content: bytes, name: str = "The tokenizer") -> None:
        try:
            self._tokens = {int(number): bytes.fromhex(token) for number, token in json.loads(content)["tokens"]}
        except (ValueError, TypeError, KeyError) as error:
            raise TokenizerError(f"{name} is not a World tokenizer: its tokens cannot be read") from error
        if lacking := 256 - len({token for token in self._tokens.values() if len(token) == 1}):
            raise TokenizerError(f"{name} has no token for {lacking} of the bytes, so some text could not be encoded")
        if min(self._tokens) < 1 or max(self._tokens) > 1 << 20 or b"" in self._tokens.values():
            raise TokenizerError(f"{name} has an empty token, or an id below 1 or beyond {1 << 20}")
        self._content = content
        self._lengths = np.zeros(-(-(max(self._tokens) + 1) // PADDING) * PADDING, dtype=np.int64)
        for number, token in self._tokens.items():
            self._lengths[number] = len(token)
        self.end_of_text = 0
        self.sha256 = hashlib.sha256(content).hexdigest()
        self._root: Node | None = None

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, without end-of-text tokens."""
        return [self.encode_bytes(text.encode()) for text in texts]

    def encode_bytes(self, data: bytes) -> list[int]:
        """Token ids of any bytes."""
        if self._root is None:
            self._root = trie(self._tokens)
        first: dict[int, Node] = self._root[0]
        found: list[int] = []
        place, end = 0, len(data)
        while place < end:
            at = place
            following: dict[int, Node] | None = first
            # Every byte is a token: the walk finds one at its first step.
            while following is not None and at < end and (node := following.get(data[at])) is not None:
                at += 1
                following = node[0]
                if node[1]:
                    token, place = node[1], at
            found.append(token)
        return found

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(map(self.bytes_of, ids)).decode(errors="replace")

    def bytes_of(self, token: int) -> bytes:
        return self._tokens.get(token, b"")


def trie(tokens: dict[int, bytes]) -> Node:
    """Return the root of all tokens."""
    root: Node = [{}, 0]
    for number, token in tokens.items():
        node = root
        for byte in token:
            if node[0] is None:
                node[0] = {}
            node = node[0].setdefault(byte, [None, 0])
        node[1] = number
    return root


def find(name: str) -> Path:
    """Return where a vocabulary's file is: there, or, by its name alone, where a node keeps such files.

    A site names the tokenizer of a season once for all its nodes, which have no path in common.
    """
    given = Path(name).expanduser()
    kept = [Path(data) / "tokenizers" / "rwkv-world"] if (data := os.environ.get("DAILYTRAIN_DATA")) else []
    cache = Path(os.environ.get("DAILYTRAIN_CACHE") or Path.home() / ".cache" / "dailytrain").expanduser()
    places = [given, *(folder / name for folder in (*kept, cache / "tokenizers") if given.name == name)]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        where = f", nor is it in {cache / 'tokenizers'}, where this machine would keep it" if given.name == name else ""
        raise TokenizerError(f"{name} cannot be read: No such file{where}")
    return found


def read(file: Path) -> WorldTokenizer:
    """Read the published file. Raise TokenizerError, one clear line."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise TokenizerError(f"{file} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{file} is not a World vocabulary: it is not UTF-8 text") from error
    tokens: dict[int, bytes] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            identifier, token = entry(line, f"{file.name}, line {number},")
            if identifier in tokens:
                raise TokenizerError(f"{file.name}, line {number}, gives the id {identifier} again")
            tokens[identifier] = token
    if len(set(tokens.values())) < max(len(tokens), 1):
        raise TokenizerError(f"{file.name} has no tokens, or one of them twice")
    listed = json.dumps([[number, token.hex()] for number, token in tokens.items()], separators=(",", ":"))
    return WorldTokenizer(WORLD + f', "tokens": {listed}}}'.encode(), file.name)


def entry(line: str, place: str) -> tuple[int, bytes]:
    """Read a line: the token's id and its bytes."""
    identifier, _, rest = line.strip().partition(" ")
    literal, _, length = rest.rpartition(" ")
    try:
        value = ast.literal_eval(literal)
        token = value.encode() if isinstance(value, str) else value
        good = isinstance(token, bytes) and len(token) == int(length)
        number = int(identifier)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        good = False
    if not good:
        raise TokenizerError(f"{place} is not an entry of a World vocabulary: an id, a token and its length in bytes")
    return number, token
