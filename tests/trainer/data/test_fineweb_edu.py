from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from trainer.data.corpora import open_corpus
from trainer.data.corpora.fineweb_edu import SOURCE
from trainer.data.errors import CorpusError

pyarrow = pytest.importorskip("pyarrow")

REPOSITORY, REVISION = SOURCE.repository, SOURCE.revision

READ = """
import json, sys
from itertools import islice
from trainer.data.corpora import find_corpus
stream = find_corpus("fineweb-edu").open_stream(json.loads(sys.argv[1]))
ids = [document.id for document in islice(stream, int(sys.argv[2]))]
print(json.dumps([ids, stream.state_dict()]))
"""
SCRIPT = "import sys; from trainer.cli.prepare import main; sys.exit(main(sys.argv[1:]))"


class Hub(BaseHTTPRequestHandler):
    """What streaming one dataset at one revision requests of the Hugging Face Hub."""

    protocol_version = "HTTP/1.1"
    files: dict[str, bytes]
    sent: dict[str, int]  # bytes of each file

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        if match := re.fullmatch(f"/api/datasets/{REPOSITORY}/tree/{REVISION}/?(.*)", path):
            self._answer(json.dumps([self._row(name) for name in self.files if name.startswith(match[1])]).encode())
        elif path == f"/api/datasets/{REPOSITORY}/revision/{REVISION}":
            siblings = [{"rfilename": name} for name in self.files]
            self._answer(json.dumps({"id": REPOSITORY, "sha": REVISION, "siblings": siblings}).encode())
        elif path.startswith(prefix := f"/datasets/{REPOSITORY}/resolve/{REVISION}/"):
            self._file(path.removeprefix(prefix))
        else:
            self._answer(b"{}", 404, {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """paths-info: the only requested path is the folder of the sample."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(json.dumps([{"type": "directory", "path": "sample/10BT", "oid": "b" * 40}]).encode())

    def log_message(self, *_: object) -> None:
        pass

    def _row(self, name: str) -> dict[str, object]:
        return {"type": "file", "path": name, "size": len(self.files[name]), "oid": "a" * 40}

    def _file(self, name: str) -> None:
        if name not in self.files:
            self._answer(b"{}", 404, {"X-Error-Code": "EntryNotFound"})
            return
        data = self.files[name]
        headers = {"X-Repo-Commit": REVISION, "ETag": '"one"', "Accept-Ranges": "bytes"}
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(match[1]), int(match[2] or len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            self.sent[name] = self.sent.get(name, 0) + last + 1 - first
            self._answer(data[first : last + 1], 206, headers)
        else:
            self._answer(data, 200, headers)

    def _answer(self, data: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@pytest.fixture
def hub() -> Iterator[str]:
    from pyarrow import parquet

    pages = [f"Page {number}. " + " ".join(str(number * word) for word in range(200)) for number in range(200)]
    table = pyarrow.table({"id": [f"<urn:uuid:{n}>" for n in range(200)], "text": pages, "score": [3.5] * 200})
    Hub.files, Hub.sent = {}, {}
    for number in range(2):
        buffer = io.BytesIO()
        parquet.write_table(table.slice(100 * number, 100), buffer, row_group_size=10)
        Hub.files[f"sample/10BT/00{number}_00000.parquet"] = buffer.getvalue()
    card = "---\nconfigs:\n- config_name: sample-10BT\n  data_files:\n  - split: train\n    path: sample/10BT/*\n---\n"
    Hub.files["README.md"] = card.encode()
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def run_with_hub(folder: Path, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the Hub's client reads its environment when it is imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return subprocess.run(
        [sys.executable, "-c", *command],
        env={**kept, "HF_HOME": str(folder / "hub"), **environment},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def run_prepare(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    arguments = ["--corpus", "fineweb-edu", "--limit-bytes", "90kB", "--tokenizer", "bpe:300", "--json", "--quiet"]
    return run_with_hub(folder, [SCRIPT, *arguments, "--out", str(folder / "out")], **environment)


def test_pages_are_streamed_at_pinned_revision_up_to_limit(hub: str, tmp_path: Path) -> None:
    done = run_prepare(tmp_path, HF_ENDPOINT=hub)
    assert done.returncode == 0, done.stderr
    splits = json.loads(done.stdout)["splits"]
    assert sum(split["bytes"] for split in splits.values()) == 90_000
    with (tmp_path / "out" / "test" / "documents.jsonl").open() as lines:
        held = [json.loads(line) for line in lines]
    assert all(re.fullmatch(r"<urn:uuid:\d+>", page["id"]) and page["text"].startswith("Page ") for page in held)


def test_stream_continues_after_saved_row_without_earlier_rows(hub: str, tmp_path: Path) -> None:
    first = run_with_hub(tmp_path, [READ, "null", "130"], HF_ENDPOINT=hub)
    ids, state = json.loads(first.stdout)
    Hub.sent.clear()
    rest = run_with_hub(tmp_path, [READ, json.dumps(state), "1000"], HF_ENDPOINT=hub)
    assert ids + json.loads(rest.stdout)[0] == [f"<urn:uuid:{number}>" for number in range(200)]
    name = "sample/10BT/000_00000.parquet"
    assert Hub.sent[name] < len(Hub.files[name])  # no more than its schema


@pytest.mark.parametrize("environment", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_unreachable_hub_raises_one_line(tmp_path: Path, environment: dict[str, str]) -> None:
    done = run_prepare(tmp_path, **environment)
    assert done.returncode == 2
    assert done.stdout == ""
    message = "dailytrain prepare: fineweb-edu cannot be read from the Hugging Face Hub; is there a network?"
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_unknown_part_is_rejected_with_known_parts() -> None:
    with pytest.raises(CorpusError, match=r"no corpus fineweb-edu:sample-1T; known: .*fineweb-edu:sample-100BT"):
        open_corpus("fineweb-edu:sample-1T")
