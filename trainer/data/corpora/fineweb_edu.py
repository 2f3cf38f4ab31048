"""`fineweb-edu`: educational web pages, the 10-billion-token sample, streamed from the Hugging Face Hub.

HuggingFaceFW/fineweb-edu, configuration sample-10BT, at a pinned revision: 9,672,101 pages, ODC-By 1.0. A limit stops
the download early; the whole sample is 28.5 GB on the wire and about 45 GB of text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainer.data.corpora.document import Corpus, Document
from trainer.data.errors import CorpusError, describe_exception

REPOSITORY = "HuggingFaceFW/fineweb-edu"
CONFIGURATION = "sample-10BT"
REVISION = "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9"
TIMEOUT = 20  # seconds for the first response of the Hub


def build_corpus(argument: str) -> Corpus:
    if argument:
        raise CorpusError(f"fineweb-edu takes no argument, but {argument!r} was given (--limit-bytes limits it)")
    return Corpus(fingerprint=_describe_source, documents=_iterate_documents)


def _describe_source() -> dict[str, Any]:
    return {"repository": REPOSITORY, "configuration": CONFIGURATION, "revision": REVISION}


def _iterate_documents() -> Iterator[Document]:
    # Errors of the Hub's client (no network, broken transfer, offline mode) come from its own classes or from requests,
    # httpx, aiohttp, fsspec or pyarrow. A list would be incomplete, and all of them mean the same here.
    try:
        for record in _stream_records():
            if record["text"]:
                yield Document(record["id"], record["text"])
    except Exception as error:
        raise CorpusError(
            f"fineweb-edu cannot be read from the Hugging Face Hub; is there a network? {describe_exception(error)}"
        ) from error


def _stream_records() -> Iterator[dict[str, Any]]:
    import datasets
    from huggingface_hub import HfApi

    # Check once with a short timeout: the streaming reader retries for minutes before it reports a missing network.
    HfApi().dataset_info(REPOSITORY, revision=REVISION, timeout=TIMEOUT)
    stream = datasets.load_dataset(REPOSITORY, name=CONFIGURATION, split="train", streaming=True, revision=REVISION)
    return iter(stream.select_columns(["id", "text"]))
