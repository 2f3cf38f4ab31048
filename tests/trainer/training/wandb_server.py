"""A local W&B server with the part of the protocol that a run uses: its registration, rows, console lines and files.

Responses are those that `wandb-core` of wandb 0.31 reads: GraphQL at `/graphql` (Viewer, RunResumeStatus, UpsertBucket,
CreateRunFiles, MarkRunFilesUploaded; any other operation is an error), rows at `/files/ENTITY/PROJECT/RUN/file_stream`,
and files at the addresses that CreateRunFiles returned.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ENTITY = "trains"
API_KEY = "0123456789abcdef" * 2 + "01234567"
AUTHORIZATION = "Basic " + base64.b64encode(f"api:{API_KEY}".encode()).decode()


@dataclass
class StoredRun:
    """A run as the server has it."""

    name: str
    project: str
    display_name: str | None = None
    group: str | None = None
    job_type: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    streams: dict[str, dict[int, str]] = field(default_factory=dict)
    """Lines by number of each streamed file, such as `wandb-history.jsonl`."""
    files: dict[str, bytes] = field(default_factory=dict)
    exit_code: int | None = None
    """Of a run that has ended."""

    @property
    def history(self) -> list[dict[str, Any]]:
        """The rows of metrics, in order."""
        return [json.loads(line) for _, line in sorted(self.streams.get("wandb-history.jsonl", {}).items())]

    def update(self, fields: dict[str, Any]) -> None:
        """Apply the arguments of UpsertBucket; null leaves a value as it is."""
        self.display_name = fields["displayName"] or self.display_name
        self.group = fields["groupName"] or self.group
        self.job_type = fields["jobType"] or self.job_type
        if fields["config"]:
            stored = json.loads(fields["config"])
            self.config = {key: entry["value"] for key, entry in stored.items() if key != "_wandb"}

    def append_lines(self, body: dict[str, Any]) -> None:
        """Apply a request to `file_stream`: lines with their offsets, and the end of the run."""
        for name, part in (body.get("files") or {}).items():
            lines = self.streams.setdefault(name, {})
            lines.update(enumerate(part["content"], part["offset"]))
        if body.get("complete"):
            self.exit_code = body["exitcode"]


@dataclass
class WandbServer:
    url: str = ""
    runs: dict[str, StoredRun] = field(default_factory=dict)
    """By W&B's own name of a run, in the order of creation."""
    errors: list[str] = field(default_factory=list)
    """Requests that were refused."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def execute(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the data of a GraphQL operation. Raise KeyError for an unknown operation or run."""
        return {
            "Viewer": self.get_viewer,
            "OrganizationCoreWeaveOrganizationID": lambda _: {"entity": {"organization": None}},
            "ServerFeaturesQuery": lambda _: {"serverInfo": {"features": []}},
            "RunResumeStatus": self.get_resume_status,
            "UpsertBucket": self.upsert_bucket,
            "CreateRunFiles": self.create_run_files,
            "MarkRunFilesUploaded": lambda _: {"markRunFilesUploaded": {"success": True}},
        }[operation](variables)

    def get_viewer(self, _: dict[str, Any]) -> dict[str, Any]:
        viewer = {"id": "VXNlcjox", "entity": ENTITY, "username": "maintainer", "email": "maintainer@example.org"}
        return {"viewer": {**viewer, "flags": "{}", "teams": {"edges": []}}}

    def get_resume_status(self, variables: dict[str, Any]) -> dict[str, Any]:
        if variables["name"] in self.runs:
            raise KeyError("a run that exists is not resumed here")
        return {"model": None}

    def upsert_bucket(self, variables: dict[str, Any]) -> dict[str, Any]:
        name, project = variables["name"], variables["project"]
        inserted = name not in self.runs
        run = self.runs.setdefault(name, StoredRun(name, project))
        run.update(variables)
        owner = {"id": "RW50aXR5OjE=", "name": ENTITY}
        bucket = {
            "id": base64.b64encode(f"Run:v1:{name}:{project}:{ENTITY}".encode()).decode(),
            "name": name,
            "displayName": run.display_name,
            "description": None,
            "config": variables["config"],
            "sweepName": None,
            "project": {"id": "UHJvamVjdDox", "name": project, "entity": owner},
            "historyLineCount": len(run.history),
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}

    def create_run_files(self, variables: dict[str, Any]) -> dict[str, Any]:
        run = self.runs[variables["run"]]
        files = [{"name": name, "uploadUrl": f"{self.url}/storage/{run.name}/{name}"} for name in variables["files"]]
        return {"createRunFiles": {"runID": run.name, "uploadHeaders": [], "files": files}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state: WandbServer

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.read_body()
        with self.server_state.lock:
            status, response = self.respond(body)
        content = json.dumps(response).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_PUT = do_POST

    def read_body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def respond(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """Return the status and the JSON of the response."""
        state = self.server_state
        if self.path.startswith("/sdk/otel/"):  # the client's own telemetry
            return 404, {}
        if match := re.fullmatch(r"/storage/(\w+)/(.+)", self.path):
            state.runs[match[1]].files[match[2]] = body
            return 200, {}
        if self.headers.get("Authorization") != AUTHORIZATION:
            return self.refuse(401, "no API key")
        try:
            if self.path == "/graphql":
                request = json.loads(body)
                return 200, {"data": state.execute(request["operationName"], request.get("variables") or {})}
            if match := re.fullmatch(rf"/files/{ENTITY}/[\w-]+/(\w+)/file_stream", self.path):
                state.runs[match[1]].append_lines(json.loads(body))
                return 200, {"limits": {}}
        except KeyError as error:
            return self.refuse(400, f"unknown {error} in {body[:200]!r}")
        return self.refuse(404, "not found")

    def refuse(self, status: int, message: str) -> tuple[int, dict[str, Any]]:
        self.server_state.errors.append(f"{self.command} {self.path}: {message}")
        return status, {"errors": [{"message": message}]}


@contextmanager
def serve_wandb() -> Iterator[WandbServer]:
    """Serve W&B over a real socket, in a thread."""
    state = WandbServer()
    handler = type("WandbHandler", (Handler,), {"server_state": state})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        state.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield state
        server.shutdown()
        thread.join(10)
