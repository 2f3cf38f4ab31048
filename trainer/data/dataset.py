"""A prepared dataset: packed tokens to train on, text to be scored on, and a hash that pins both.

manifest.json         written last: counts, hashes, where it came from
tokenizer.json
train/00000.bin ...   little-endian uint16 or uint32; every document after an end-of-text token. In format 2 always
                      uint32, with the highest bit set in the tokens of a prompt, which are read and not learned
dev/00000.bin
test/documents.jsonl  {"id", "text"} one per line; absent where only training happens
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from trainer.data.corpora import Document, find_corpus
from trainer.data.locks import locked
from trainer.data.preparation import FORMAT, MANIFEST, PROMPTED, SPLITS, build, content_hash
from trainer.data.progress import Reporter
from trainer.data.shards import DamagedDataset, DatasetError, Shard, TokenStream, damaged, token_type
from trainer.data.tokenizer import Tokenizer, TokenizerSpec

__all__ = ["DamagedDataset", "Dataset", "DatasetError", "cache_folder", "held_out", "prepare"]


class Dataset:
    """A dataset folder whose manifest was read and whose files are there with the right sizes."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder, self.manifest = folder, manifest

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Dataset:
        """Check cheaply: the manifest's own hash, the tokenizer's, and every file's size. `verify` reads it all."""
        dataset = cls(Path(folder), _read_manifest(Path(folder)))
        if _sha256(dataset.folder / "tokenizer.json") != dataset.manifest["tokenizer"]["sha256"]:
            raise DatasetError(f"{dataset.folder}/tokenizer.json is not the tokenizer that the manifest names")
        for split in SPLITS:
            if split != "test" or dataset.has_test:
                dataset._check_sizes(split)
        return dataset

    @property
    def hash(self) -> str:
        return self.manifest["hash"]

    @property
    def has_test(self) -> bool:
        """Nodes train on a copy without the test split."""
        return (self.folder / "test").exists()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.folder / "tokenizer.json")

    def tokens(self, split: str) -> list[Shard]:
        """The shards of train or dev."""
        assert split in ("train", "dev"), f"the {split} split has no tokens on disk"
        self._check_sizes(split)
        prompted = self.manifest["format"] == PROMPTED
        dtype = token_type(self.manifest["tokenizer"]["vocabulary_size"], prompted)
        rows = self.manifest["splits"][split]["shards"]
        return [Shard(self.folder / row["path"], dtype, row["tokens"]) for row in rows]

    def stream(self, split: str) -> TokenStream:
        return TokenStream(self.tokens(split))

    def verify(self, splits: Sequence[str] = tuple(SPLITS), rank: int = 0, ranks: int = 1) -> None:
        """Read every file of these splits and compare its sha256. Raise DatasetError at the first that differs.

        A run does so with what it trains on each time it starts: what `run.json` calls the dataset's hash is then what
        it read. Some files at a time, it takes about as long as the disk needs: a second for a gigabyte. With several
        ranks each reads its share.
        """
        shards = [
            shard
            for split in splits
            for shard in self.manifest["splits"][split]["shards"]
            if split != "test" or self.has_test
        ]
        with ThreadPoolExecutor(max_workers=4) as pool:
            for _ in pool.map(self._verify, shards[rank::ranks]):
                pass

    def _verify(self, shard: dict[str, Any]) -> None:
        path = self.folder / shard["path"]
        if _sha256(path) != shard["sha256"]:
            raise damaged(path, "is damaged: its sha256 is not the manifest's")

    def _check_sizes(self, split: str) -> None:
        for shard in self.manifest["splits"][split]["shards"]:
            path = self.folder / shard["path"]
            try:
                size = path.stat().st_size
            except OSError as error:
                raise damaged(path, "is missing from the dataset") from error
            if size != shard["size"]:
                raise damaged(path, f"is damaged: it has {size} bytes instead of {shard['size']}")


def held_out(dataset: Dataset) -> Iterator[Document]:
    """The documents of the test split."""
    if not dataset.has_test:
        raise DatasetError(f"{dataset.folder} has no test split: it is a copy for training only")
    return _documents(dataset)


