"""`rephrased:PLACE@HASH`: a corpus rephrased by volunteers, as Parquet shards of a dataset swarm campaign.

PLACE is a dataset on the Hugging Face Hub, OWNER/NAME, or a folder with the same files. HASH is the SHA-256 of its
`manifest.json`, which contains the hash of every shard, so the corpus is pinned to the last byte. Documents keep the
order of the shards and their rows. With `+sources` after the hash, each chunk of the original text precedes its first
rephrasing, which mixes real and synthetic text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from trainer.data.corpora import Corpus, CorpusInfo, Document
from trainer.errors import CorpusError, describe_exception
from trainer.protocol.files import hash_file

SPEC = re.compile(r"(?P<place>.+)@(?P<hash>[0-9a-f]{64})(?P<sources>\+sources)?")
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
SHARD = re.compile(r"data/[\w.-]+\.parquet")
MANIFEST = "manifest.json"
ROWS = 1000
COMMITS = 1000  # commits on the Hub to search for the manifest

Fetch = Callable[[str], Path]

INFO = CorpusInfo(license="that of the campaign", size="that of the campaign", source="a campaign of this site")


def build_corpus(argument: str) -> Corpus:
    spec = SPEC.fullmatch(argument)
    if spec is None:
        raise CorpusError(
            "rephrased takes a place and the hash of its manifest, OWNER/NAME@SHA256 or FOLDER@SHA256, "
            f"not {argument!r}"
        )
    folder = Path(spec["place"]).expanduser()
    if folder.is_dir():
        fetch: Fetch = folder.joinpath
    elif REPOSITORY.fullmatch(spec["place"]):
        fetch = _fetch_from_hub(spec["place"], spec["hash"])
    else:
        raise CorpusError(f"{spec['place']} is neither a folder nor a dataset on the Hub")
    manifest = _load_manifest(fetch, spec["hash"])
    sources = bool(spec["sources"])
    return Corpus(
        fingerprint=lambda: {"manifest": spec["hash"], "sources": sources},
        documents=partial(_iterate_documents, fetch, manifest["shards"], sources),
    )


def _fetch_from_hub(repository: str, manifest_hash: str) -> Fetch:
    """Return a function that fetches files of the newest commit whose manifest has this hash."""
    from huggingface_hub import HfApi, hf_hub_download

    def fetch(revision: str, name: str) -> Path:
        try:
            return Path(hf_hub_download(repository, name, repo_type="dataset", revision=revision))
        except Exception as error:  # see `HubStream` in hub.py
            raise CorpusError(
                f"{repository} cannot be read on the Hugging Face Hub: {describe_exception(error)}"
            ) from error

    try:
        commits = HfApi().list_repo_commits(repository, repo_type="dataset")[:COMMITS]
    except Exception as error:
        raise CorpusError(
            f"{repository} cannot be read on the Hugging Face Hub; is there a network? {describe_exception(error)}"
        ) from error
    for commit in commits:
        try:
            if hash_file(fetch(commit.commit_id, MANIFEST)) == manifest_hash:
                return partial(fetch, commit.commit_id)
        except CorpusError:  # a commit without a manifest
            continue
    raise CorpusError(f"{repository} has no manifest with the hash {manifest_hash[:12]}…")


def _load_manifest(fetch: Fetch, expected_hash: str) -> dict[str, Any]:
    try:
        content = fetch(MANIFEST).read_bytes()
    except OSError as error:
        raise CorpusError(f"the {MANIFEST} cannot be read: {error.strerror or error}") from error
    if hashlib.sha256(content).hexdigest() != expected_hash:
        raise CorpusError(f"the {MANIFEST} there has another hash: it does not begin with {expected_hash[:12]}")
    manifest: dict[str, Any] = json.loads(content)
    if manifest.get("format") != 1 or not all(SHARD.fullmatch(shard["name"]) for shard in manifest["shards"]):
        raise CorpusError(f"the {MANIFEST} there has a format that this version does not support")
    return manifest


def _iterate_documents(fetch: Fetch, shards: list[dict[str, Any]], sources: bool) -> Iterator[Document]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    seen: set[tuple[str, int]] = set()
    for shard in shards:
        path = fetch(shard["name"])
        if not path.is_file() or hash_file(path) != shard["sha256"]:
            raise CorpusError(f"{shard['name']} is missing or is not the file that {MANIFEST} names: fetch it again")
        try:
            with ParquetFile(path) as file:
                for batch in file.iter_batches(ROWS, columns=["id", "document", "chunk", "source", "text"]):
                    for row in batch.to_pylist():
                        chunk = (row["document"], row["chunk"])
                        if sources and chunk not in seen:
                            seen.add(chunk)  # rephrasings of a chunk may be in two shards
                            yield Document(f"{row['document']}#{row['chunk']}", row["source"])
                        yield Document(row["id"], row["text"])
        except (ArrowException, KeyError, OSError) as error:
            raise CorpusError(f"{shard['name']} cannot be read: {describe_exception(error)}") from error
