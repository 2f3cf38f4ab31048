"""`slimpajama` — SlimPajama, 627 billion tokens of English text, streamed from the Hugging Face Hub.

cerebras/SlimPajama-627B at a pinned revision: 59,166 compressed files of JSON lines, 895 GB on the wire; the documents'
licences are those of their sources. Only its train part is read, file by file in the files' own order, and a limit
stops the download early. Who may not read it there (it asks for a token, HF_TOKEN, or is gone) names another place with
the same files: `slimpajama:OWNER/NAME@REVISION`.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import quote

from trainer.data.corpora.document import Corpus, CorpusError, Document

REPOSITORY = "cerebras/SlimPajama-627B"
REVISION = "2d0accdd58c5d5511943ca1f5ff0e3eb5e293543"
PLACE = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)@(?P<revision>[0-9a-f]{40})")
FILE = re.compile(r"train/chunk(\d+)/example_train_(\d+)\.jsonl\.zst")
TIMEOUT = 20  # seconds for the Hub's first answer, and for each next part of a file


def find(argument: str) -> Corpus:
    place = PLACE.fullmatch(argument or f"{REPOSITORY}@{REVISION}")
    if place is None:
        raise CorpusError(
            f"slimpajama takes another place's name and revision, OWNER/NAME@REVISION with 40 hexadecimal digits, "
            f"not {argument!r}"
        )
    return Corpus(fingerprint=place.groupdict, documents=partial(_documents, **place.groupdict()))


def _documents(repository: str, revision: str) -> Iterator[Document]:
    # As with fineweb-edu: whatever the Hub's client meets, it means the same here.
    try:
        for name, data in _files(repository, revision):
            for number, line in enumerate(_lines(data), start=1):
                if text := json.loads(line)["text"]:
                    yield Document(f"{name}:{number}", text)
    except Exception as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise CorpusError(
            f"slimpajama cannot be read from the Hugging Face Hub ({repository}); is there a network, and may you "
            f"read it there? {reason}"
        ) from error


def _files(repository: str, revision: str) -> Iterator[tuple[str, bytes]]:
    """Names and contents, some 15 MB each, in order. The client tries again where the network stumbles."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

    api = HfApi()
    siblings = api.dataset_info(repository, revision=revision, timeout=TIMEOUT).siblings or []
    found = [(match, file.rfilename) for file in siblings if (match := FILE.fullmatch(file.rfilename))]
    if not found:
        raise LookupError("it has no files like train/chunk1/example_train_0.jsonl.zst")
    for _, name in sorted(found, key=lambda each: (int(each[0][1]), int(each[0][2]))):
        address = f"{api.endpoint}/datasets/{repository}/resolve/{revision}/{quote(name)}"
        answer: Any = http_backoff("GET", address, headers=build_hf_headers(), timeout=TIMEOUT)
        hf_raise_for_status(answer)
        yield name, answer.content


def _lines(data: bytes) -> Iterator[bytes]:
    import pyarrow

    with pyarrow.CompressedInputStream(pyarrow.BufferReader(data), "zstd") as stream:
        yield from io.BufferedReader(stream)
