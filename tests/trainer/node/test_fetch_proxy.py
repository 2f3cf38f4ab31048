"""A sandboxed notebook fetches from its track's hosts through the node's proxy, and from nowhere else."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

import trainer
from tests.support.waits import WAIT_SECONDS
from trainer.node import fetch_proxy
from trainer.sandbox import Mount, ResourceLimits, SandboxSpec, get_driver

pytestmark = pytest.mark.processes

HOSTS = ("files.example.org",)
LIMITS = ResourceLimits(wall_seconds=WAIT_SECONDS, memory_bytes=4 << 30, disk_bytes=1 << 30, processes=64)
FETCH = """
import http.client, os, socket
from pathlib import Path
def fetch(host, port=443):
    way = http.client.HTTPConnection(os.environ["HTTPS_PROXY"].removeprefix("http://"), timeout=20)
    way.set_tunnel(host, port)
    try:
        way.request("GET", "/weights")
        return way.getresponse().read().decode()
    except OSError as error:
        return str(error)
found = [fetch(host) for host in ("files.example.org", "cdn.files.example.org", "example.org", "evilfiles.example.org")]
found.append(fetch("files.example.org", 22))
try:
    socket.create_connection(("127.0.0.1", {port}), timeout=5)
    found.append("connected")
except OSError as error:
    found.append(type(error).__name__)
Path("model/found").write_text("\\n".join(found))
"""


class Upstream(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"weights of {self.headers['Host']}".encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Serve all hosts from this machine; return the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(
        fetch_proxy, "connect_to_public_address", lambda host: socket.create_connection(server.server_address)
    )
    yield server.server_port
    server.shutdown()
    server.server_close()


def test_sandboxed_notebook_fetches_from_allowed_hosts_only(tmp_path: Path, upstream: int) -> None:
    driver = get_driver("bubblewrap")
    if problem := driver.find_problem():
        pytest.skip(problem)
    notebook = tmp_path / "idea.ipynb"
    notebook.write_text(nbformat.writes(new_notebook(cells=[new_code_cell(FETCH.replace("{port}", str(upstream)))])))
    package, lines = Path(trainer.__file__).parent, list[str]()
    with fetch_proxy.serve_proxy(HOSTS, 1 << 20, lines.append) as path:
        environment = {"DAILYTRAIN_PROXY": str(path), "PYTHONPATH": str(package.parent)}
        mounts = [Mount(package), Mount(path.parent), Mount(tmp_path, writable=True)]
        command = [sys.executable, "-s", "-P", "-m", "trainer.notebook", str(notebook)]
        spec = SandboxSpec(command, environment, mounts, tmp_path, LIMITS)
        process = driver.start(spec, subprocess.DEVNULL, subprocess.DEVNULL)
        process.wait(WAIT_SECONDS)
        process.kill()

    assert (tmp_path / "model/found").read_text().splitlines() == [
        "weights of files.example.org:443",
        "weights of cdn.files.example.org:443",
        *["Tunnel connection failed: 403 This track's notebooks may not fetch from this host"] * 3,
        "ConnectionRefusedError",
    ]
    assert [line.rpartition(" ")[2] for line in lines] == [
        "files.example.org.",
        "cdn.files.example.org.",
        "'example.org:443'.",
        "'evilfiles.example.org:443'.",
        "'files.example.org:22'.",
    ]


def test_proxy_ends_the_tunnel_when_the_bytes_of_the_job_are_spent(upstream: int) -> None:
    with fetch_proxy.serve_proxy(HOSTS, 10, list[str]().append) as path, socket.socket(socket.AF_UNIX) as way:
        way.settimeout(WAIT_SECONDS)
        way.connect(str(path))
        way.sendall(b"CONNECT files.example.org:443 HTTP/1.1\r\n\r\n")
        assert b" 200 " in way.recv(1 << 16)
        way.sendall(b"GET / HTTP/1.1\r\nHost: files.example.org\r\n\r\n")
        assert way.recv(1 << 16) == b""


def test_proxy_closes_connections_beyond_its_limit(upstream: int) -> None:
    with fetch_proxy.serve_proxy(HOSTS, 1 << 20, list[str]().append) as path, ExitStack() as stack:
        for number in range(fetch_proxy.MAX_CONNECTIONS + 1):
            way = stack.enter_context(socket.socket(socket.AF_UNIX))
            way.settimeout(WAIT_SECONDS)
            way.connect(str(path))
            if number < fetch_proxy.MAX_CONNECTIONS:
                way.sendall(b"CONNECT files.example.org:443 HTTP/1.1\r\n\r\n")
                assert b" 200 " in way.recv(1 << 16)
        assert way.recv(1 << 16) == b""


@pytest.mark.parametrize(
    "host",
    ["localhost", "127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "64:ff9b::a00:1", "2002:a00:1::", "224.0.0.1"],
)
def test_proxy_connects_to_no_address_of_the_lenders_network(host: str) -> None:
    with pytest.raises(OSError, match="no public address"):
        fetch_proxy.connect_to_public_address(host)
