"""Tokenizer specs such as `bpe:8192`, and loading of saved tokenizers.

A spec names a tokenizer:

    bpe:8192            trained on the corpus, with 8192 entries in all
    gpt2:FOLDER         encoder.json and vocab.bpe, as OpenAI published them (or a tokenizer.json)
    world:FILE          RWKV's World vocabulary as its authors published it, see `trainer.data.world`
    PATH/tokenizer.json  any byte-level tokenizer in the format of the `tokenizers` library
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tokenizers import models

from trainer.data.errors import TokenizerError, describe_exception
from trainer.data.tokenizer import (
    END_OF_TEXT,
    WORLD_PREFIX,
    Tokenizer,
    build_byte_level,
    remove_normalization,
)
from trainer.data.tokenizer_names import check_tokenizer_name, find_tokenizer_file, find_vocabulary


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Load a saved tokenizer of any kind."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror or error}") from error
    if content.startswith(WORLD_PREFIX):
        from trainer.data.world import WorldTokenizer

        return WorldTokenizer(content, path.name)
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
            from trainer.data.world import load_vocabulary

        return cls(text, tokenizer=load_vocabulary(find_vocabulary(argument)))
        return cls(text, tokenizer=load_tokenizer(find_tokenizer_file(text)))
