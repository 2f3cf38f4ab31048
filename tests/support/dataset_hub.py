"""Datasets on a small Hugging Face Hub over a real socket: what `load_dataset` requests at a pinned revision."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from urllib.parse import unquote

Files = Mapping[tuple[str, str], Mapping[str, bytes]]
"""(repository, revision) -> path -> content."""


class DatasetHub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    files: Files
    sent: dict[str, int]
    """Bytes of each file, by path."""

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        if match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/(tree|revision)/(\w+)/?(.*)", path):
            self._describe(match[2], match[1], match[3], match[4])
        elif match := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/(\w+)/(.+)", path):
            self._send_file(self.files.get((match[1], match[2]), {}), match[3], match[2])
        else:
            self._answer(b"{}", 404, {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """paths-info of the folders that a card names."""
        match = re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/paths-info/(\w+)", unquote(self.path))
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["paths"]
        files = self.files.get((match[1], match[2]), {}) if match else {}
        rows = {row["path"]: row for row in list_folder(files, "", is_recursive=True)}
        self._answer(json.dumps([rows[path] for path in wanted if path in rows]).encode())

    def log_message(self, *_: object) -> None:
        pass

    def _describe(self, kind: str, repository: str, revision: str, folder: str) -> None:
        files = self.files.get((repository, revision))
        if files is None:
            self._answer(b"{}", 404, {"X-Error-Code": "RevisionNotFound"})
        elif kind == "tree":
            self._answer(json.dumps(list_folder(files, folder, "recursive=True" in self.path)).encode())
        else:
            siblings = [{"rfilename": name} for name in files]
            self._answer(json.dumps({"id": repository, "sha": revision, "siblings": siblings}).encode())

    def _send_file(self, files: Mapping[str, bytes], name: str, revision: str) -> None:
        if name not in files:
            self._answer(b"{}", 404, {"X-Error-Code": "EntryNotFound"})
            return
        data, headers = files[name], {"X-Repo-Commit": revision, "ETag": f'"{name}"', "Accept-Ranges": "bytes"}
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(match[1]), int(match[2] or len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            self.sent[name] = self.sent.get(name, 0) + last + 1 - first
            self._answer(data[first : last + 1], 206, headers)
        else:
            self._answer(data, 200, headers)

    def _answer(self, data: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def list_folder(files: Mapping[str, bytes], folder: str, is_recursive: bool) -> list[dict[str, object]]:
    """Return the rows of a folder's files and folders."""
    inside = {name: content for name, content in files.items() if not folder or name.startswith(f"{folder}/")}
    rows = [{"type": "file", "path": name, "size": len(content), "oid": "a" * 40} for name, content in inside.items()]
    parents = {str(parent) for name in inside for parent in PurePosixPath(name).parents} - {".", folder}
    rows += [{"type": "directory", "path": parent, "oid": "b" * 40} for parent in sorted(parents)]
    depth = len(PurePosixPath(folder).parts) + 1
    return [row for row in rows if is_recursive or len(PurePosixPath(str(row["path"])).parts) == depth]


@contextmanager
def serve_datasets(files: Files, sent: dict[str, int] | None = None) -> Iterator[str]:
    """Serve the datasets; yield the address for HF_ENDPOINT. `sent` gets the bytes of ranges that were requested."""
    handler = type("Bound", (DatasetHub,), {"files": files, "sent": {} if sent is None else sent})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
