"""`fineweb-edu` — educational web pages: the 10-billion-token sample, streamed from the Hugging Face Hub.

HuggingFaceFW/fineweb-edu, configuration sample-10BT, at a pinned revision: 9,672,101 pages, ODC-By 1.0. A limit stops
the download early; the whole sample is 28.5 GB on the wire and about 45 GB of text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainer.data.corpora.document import Corpus, CorpusError, Document

REPOSITORY = "HuggingFaceFW/fineweb-edu"
CONFIGURATION = "sample-10BT"
REVISION = "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9"
TIMEOUT = 20  # seconds for the first answer of the Hub


def find(argument: str) -> Corpus:
    if argument:
        raise CorpusError(f"fineweb-edu takes no argument, but {argument!r} was given (--limit-bytes limits it)")
    return Corpus(fingerprint=_fingerprint, documents=_documents)


def _fingerprint() -> dict[str, Any]:
    return {"repository": REPOSITORY, "configuration": CONFIGURATION, "revision": REVISION}


def _documents() -> Iterator[Document]:
    # Whatever the Hub's client meets (no network, no such host, a broken transfer, an offline switch) has some class
    # of its own or of requests, httpx, aiohttp, fsspec or pyarrow: no short list holds, and all mean the same here.
    try:
        for record in _records():
            if record["text"]:
                yield Document(record["id"], record["text"])
    except Exception as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise CorpusError(
            f"fineweb-edu cannot be read from the Hugging Face Hub; is there a network? {reason}"
        ) from error


def _records() -> Iterator[dict[str, Any]]:
    import datasets
    from huggingface_hub import HfApi

    # Asked once with a short patience: the streaming reader would try for minutes before it says that nobody is there.
    HfApi().dataset_info(REPOSITORY, revision=REVISION, timeout=TIMEOUT)
    stream = datasets.load_dataset(REPOSITORY, name=CONFIGURATION, split="train", streaming=True, revision=REVISION)
    return iter(stream.select_columns(["id", "text"]))
