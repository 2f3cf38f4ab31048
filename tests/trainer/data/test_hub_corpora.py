"""Corpora of the Hugging Face Hub are streamed at their pinned revision, in order, up to the limit."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from tests.support.dataset_hub import serve_datasets
from tests.support.waits import WAIT_SECONDS
from trainer.data.corpora import find_corpus, open_corpus, slimpajama
from trainer.data.corpora.fineweb_edu import SOURCE
from trainer.errors import CorpusError

pytestmark = pytest.mark.processes

READ = """
import json, sys
from itertools import islice
from trainer.data.corpora import find_corpus
stream = find_corpus("fineweb-edu").open_stream(json.loads(sys.argv[1]))
ids = [document.id for document in islice(stream, int(sys.argv[2]))]
print(json.dumps([ids, stream.state_dict()]))
"""


@dataclass
class Hub:
    url: str
    files: dict[str, bytes]
    sent: dict[str, int]
    """Bytes of each file."""


@pytest.fixture
def fineweb() -> Iterator[Hub]:
    pages = [f"Page {number}. " + " ".join(str(number * word) for word in range(200)) for number in range(200)]
    table = pyarrow.table({"id": [f"<urn:uuid:{n}>" for n in range(200)], "text": pages, "score": [3.5] * 200})
    card = "---\nconfigs:\n- config_name: sample-10BT\n  data_files:\n  - split: train\n    path: sample/10BT/*\n---\n"
    files = {"README.md": card.encode()}
    for number in range(2):
        buffer = io.BytesIO()
        parquet.write_table(table.slice(100 * number, 100), buffer, row_group_size=10)
        files[f"sample/10BT/00{number}_00000.parquet"] = buffer.getvalue()
    sent: dict[str, int] = {}
    with serve_datasets({(SOURCE.repository, SOURCE.revision): files}, sent) as url:
        yield Hub(url, files, sent)


def run_with_hub(folder: Path, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run in a separate process, since the Hub's client reads its environment when it is imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return subprocess.run(
        [sys.executable, "-c", *command],
        env={**kept, "HF_HOME": str(folder / "hub"), **environment},
        capture_output=True, text=True, timeout=WAIT_SECONDS,
    )  # fmt: skip


@pytest.mark.slow
def test_stream_continues_after_saved_row_without_earlier_rows(fineweb: Hub, tmp_path: Path) -> None:
    first = run_with_hub(tmp_path, [READ, "null", "130"], HF_ENDPOINT=fineweb.url)
    ids, state = json.loads(first.stdout)
    fineweb.sent.clear()
    rest = run_with_hub(tmp_path, [READ, json.dumps(state), "1000"], HF_ENDPOINT=fineweb.url)
    assert ids + json.loads(rest.stdout)[0] == [f"<urn:uuid:{number}>" for number in range(200)]
    name = "sample/10BT/000_00000.parquet"
    assert fineweb.sent[name] < len(fineweb.files[name])  # no more than its schema


# --- SlimPajama, which our own code downloads -------------------------------------------------------------------------

NAMES = [f"train/chunk{chunk}/example_train_{number}.jsonl.zst" for chunk in (1, 2) for number in (0, 2, 10)]


def compress_rows(name: str) -> bytes:
    rows = [{"text": f"{name} {n}", "meta": {"redpajama_set_name": "RedPajamaC4"}} for n in range(3)]
    text = "\n".join(json.dumps(row) for row in [*rows, {"text": "", "meta": {}}]) + "\n"
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(text.encode())
    return sink.getvalue().to_pybytes()


@pytest.fixture
def pajama(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    files = {name: compress_rows(name) for name in sorted(NAMES)}
    files |= {"README.md": b"", "validation/chunk1/example_holdout_0.jsonl.zst": b""}
    sent: dict[str, int] = {}
    with serve_datasets({(slimpajama.REPOSITORY, slimpajama.REVISION): files}, sent) as url:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield Hub(url, files, sent)


def test_slimpajama_is_read_in_numeric_order_at_pinned_revision(pajama: Hub) -> None:
    documents = list(open_corpus("slimpajama"))
    assert [document.text for document in documents] == [f"{name} {n}" for name in NAMES for n in range(3)]
    assert documents[4].id == f"{NAMES[1]}:2"
    fingerprint = {"repository": slimpajama.REPOSITORY, "revision": slimpajama.REVISION}
    assert find_corpus("slimpajama").fingerprint() == fingerprint
    pajama.sent.clear()
    assert len(list(islice(open_corpus("slimpajama"), 4))) == 4
    assert list(pajama.sent) == NAMES[:2], "files are downloaded one by one"


def test_slimpajama_that_cannot_be_read_raises_one_line(pajama: Hub) -> None:
    copy = find_corpus(f"slimpajama:owner/copy@{'a' * 40}")
    assert copy.fingerprint() == {"repository": "owner/copy", "revision": "a" * 40}
    with pytest.raises(CorpusError, match=r"slimpajama cannot be read from the Hugging Face Hub \(owner/copy\)"):
        next(copy.documents())
    pajama.files[NAMES[0]] = b"not compressed"
    with pytest.raises(CorpusError, match="cannot be read") as caught:
        next(open_corpus("slimpajama"))
    assert "\n" not in str(caught.value)
