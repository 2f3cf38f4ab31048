"""Datasets on a small Hugging Face Hub over a real socket: what `load_dataset` requests at a pinned revision."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from urllib.parse import unquote

from tests.support.http_server import Handler, run_server

Files = Mapping[tuple[str, str], Mapping[str, bytes]]
"""(repository, revision) -> path -> content."""


class DatasetHubHandler(Handler):
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
            self.send(404, {}, {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """paths-info of the folders that a card names."""
        match = re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/paths-info/(\w+)", unquote(self.path))
        wanted = json.loads(self.read_body())["paths"]
        files = self.files.get((match[1], match[2]), {}) if match else {}
        rows = {row["path"]: row for row in list_folder(files, "", is_recursive=True)}
        self.send(200, [rows[path] for path in wanted if path in rows])

    def _describe(self, kind: str, repository: str, revision: str, folder: str) -> None:
        files = self.files.get((repository, revision))
        if files is None:
            self.send(404, {}, {"X-Error-Code": "RevisionNotFound"})
        elif kind == "tree":
            self.send(200, list_folder(files, folder, "recursive=True" in self.path))
        else:
            siblings = [{"rfilename": name} for name in files]
            self.send(200, {"id": repository, "sha": revision, "siblings": siblings})

    def _send_file(self, files: Mapping[str, bytes], name: str, revision: str) -> None:
        if name not in files:
            self.send(404, {}, {"X-Error-Code": "EntryNotFound"})
            return
        data, headers = files[name], {"X-Repo-Commit": revision, "ETag": f'"{name}"', "Accept-Ranges": "bytes"}
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(match[1]), int(match[2] or len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            data = data[first : last + 1]
        self.sent[name] = self.sent.get(name, 0) + len(data)
        self.send(206 if match else 200, data, headers)


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
    """Serve the datasets; yield the address for HF_ENDPOINT. `sent` gets the bytes that were sent of each file."""
    with run_server(DatasetHubHandler, files=files, sent={} if sent is None else sent) as url:
        yield url
