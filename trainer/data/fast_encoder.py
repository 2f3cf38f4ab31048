"""Encode with tiktoken, about five times faster than with `tokenizers`, to the same ids.

tiktoken joins the two neighbors whose concatenation has the lowest rank; BPE joins the pair that stands first in the
list of merges. With ids as ranks both do the same in every text if later merges have larger ids, and if BPE turns the
bytes of each token into that one token: up to the rank of a token its bytes are then joined in one way only.
`build_fast_encoder` checks both conditions for the whole vocabulary (0.1 s for 32,768 entries).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import tokenizers
from tokenizers import pre_tokenizers

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
