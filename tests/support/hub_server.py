"""A local Hugging Face Hub server with the part of the API that publishing uses.

It has repositories, commits, the check before an upload, Git LFS tags, and failures
on demand.

Responses are those of huggingface.co to huggingface_hub 0.36: status codes, `X-Error-Code`, `Retry-After`, pages with
`Link`, 412 for a parent that is not the head, 409 for a name that exists.
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
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from tests.support.http_server import Failure, Handler, build_header_names, run_server, take_failure

TOKEN, ORGANIZATION = "hf_of_the_train", "trains"
REGULAR_BYTES = 10_000
"""Text files up to this size are stored in git instead of Git LFS."""
COMMITS_PER_PAGE = 3


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
    """Large files by SHA-256, including those that no commit contains yet."""
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def head(self) -> Commit:
        return self.commits[-1]

    def find_commit(self, revision: str) -> Commit:
        return next((commit for commit in self.commits if commit.id == revision), self.head)

    def add_commit(self, title: str, message: str, files: dict[str, bytes]) -> Commit:
        unique_text = f"{len(self.commits)} {title} {message}"
        self.commits.append(
            Commit(hashlib.sha1(unique_text.encode(), usedforsecurity=False).hexdigest(), title, message, files)
        )
        return self.head


class Hub:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.repositories: dict[str, Repository] = {}
        self.failures: list[Failure] = []
        self.requests: list[tuple[str, str, int]] = []
        """(method, path, status) of every request."""
        self.sent_bytes = 0
        """Total size of all uploads of large files."""
        self.before_request: Callable[[str, str], None] = lambda method, path: None
        """Called with method and path before each request, in the thread of the request."""
        self.url = ""

    def fail_requests(
        self, method: str, path: str, status: int, times: int = 1, message: str = "", **headers: str
    ) -> None:
        body = {"error": message}
        self.failures.append(Failure(method, f"^(?:{path})", status, times, build_header_names(headers), body))

    def count_uploads(self) -> int:
        """Return the number of uploaded large files."""
        return sum(method == "PUT" and status == 200 for method, _, status in self.requests)


class Response(Exception):
    """The response to the request; a route raises it."""

    def __init__(self, status: int, body: Any = None, **headers: str) -> None:
        super().__init__(status)
        self.status, self.body = status, body
        self.headers = build_header_names(headers)


class HubHandler(Handler):
    hub: Hub

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path, body = unquote(parts.path), self.read_body()
        self.hub.before_request(self.command, path)
        try:
            if failure := take_failure(self.hub.failures, self.command, path):
                raise Response(failure.status, failure.body, **failure.headers)
            with self.hub.lock:
                self.route(path, parse_qs(parts.query), body)
            raise AssertionError("the route raised no response")
        except Response as response:
            self.hub.requests.append((self.command, path, response.status))
            content = b"" if response.body is None else response.body
            if isinstance(content, dict) and "error" in content:
                response.headers["X-Error-Message"] = str(content["error"])
            self.send(response.status, content, response.headers)

    do_POST = do_PUT = do_HEAD = do_GET

    # --- routes -------------------------------------------------------------------------------------------------------

    def route(self, path: str, query: dict[str, list[str]], body: bytes) -> None:
        if path.startswith("/storage/"):
            self.upload_object(path, body)
        if match := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.download_file(self.get_repository(f"datasets/{match[1]}"), match[2], match[3])
        if match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/revision/([^/]+)", path):
            self.get_dataset_info(self.get_repository(f"datasets/{match[1]}"), match[1], match[2])
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Response(401, {"error": "Invalid credentials in Authorization header"})
        if path == "/api/validate-yaml":
            raise Response(200, {"errors": [], "warnings": []})
        if path == "/api/repos/create":
            self.create_repository(json.loads(body))
        if match := re.fullmatch(r"/((?:datasets/)?[^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            self.check_lfs_objects(match[1], json.loads(body))
        if match := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)/(\w+)/([^/]+)(?:/(.*))?", path):
            repository = self.get_repository(("datasets/" if match[1] == "datasets" else "") + match[2])
            {
                "commits": self.list_commits,
                "preupload": self.check_upload_modes,
                "commit": self.create_commit,
                "tag": self.create_tag,
            }.get(match[3], self.list_files)(repository, match[4], query, body)
        raise Response(404, {"error": "Not found"})

    def get_repository(self, name: str) -> Repository:
        if name not in self.hub.repositories:
            raise Response(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        return self.hub.repositories[name]

    def create_repository(self, fields: dict[str, Any]) -> None:
        if fields["organization"] != ORGANIZATION:
            message = f"You don't have the rights to create a model under {fields['organization']}"
            raise Response(403, {"error": message})
        kind = "datasets/" if fields.get("type") == "dataset" else ""
        name = f"{kind}{fields['organization']}/{fields['name']}"
        if name in self.hub.repositories:
            raise Response(409, {"error": "You already created this model repo", "url": f"{self.hub.url}/{name}"})
        repository = self.hub.repositories[name] = Repository()
        repository.add_commit(
            "initial commit", "", {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"}
        )
        raise Response(200, {"url": f"{self.hub.url}/{name}", "name": name})

    def get_dataset_info(self, repository: Repository, name: str, revision: str) -> None:
        """Respond to `huggingface_hub.dataset_info`."""
        commit = repository.find_commit(revision)
        card = yaml.safe_load(commit.files.get("README.md", b"---\n{}\n---\n").decode().split("---\n")[1])
        siblings = [{"rfilename": path} for path in sorted(commit.files)]
        raise Response(200, {"id": name, "sha": commit.id, "siblings": siblings, "cardData": card, "tags": []})

    def download_file(self, repository: Repository, revision: str, path: str) -> None:
        commit = repository.find_commit(revision)
        if path not in commit.files:
            raise Response(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
        content = commit.files[path]
        raise Response(200, content, X_Repo_Commit=commit.id, ETag=f'"{git_id(content)}"')

    def list_commits(self, repository: Repository, revision: str, query: dict[str, list[str]], body: bytes) -> None:
        page, size = int(query.get("p", ["0"])[0]), COMMITS_PER_PAGE
        rows = list(reversed(repository.commits))
        commits = [
            {"id": c.id, "title": c.title, "message": c.message, "authors": [], "date": "2026-11-21T08:00:00.000Z"}
            for c in rows[page * size : (page + 1) * size]
        ]
        has_next_page = (page + 1) * size < len(rows)
        address = f"{self.hub.url}{urlsplit(self.path).path}?p={page + 1}"
        raise Response(200, commits, **({"Link": f'<{address}>; rel="next"'} if has_next_page else {}))

    def list_files(self, repository: Repository, revision: str, query: dict[str, list[str]], body: bytes) -> None:
        files = repository.head.files
        raise Response(200, [{"type": "file", "path": p, "size": len(c), "oid": git_id(c)} for p, c in files.items()])

    def check_upload_modes(
        self, repository: Repository, revision: str, query: dict[str, list[str]], body: bytes
    ) -> None:
        upload_modes = []
        for file in json.loads(body)["files"]:
            large = file["path"].endswith((".safetensors", ".png", ".tar", ".parquet")) or file["size"] > REGULAR_BYTES
            upload_mode = {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
            content = repository.head.files.get(file["path"])
            if content is not None:
                upload_mode["oid"] = hashlib.sha256(content).hexdigest() if large else git_id(content)
            upload_modes.append(upload_mode)
        raise Response(200, {"files": upload_modes})

    def check_lfs_objects(self, name: str, payload: dict[str, Any]) -> None:
        repository = self.get_repository(name)
        objects = []
        for lfs_object in payload["objects"]:
            entry: dict[str, Any] = {"oid": lfs_object["oid"], "size": lfs_object["size"]}
            if lfs_object["oid"] not in repository.objects:
                url = f"{self.hub.url}/storage/{name}/{lfs_object['oid']}"
                entry["actions"] = {"upload": {"href": url, "header": {}}}
            objects.append(entry)
        raise Response(200, {"transfer": "basic", "objects": objects})

    def upload_object(self, path: str, body: bytes) -> None:
        """Store an object at a URL of `check_lfs_objects`; such URLs need no token."""
        name, _, oid = path.removeprefix("/storage/").rpartition("/")
        self.hub.sent_bytes += len(body)
        if hashlib.sha256(body).hexdigest() != oid:
            raise Response(422, {"error": "The object's hash is another"})
        self.get_repository(name).objects[oid] = body
        raise Response(200, {})

    def create_commit(self, repository: Repository, revision: str, query: dict[str, list[str]], body: bytes) -> None:
        lines = [json.loads(line) for line in body.splitlines()]
        head, files = lines[0]["value"], dict(repository.head.files)
        if head.get("parentCommit", repository.head.id) != repository.head.id:
            raise Response(412, {"error": "A commit has happened since. Please refresh and try again."})
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = repository.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        commit = repository.add_commit(head["summary"], head["description"], files)
        name = "/".join(unquote(self.path).split("/")[3:5])
        url = f"{self.hub.url}/{name}/commit/{commit.id}"
        raise Response(200, {"success": True, "commitOid": commit.id, "commitUrl": url})

    def create_tag(self, repository: Repository, revision: str, query: dict[str, list[str]], body: bytes) -> None:
        name = json.loads(body)["tag"]
        if name in repository.tags:
            raise Response(409, {"error": f"Tag {name} already exists"})
        repository.tags[name] = revision
        raise Response(200, {})


def git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@contextmanager
def run_hub_server() -> Iterator[Hub]:
    hub = Hub()
    with run_server(HubHandler, hub=hub) as hub.url:
        yield hub
