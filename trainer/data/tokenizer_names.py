"""Check the name of a tokenizer without loading it: what a web process may do."""

from __future__ import annotations

import os
import re
from pathlib import Path

from trainer.errors import TokenizerError

SMALLEST_VOCABULARY = 257  # 256 bytes and the end of text
LARGEST_VOCABULARY = 1 << 20
KNOWN = "bpe:8192, gpt2:FOLDER, world:FILE or PATH/tokenizer.json"


def check_vocabulary_size(size: int) -> None:
    if not SMALLEST_VOCABULARY <= size <= LARGEST_VOCABULARY:
        limits = f"between {SMALLEST_VOCABULARY} (the bytes and the end of text) and {LARGEST_VOCABULARY}"
        raise TokenizerError(f"A vocabulary of {size} entries is not possible: it must be {limits}")


def check_tokenizer_name(text: str) -> None:
    """Raise TokenizerError, which lists the kinds that exist, unless `text` names a tokenizer."""
    kind, _, argument = text.partition(":")
    if kind == "bpe":
        if not re.fullmatch(r"\d{1,9}", argument):
            raise TokenizerError(f"{text!r} is not a tokenizer: bpe: takes a vocabulary size, such as bpe:8192")
        check_vocabulary_size(int(argument))
    elif kind == "world" and argument:
        find_vocabulary(argument)
    elif kind == "gpt2" and argument:
        if not Path(argument).expanduser().is_dir():
            raise TokenizerError(f"{text!r} is not a tokenizer: there is no folder {argument}")
    elif not find_tokenizer_file(text).is_file():
        raise TokenizerError(f"{text!r} is not a tokenizer: expected {KNOWN}, and there is no such file")


def find_tokenizer_file(text: str) -> Path:
    path = Path(text).expanduser()
    return path / "tokenizer.json" if path.is_dir() else path


def find_vocabulary(name: str) -> Path:
    """Return the path of a vocabulary file. A bare file name is also searched in the machine's tokenizer folders.

    A site names the tokenizer of a season once for all its nodes, whose paths differ.
    """
    path = Path(name).expanduser()
    cache = Path(os.environ.get("DAILYTRAIN_CACHE") or Path.home() / ".cache" / "dailytrain").expanduser()
    folders = [cache / "tokenizers"] if path.name == name else []
    if folders and (data := os.environ.get("DAILYTRAIN_DATA")):
        folders.insert(0, Path(data) / "tokenizers" / "rwkv-world")
    for candidate in (path, *(folder / name for folder in folders)):
        if candidate.is_file():
            return candidate
    where = f", neither there nor in {cache / 'tokenizers'}" if folders else ""
    raise TokenizerError(f"{name} cannot be read: No such file{where}")
