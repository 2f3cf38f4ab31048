"""HTTP servers over real sockets, in threads of this process."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.waits import WAIT_SECONDS


class Handler(BaseHTTPRequestHandler):
    """Reads bodies and sends responses of JSON or bytes."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Write no log lines to stderr."""

    def read_body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def send(self, status: int, body: Any = b"", headers: dict[str, str] | None = None) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        all_headers = {"Content-Type": "application/json", **(headers or {}), "Content-Length": str(len(content))}
        for name, value in all_headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@dataclass
class Failure:
    """The response to the next `times` requests that match."""

    method: str
    """Empty: any."""
    path: str
    """A regular expression that is searched in the path."""
    status: int
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = b""
    after: bool = False
    """Whether the request is executed before."""


def take_failure(failures: list[Failure], method: str, path: str, *, after: bool = False) -> Failure | None:
    """Return the failure that applies to this request and count it as used once."""
    for failure in failures:
        matches = re.search(failure.path, path) and failure.method in ("", method) and failure.after == after
        if failure.times and matches:
            failure.times -= 1
            return failure
    return None


def build_header_names(headers: dict[str, str]) -> dict[str, str]:
    """Return headers that are given as keyword arguments, with hyphens."""
    return {name.replace("_", "-"): value for name, value in headers.items()}


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore clients that were killed during a request."""


@contextmanager
def run_server(handler: type[Handler], port: int = 0, **attributes: Any) -> Iterator[str]:
    """Serve on a port of 127.0.0.1 by a handler with these attributes; yield the address."""
    server = Server(("127.0.0.1", port), type("BoundHandler", (handler,), attributes))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def serve_in_thread(application: Any) -> Iterator[str]:
    """Serve an ASGI application with uvicorn; yield its address."""
    import uvicorn

    options: dict[str, Any] = {"lifespan": "off", "log_level": "warning", "ws": "none", "proxy_headers": False}
    config = uvicorn.Config(application, host="127.0.0.1", port=0, **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + WAIT_SECONDS
    while not server.started:
        assert thread.is_alive(), "the site did not start"
        assert time.monotonic() < deadline, "the site is not ready"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)
