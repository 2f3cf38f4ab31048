"""The part of the Hugging Face Hub that publishing asks for, over a real socket: repositories and their commits, the
check before an upload, Git LFS with single and multi-part uploads, tags, and whatever goes wrong, on demand.

As huggingface.co answers and huggingface_hub 0.36 asks: status codes, `X-Error-Code`, `Retry-After`, pages with `Link`,
412 for a parent that is not the head, 409 for what exists.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

TOKEN, ORGANISATION = "hf_of_the_train", "trains"
REGULAR_BYTES = 10_000
"""Smaller text files are kept in git itself."""


@dataclass
class Commit:
    id: str
    title: str
    message: str
    files: dict[str, bytes]


@dataclass
class Repository:
    commits: list[Commit] = field(default_factory=list)
    """Oldest first."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """Large files by SHA-256: they are here before any commit names them."""
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def head(self) -> Commit:
        return self.commits[-1]

    def at(self, revision: str) -> Commit:
        return next((commit for commit in self.commits if commit.id == revision), self.head)

    def add(self, title: str, message: str, files: dict[str, bytes]) -> Commit:
        number = f"{len(self.commits)} {title} {message}"
        self.commits.append(
            Commit(hashlib.sha1(number.encode(), usedforsecurity=False).hexdigest(), title, message, files)
        )
        return self.head


@dataclass
class Failure:
    """What the next requests that fit are answered instead."""

    method: str
    path: str
    """A regular expression that the path begins with."""
    status: int
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    message: str = ""


class Hub:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.repositories: dict[str, Repository] = {}
        self.failures: list[Failure] = []
        self.asked: list[tuple[str, str, int]] = []
        """(method, path, status) of every request."""
        self.sent_bytes = 0
        """Of large files, all uploads together."""
        self.part_bytes: int | None = None
        """Files over that come in parts of that size; None: whole."""
        self.page = 3
        """Commits a page."""
        self.before: Callable[[str, str], None] = lambda method, path: None
        """Called with every request, in its thread."""
        self.parts: dict[tuple[str, int], bytes] = {}
        self.url = ""

    def fail(self, method: str, path: str, status: int, times: int = 1, message: str = "", **headers: str) -> None:
        self.failures.append(
            Failure(method, path, status, times, {k.replace("_", "-"): v for k, v in headers.items()}, message)
        )

    def failure(self, method: str, path: str) -> Failure | None:
        with self.lock:
            for failure in self.failures:
                if failure.times and failure.method == method and re.match(failure.path, path):
                    failure.times -= 1
                    return failure
        return None

    def uploads(self) -> int:
        """Return how many large files, or parts of them, have been sent."""
        return sum(method == "PUT" and status == 200 for method, _, status in self.asked)


class Answer(Exception):
    def __init__(self, status: int, body: Any = None, **headers: str) -> None:
        super().__init__(status)
        self.status, self.body = status, body
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.serve()

    do_POST = do_PUT = do_HEAD = do_GET

    def serve(self) -> None:
        parts = urlsplit(self.path)
        path, length = unquote(parts.path), self.headers.get("Content-Length")
        body = self.rfile.read(int(length)) if length else b""
        self.hub.before(self.command, path)
        try:
            if failure := self.hub.failure(self.command, path):
                raise Answer(failure.status, {"error": failure.message}, **failure.headers)
            with self.hub.lock:
                self.route(path, parse_qs(parts.query), body)
            raise AssertionError("a route raises its answer")
        except Answer as answer:
            self.hub.asked.append((self.command, path, answer.status))
            self.respond(answer)

    def respond(self, answer: Answer) -> None:
        content = b"" if answer.body is None else answer.body
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
        self.send_response(answer.status)
        headers = {"Content-Type": "application/json", **answer.headers, "Content-Length": str(len(content))}
        if isinstance(answer.body, dict) and "error" in answer.body:
            headers["X-Error-Message"] = str(answer.body["error"])
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    # --- routes -------------------------------------------------------------------------------------------------------

    def route(self, path: str, query: dict[str, list[str]], body: bytes) -> None:
        if path.startswith("/storage/"):
            self.store(path, query, body)
        if found := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(self.repository(f"datasets/{found[1]}"), found[2], found[3])
        if found := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/revision/([^/]+)", path):
            self.about(self.repository(f"datasets/{found[1]}"), found[1], found[2])
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Answer(401, {"error": "Invalid credentials in Authorization header"})
        if path == "/api/validate-yaml":
            raise Answer(200, {"errors": [], "warnings": []})
        if path == "/api/repos/create":
            self.create(json.loads(body))
        if found := re.fullmatch(r"/((?:datasets/)?[^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            self.batch(found[1], json.loads(body))
        if found := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)/(\w+)/([^/]+)(?:/(.*))?", path):
            repository = self.repository(("datasets/" if found[1] == "datasets" else "") + found[2])
            {"commits": self.commits, "preupload": self.preupload, "commit": self.commit, "tag": self.tag}.get(
                found[3], self.tree
            )(repository, found[4], query, body)
        raise Answer(404, {"error": "Not found"})

    def repository(self, name: str) -> Repository:
        if name not in self.hub.repositories:
            raise Answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        return self.hub.repositories[name]

    def name(self) -> str:
        return "/".join(unquote(self.path).split("/")[3:5])

    def create(self, wanted: dict[str, Any]) -> None:
        if wanted["organization"] != ORGANISATION:
            raise Answer(403, {"error": f"You don't have the rights to create a model under {wanted['organization']}"})
        kind = "datasets/" if wanted.get("type") == "dataset" else ""
        name = f"{kind}{wanted['organization']}/{wanted['name']}"
        if name in self.hub.repositories:
            raise Answer(409, {"error": "You already created this model repo", "url": f"{self.hub.url}/{name}"})
        made = self.hub.repositories[name] = Repository()
        made.add("initial commit", "", {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"})
        raise Answer(200, {"url": f"{self.hub.url}/{name}", "name": name})

    def about(self, repository: Repository, name: str, revision: str) -> None:
        """What `dataset_info` asks."""
        commit = repository.at(revision)
        card = yaml.safe_load(commit.files.get("README.md", b"---\n{}\n---").decode().split("---\n")[1])
        siblings = [{"rfilename": path} for path in sorted(commit.files)]
        raise Answer(200, {"id": name, "sha": commit.id, "siblings": siblings, "cardData": card, "tags": []})

    def resolve(self, repository: Repository, revision: str, path: str) -> None:
        """A file, as it is."""
        commit = repository.at(revision)
        if path not in commit.files:
            raise Answer(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
        content = commit.files[path]
        raise Answer(200, content, X_Repo_Commit=commit.id, ETag=f'"{git_id(content)}"')

    def commits(self, repository: Repository, revision: str, query: dict[str, list[str]], body: bytes) -> None:
        page, size = int(query.get("p", ["0"])[0]), self.hub.page
        rows = list(reversed(repository.commits))
        shown = [
            {"id": c.id, "title": c.title, "message": c.message, "authors": [], "date": "2026-11-21T08:00:00.000Z"}
            for c in rows[page * size : (page + 1) * size]
        ]
        more = (page + 1) * size < len(rows)
        address = f"{self.hub.url}{urlsplit(self.path).path}?p={page + 1}"
        raise Answer(200, shown, **({"Link": f'<{address}>; rel="next"'} if more else {}))

    def tree(self, repository: Repository, revision: str, query: dict[str, list[str]], body: bytes) -> None:
        files = repository.head.files
        raise Answer(200, [{"type": "file", "path": p, "size": len(c), "oid": git_id(c)} for p, c in files.items()])

    def preupload(self, repository: Repository, revision: str, query: dict[str, list[str]], body: bytes) -> None:
        answers = []
        for file in json.loads(body)["files"]:
            large = file["path"].endswith((".safetensors", ".png", ".tar", ".parquet")) or file["size"] > REGULAR_BYTES
            answer = {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
            there = repository.head.files.get(file["path"])
            if there is not None:
                answer["oid"] = hashlib.sha256(there).hexdigest() if large else git_id(there)
            answers.append(answer)
        raise Answer(200, {"files": answers})

    def batch(self, name: str, asked: dict[str, Any]) -> None:
        repository = self.repository(name)
        objects = []
        for wanted in asked["objects"]:
            answer: dict[str, Any] = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in repository.objects:
                answer["actions"] = {"upload": self.upload(name, wanted)}
            objects.append(answer)
        raise Answer(200, {"transfer": "basic", "objects": objects})

    def upload(self, name: str, wanted: dict[str, Any]) -> dict[str, Any]:
        at = f"{self.hub.url}/storage/{name}/{wanted['oid']}"
        size = self.hub.part_bytes
        if size is None or wanted["size"] <= size:
            return {"href": at, "header": {}}
        count = -(-wanted["size"] // size)
        numbered = {f"{number:05d}": f"{at}?part={number}" for number in range(1, count + 1)}
        return {"href": f"{at}?complete=1", "header": {"chunk_size": str(size), **numbered}}

    def store(self, path: str, query: dict[str, list[str]], body: bytes) -> None:
        """What lies at the addresses that `upload` gave: no token is asked for there."""
        name, _, oid = path.removeprefix("/storage/").rpartition("/")
        if "part" in query:
            number = int(query["part"][0])
            self.hub.parts[oid, number] = body
            self.hub.sent_bytes += len(body)
            raise Answer(200, None, ETag=f'"{number}"')
        if "complete" in query:
            told = sorted(part["partNumber"] for part in json.loads(body)["parts"])
            body = b"".join(self.hub.parts[oid, number] for number in told)
        else:
            self.hub.sent_bytes += len(body)
        if hashlib.sha256(body).hexdigest() != oid:
            raise Answer(422, {"error": "The object's hash is another"})
        self.repository(name).objects[oid] = body
        raise Answer(200, {})

    def commit(self, repository: Repository, revision: str, query: dict[str, list[str]], body: bytes) -> None:
        lines = [json.loads(line) for line in body.splitlines()]
        head, files = lines[0]["value"], dict(repository.head.files)
        if head.get("parentCommit", repository.head.id) != repository.head.id:
            raise Answer(412, {"error": "A commit has happened since. Please refresh and try again."})
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                if value["oid"] not in repository.objects:
                    raise Answer(422, {"error": f"LFS pointer pointed to a file that does not exist: {value['path']}"})
                files[value["path"]] = repository.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        made = repository.add(head["summary"], head["description"], files)
        raise Answer(
            200, {"success": True, "commitOid": made.id, "commitUrl": f"{self.hub.url}/{self.name()}/commit/{made.id}"}
        )

    def tag(self, repository: Repository, revision: str, query: dict[str, list[str]], body: bytes) -> None:
        name = json.loads(body)["tag"]
        if name in repository.tags:
            raise Answer(409, {"error": f"Tag {name} already exists"})
        repository.tags[name] = revision
        raise Answer(200, {})


def git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@contextmanager
def running() -> Iterator[Hub]:
    hub = Hub()
    handler = type("Bound", (Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield hub
        server.shutdown()
