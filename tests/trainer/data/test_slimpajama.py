"""SlimPajama is streamed from the Hub at its pinned revision, in order, up to the limit."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice

import pytest

from trainer.data.corpora import find_corpus, open_corpus
from trainer.data.corpora.slimpajama import REPOSITORY, REVISION
from trainer.errors import CorpusError

pyarrow = pytest.importorskip("pyarrow")

NAMES = [f"train/chunk{chunk}/example_train_{number}.jsonl.zst" for chunk in (1, 2) for number in (0, 2, 10)]


def compress_rows(name: str) -> bytes:
    rows = [{"text": f"{name} {n}", "meta": {"redpajama_set_name": "RedPajamaC4"}} for n in range(3)]
    text = "\n".join(json.dumps(row) for row in [*rows, {"text": "", "meta": {}}]) + "\n"
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(text.encode())
    return sink.getvalue().to_pybytes()


class Hub(BaseHTTPRequestHandler):
    """Serves the list of files at a revision, and each file."""

    paths: list[str]
    broken = False

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.paths.append(path)
        name = path.removeprefix(f"/datasets/{REPOSITORY}/resolve/{REVISION}/")
        if path == f"/api/datasets/{REPOSITORY}/revision/{REVISION}":
            others = ["README.md", "validation/chunk1/example_holdout_0.jsonl.zst"]
            siblings = [{"rfilename": each} for each in sorted([*NAMES, *others])]
            self.send_reply(200, json.dumps({"id": REPOSITORY, "sha": REVISION, "siblings": siblings}).encode())
        elif name in NAMES:
            self.send_reply(200, b"not compressed" if self.broken else compress_rows(name))
        else:
            self.send_reply(401, b"{}")

    def send_reply(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    from huggingface_hub import constants

    Hub.paths = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield Hub
        server.shutdown()


def test_files_are_read_in_numeric_order_at_pinned_revision(hub: type[Hub]) -> None:
    documents = list(open_corpus("slimpajama"))
    assert [document.text for document in documents] == [f"{name} {n}" for name in NAMES for n in range(3)]
    assert documents[4].id == f"{NAMES[1]}:2"
    assert find_corpus("slimpajama").fingerprint() == {"repository": REPOSITORY, "revision": REVISION}


def test_files_are_downloaded_lazily(hub: type[Hub]) -> None:
    assert len(list(islice(open_corpus("slimpajama"), 4))) == 4
    assert [path.rpartition("/")[2] for path in hub.paths[1:]] == [
        "example_train_0.jsonl.zst",
        "example_train_2.jsonl.zst",
    ]


def test_copy_is_read_at_its_revision(hub: type[Hub]) -> None:
    place = find_corpus(f"slimpajama:owner/copy@{'a' * 40}")
    assert place.fingerprint() == {"repository": "owner/copy", "revision": "a" * 40}
    with pytest.raises(CorpusError, match=r"slimpajama cannot be read from the Hugging Face Hub \(owner/copy\)"):
        next(place.documents())
    assert hub.paths == [f"/api/datasets/owner/copy/revision/{'a' * 40}"]
    with pytest.raises(CorpusError, match="OWNER/NAME@REVISION"):
        find_corpus("slimpajama:main")


def test_broken_file_raises_one_line(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "broken", True)
    with pytest.raises(CorpusError, match="cannot be read") as caught:
        next(open_corpus("slimpajama"))
    assert "\n" not in str(caught.value)
