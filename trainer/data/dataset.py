"""Prepared datasets: packed tokens to train on, text to score on, and a hash of both.

manifest.json         written last: counts, hashes, corpus and limit
tokenizer.json
train/00000.bin ...   little-endian uint16 or uint32; each document follows an end-of-text token. Format 2 is always
                      uint32: the highest bit marks tokens of a prompt, which carry no loss
dev/00000.bin
test/documents.jsonl  {"id", "text"} one per line

A copy may lack the folders of splits: nodes train without `test` and score without `train`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
from filelock import FileLock, Timeout

from trainer.data.corpora import Document, find_corpus
from trainer.data.shards import (
    FORMAT,
    FORMAT_WITH_PROMPTS,
    MANIFEST,
    PREPARATION_VERSION,
    SPLITS,
    Shard,
    TokenStream,
    compute_content_hash,
    get_token_dtype,
)
from trainer.data.tokenizer import Tokenizer, TokenizerSpec, load_tokenizer
from trainer.errors import DamagedDatasetError, DatasetError
from trainer.protocol.files import hash_file

if TYPE_CHECKING:
    from rich.console import Console


class Dataset:
    """A dataset folder with a valid manifest and files of the right sizes."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder, self.manifest = folder, manifest

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Dataset:
        """Check the manifest's hash, the tokenizer's hash and every file's size. `verify` also hashes the files."""
        dataset = cls(Path(folder), _read_manifest(Path(folder)))
        if _hash_file(dataset.folder / "tokenizer.json") != dataset.manifest["tokenizer"]["sha256"]:
            raise DatasetError(f"{dataset.folder}/tokenizer.json is not the tokenizer that the manifest names")
        for split in SPLITS:
            if (dataset.folder / split).exists():
                dataset._check_sizes(split)
        return dataset

    @property
    def hash(self) -> str:
        return self.manifest["hash"]

    @property
    def has_test(self) -> bool:
        """False for the copies that nodes train on."""
        return (self.folder / "test").exists()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.folder / "tokenizer.json")

    def open_shards(self, split: str) -> list[Shard]:
        """Return the token files of train or dev."""
        assert split in ("train", "dev"), f"the {split} split has no tokens on disk"
        self._check_sizes(split)
        has_prompts = self.manifest["format"] == FORMAT_WITH_PROMPTS
        dtype = get_token_dtype(self.manifest["tokenizer"]["vocabulary_size"], has_prompts)
        rows = self.manifest["splits"][split]["shards"]
        return [Shard(self.folder / row["path"], dtype, row["tokens"]) for row in rows]

    def open_stream(self, split: str) -> TokenStream:
        return TokenStream(self.open_shards(split))

    def verify(self, splits: Sequence[str] = SPLITS, rank: int = 0, ranks: int = 1) -> None:
        """Compare the sha256 of every file of these splits with the manifest. Raise DamagedDatasetError on a mismatch.

        A run verifies its training data at every start, so that the dataset hash in `run.json` is proven. Four threads
        read about 1 GB/s. With several ranks each one reads its share of the files.
        """
        shards = [
            shard
            for split in splits
            for shard in self.manifest["splits"][split]["shards"]
            if (self.folder / split).exists()
        ]
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(self._verify_shard, shards[rank::ranks]))  # raises the first error

    def _verify_shard(self, shard: dict[str, Any]) -> None:
        path = self.folder / shard["path"]
        if _hash_file(path) != shard["sha256"]:
            raise DamagedDatasetError(path, "is damaged: its sha256 is not the manifest's")

    def _check_sizes(self, split: str) -> None:
        for shard in self.manifest["splits"][split]["shards"]:
            path = self.folder / shard["path"]
            try:
                size = path.stat().st_size
            except OSError as error:
                raise DamagedDatasetError(path, "is missing from the dataset") from error
            if size != shard["size"]:
                raise DamagedDatasetError(path, f"is damaged: it has {size} bytes instead of {shard['size']}")


def iterate_test_documents(dataset: Dataset) -> Iterator[Document]:
    """Yield the documents of the test split. A missing split raises DatasetError at the call."""
    if not dataset.has_test:
        raise DatasetError(f"{dataset.folder} has no test split: it is a copy for training only")
    return _iterate_documents(dataset)


def _iterate_documents(dataset: Dataset) -> Iterator[Document]:
    for shard in dataset.manifest["splits"]["test"]["shards"]:
        path, line_number = dataset.folder / shard["path"], 0
        try:
            with path.open(encoding="utf-8", newline="\n") as lines:
                for line in lines:
                    record = json.loads(line)
                    yield Document(record["id"], record["text"])
                    line_number += 1
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DatasetError(f"{path} is damaged after line {line_number}: {error}") from error