def _documents(dataset: Dataset) -> Iterator[Document]:
    for shard in dataset.manifest["splits"]["test"]["shards"]:
        path, number = dataset.folder / shard["path"], 0
        try:
            with path.open(encoding="utf-8", newline="\n") as lines:
                for line in lines:
                    record = json.loads(line)
                    yield Document(record["id"], record["text"])
                    number += 1
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DatasetError(f"{path} is damaged after line {number}: {error}") from error


def cache_folder() -> Path:
    """Where prepared datasets are kept: $DAILYTRAIN_CACHE, else ~/.cache/dailytrain."""
    home = os.environ.get("DAILYTRAIN_CACHE") or Path.home() / ".cache" / "dailytrain"
    return Path(home).expanduser() / "datasets"


def prepare(
    corpus: str,
    tokenizer: str = "bpe:8192",
    folder: str | os.PathLike[str] | None = None,
    limit_bytes: int | None = None,
    progress: bool = False,
) -> Dataset:
    """The dataset of this corpus, tokenizer and limit, made if it is not there yet.

    `folder` is where it shall be; without one it is kept in the cache. The same request finds the same dataset again;
    a changed file or another tokenizer is another request. Raise CorpusError, TokenizerError or DatasetError (all
    ValueError), one clear line. Safe to call from several processes at once: one prepares, the others wait.
    """
    if limit_bytes is not None and limit_bytes <= 0:
        raise DatasetError(f"The limit of bytes is {limit_bytes}, but it must be more than nothing")
    spec, source = TokenizerSpec.parse(tokenizer), find_corpus(corpus)
    key = _key(corpus, source.fingerprint(), spec, limit_bytes)
    about = {"corpus": corpus, "limit_bytes": limit_bytes, "key": key}
    place = Path(folder) if folder is not None else cache_folder() / f"{corpus.partition(':')[0]}-{key[:16]}"
    place, find = place.absolute(), _named if folder is not None else _cached
    if found := find(place, key):
        return found
    reporter = Reporter(progress)
    _make_parent(place)
    waiting = f"Another process is preparing {place.name}; waiting for it ..."
    with locked(place.with_name(f".{place.name}.lock"), on_wait=lambda: reporter.say(waiting)):
        found = find(place, key)  # another process may just have made it
        if found is None:
            if folder is None:
                shutil.rmtree(place, ignore_errors=True)  # damaged: `_cached` did not take it
            build(place, source, spec, limit_bytes, about, reporter)
            found = Dataset.open(place)
    return found


def _key(corpus: str, fingerprint: dict[str, Any], spec: TokenizerSpec, limit_bytes: int | None) -> str:
    request = {
        "format": FORMAT,
        "corpus": [corpus, fingerprint],
        "tokenizer": spec.given.sha256 if spec.given else [spec.text, tokenizers.__version__],
        "limit_bytes": limit_bytes,
    }
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def _make_parent(place: Path) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatasetError(f"{place.parent} cannot be made: {error.strerror or error}") from error
    if not os.access(place.parent, os.W_OK):
        raise DatasetError(f"{place.parent} cannot be written to")


def _named(place: Path, key: str) -> Dataset | None:
    """The dataset at a folder that someone named: ours to use if it is the one asked for, never to overwrite."""
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return None
    if not (place / MANIFEST).is_file():
        raise DatasetError(f"{place} exists and is not a dataset: name another folder")
    dataset = Dataset.open(place)
    if dataset.manifest.get("key") != key:
        raise DatasetError(f"{place} holds another dataset ({dataset.manifest.get('corpus')}): name another folder")
    return dataset


def _cached(place: Path, key: str) -> Dataset | None:
    """The dataset in the cache, unless it is damaged: then it is to be made again."""
    try:
        dataset = Dataset.open(place)
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
    if not isinstance(manifest, dict) or manifest.get("format") not in (FORMAT, PROMPTED):
        raise DatasetError(f"{path} is not of format {FORMAT} or {PROMPTED}, which this version reads")
    try:
        correct = content_hash(manifest) == manifest["hash"] and set(manifest["splits"]) == set(SPLITS)
        paths = [shard["path"] for split in manifest["splits"].values() for shard in split["shards"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise DatasetError(f"{path} is damaged: it lacks {error}") from error
    if not correct or any(Path(name).is_absolute() or ".." in Path(name).parts for name in paths):
        raise DatasetError(f"{path} is damaged: its hash does not fit what it says")
    return manifest


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror or error}") from error
