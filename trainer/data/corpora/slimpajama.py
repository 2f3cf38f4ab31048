"""`slimpajama`: SlimPajama, 627 billion tokens of English text, streamed from the Hugging Face Hub.

cerebras/SlimPajama-627B at a pinned revision: 59,166 compressed files of JSON lines, 895 GB on the wire. Documents have
the licenses of their sources. Only the train split is read, in the order of its files; a limit stops the download
early. If it cannot be read there (it needs a token, HF_TOKEN, or was deleted), name a copy:
`slimpajama:OWNER/NAME@REVISION`.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import quote

from trainer.data.corpora import Corpus, CorpusInfo, Document
from trainer.errors import CorpusError, describe_exception

REPOSITORY = "cerebras/SlimPajama-627B"
REVISION = "2d0accdd58c5d5511943ca1f5ff0e3eb5e293543"
LOCATION = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)@(?P<revision>[0-9a-f]{40})")
FILE = re.compile(r"train/chunk(\d+)/example_train_(\d+)\.jsonl\.zst")
TIMEOUT = 20  # seconds for the Hub's first response and for each further part of a file

INFO = CorpusInfo(license="those of its sources", size="627 billion tokens", source=f"{REPOSITORY}@{REVISION}")


def build_corpus(argument: str) -> Corpus:
    location = LOCATION.fullmatch(argument or f"{REPOSITORY}@{REVISION}")
    if location is None:
        raise CorpusError(
            f"slimpajama takes the name and revision of a copy, OWNER/NAME@REVISION with 40 hexadecimal digits, "
            f"not {argument!r}"
        )
    return Corpus(fingerprint=location.groupdict, documents=partial(_iterate_documents, **location.groupdict()))


def _iterate_documents(repository: str, revision: str) -> Iterator[Document]:
    # See `HubStream` in hub.py: all errors of the Hub's client mean the same.
    try:
        for name, data in _download_files(repository, revision):
            for number, line in enumerate(_decompress_lines(data), start=1):
                if text := json.loads(line)["text"]:
                    yield Document(f"{name}:{number}", text)
    except Exception as error:
        raise CorpusError(
            f"slimpajama cannot be read from the Hugging Face Hub ({repository}); is there a network, and "
            f"do you have access? {describe_exception(error)}"
        ) from error


def _download_files(repository: str, revision: str) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents, about 15 MB each, in order. The client retries network errors."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

    api = HfApi()
    siblings = api.dataset_info(repository, revision=revision, timeout=TIMEOUT).siblings or []
    files = [(match, file.rfilename) for file in siblings if (match := FILE.fullmatch(file.rfilename))]
    if not files:
        raise LookupError("it has no files like train/chunk1/example_train_0.jsonl.zst")
    for _, name in sorted(files, key=lambda file: (int(file[0][1]), int(file[0][2]))):
        address = f"{api.endpoint}/datasets/{repository}/resolve/{revision}/{quote(name)}"
        response: Any = http_backoff("GET", address, headers=build_hf_headers(), timeout=TIMEOUT)
        hf_raise_for_status(response)
        yield name, response.content


def _decompress_lines(data: bytes) -> Iterator[bytes]:
    import pyarrow

    with pyarrow.CompressedInputStream(pyarrow.BufferReader(data), "zstd") as stream:
        yield from io.BufferedReader(stream)