def get_cache_folder() -> Path:
    """Return the folder of prepared datasets, in $DAILYTRAIN_CACHE or else ~/.cache/dailytrain."""
    home = os.environ.get("DAILYTRAIN_CACHE") or Path.home() / ".cache" / "dailytrain"
    return Path(home).expanduser() / "datasets"


def prepare_dataset(
    corpus: str,
    tokenizer: str = "bpe:8192",
    folder: str | os.PathLike[str] | None = None,
    limit_bytes: int | None = None,
    progress: bool = False,
) -> Dataset:
    """Return the dataset of this corpus, tokenizer and limit; prepare it if it does not exist yet.

    `folder` is its destination, by default one in the cache. A repeated request returns the existing dataset; a changed
    file or another tokenizer makes a new one. Raise CorpusError, TokenizerError or DatasetError. Several processes may
    call it at once: one prepares, the others wait. `progress`: show it on standard error.
    """
    if limit_bytes is not None and limit_bytes <= 0:
        raise DatasetError(f"The limit is {limit_bytes} bytes, but it must be greater than 0")
    spec, source = TokenizerSpec.parse(tokenizer), find_corpus(corpus)
    key = _compute_cache_key(corpus, source.fingerprint(), spec, limit_bytes)
    origin = {"corpus": corpus, "limit_bytes": limit_bytes, "key": key}
    target = Path(folder) if folder is not None else get_cache_folder() / f"{corpus.partition(':')[0]}-{key[:16]}"
    target, find = target.absolute(), _find_in_folder if folder is not None else _find_in_cache
    if found := find(target, key):
        return found
    from rich.console import Console  # this and what prepares texts are loaded only here

    from trainer.data.preparation import build_dataset

    console = Console(stderr=True, soft_wrap=True, highlight=False, quiet=not progress)
    _create_parent(target)
    with _lock(target, console):
        found = find(target, key)  # another process may have prepared it in the meantime
        if found is None:
            if folder is None:
                shutil.rmtree(target, ignore_errors=True)  # damaged, see `_find_in_cache`
            build_dataset(target, source, spec, limit_bytes, origin, console)
            found = Dataset.open(target)
    return found


@contextmanager
def _lock(target: Path, console: Console) -> Iterator[None]:
    """Hold the lock of a destination. The kernel releases it when its holder dies."""
    path = target.with_name(f".{target.name}.lock")
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        console.print(f"Another process is preparing {target.name}; waiting for it ...", markup=False)
        lock.acquire()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # a waiting FileLock notices the unlinked file and creates a new one
        lock.release()


def _compute_cache_key(corpus: str, fingerprint: dict[str, Any], spec: TokenizerSpec, limit_bytes: int | None) -> str:
    request = {
        "format": FORMAT,
        "preparation": PREPARATION_VERSION,
        "corpus": [corpus, fingerprint],
        "tokenizer": spec.tokenizer.sha256 if spec.tokenizer else [spec.text, tokenizers.__version__],
        "limit_bytes": limit_bytes,
    }
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def _create_parent(target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatasetError(f"{target.parent} cannot be created: {error.strerror or error}") from error
    if not os.access(target.parent, os.W_OK):
        raise DatasetError(f"{target.parent} is not writable")


def _find_in_folder(target: Path, key: str) -> Dataset | None:
    """Return the dataset in a user's folder, None if it is empty. Never overwrite anything: raise DatasetError."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return None
    if not (target / MANIFEST).is_file():
        raise DatasetError(f"{target} exists and is not a dataset: name another folder")
    dataset = Dataset.open(target)
    if dataset.manifest.get("key") != key:
        raise DatasetError(f"{target} holds another dataset ({dataset.manifest.get('corpus')}): name another folder")
    return dataset


def _find_in_cache(target: Path, key: str) -> Dataset | None:
    """Return the dataset in the cache, None if it is absent or damaged and has to be prepared again."""
    try:
        dataset = Dataset.open(target)
    except DatasetError:
        return None
    return dataset if dataset.manifest.get("key") == key else None


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise DatasetError(f"{folder} is not a dataset: it has no {MANIFEST}")
    try:
        manifest = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") not in (FORMAT, FORMAT_WITH_PROMPTS):
        raise DatasetError(f"{path} is not of format {FORMAT} or {FORMAT_WITH_PROMPTS}, which this version reads")
    try:
        correct = compute_content_hash(manifest) == manifest["hash"] and set(manifest["splits"]) == set(SPLITS)
        paths = [shard["path"] for split in manifest["splits"].values() for shard in split["shards"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise DatasetError(f"{path} is damaged: it lacks {error}") from error
    if not correct or any(Path(name).is_absolute() or ".." in Path(name).parts for name in paths):
        raise DatasetError(f"{path} is damaged: its hash does not match its content")
    return manifest


def _hash_file(path: Path) -> str:
    try:
        return hash_file(path)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror or error}") from error
