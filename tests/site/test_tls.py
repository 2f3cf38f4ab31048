"""Caddy with `docker/Caddyfile` in front of a real server: TLS, the visitor's address, redirects, health."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.support.http_server import Handler, run_server
from tests.support.paths import REPOSITORY
from tests.support.waits import WAIT_SECONDS, wait_until
from trainer.distributed.ports import find_free_port

CADDY = shutil.which("caddy")
CADDYFILE = REPOSITORY / "docker" / "Caddyfile"
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(CADDY is None, reason="caddy is not installed (apt install caddy)"),
]


class UpstreamHandler(Handler):
    """Stands for nginx: records the headers of requests."""

    requests: list[dict[str, str]]

    def do_GET(self) -> None:
        self.requests.append({name.lower(): value for name, value in self.headers.items()})
        self.send(200, b"page")


@pytest.fixture(scope="module")
def upstream() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Yield the server's address and the headers of its requests."""
    requests: list[dict[str, str]] = []
    with run_server(UpstreamHandler, requests=requests) as url:
        yield url.removeprefix("http://"), requests


@pytest.fixture(scope="module")
def ports(
    upstream: tuple[str, list[dict[str, str]]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, int]]:
    """Run Caddy; yield its ports. Its own authority signs the certificate of localhost."""
    folder = tmp_path_factory.mktemp("caddy")
    found = {name: find_free_port() for name in ("HTTP_PORT", "HTTPS_PORT", "HEALTH_PORT")}
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder),
        "SITE_DOMAIN": "localhost",
    }
    environment |= {"UPSTREAM": upstream[0]}
    environment |= {name: str(port) for name, port in found.items()}
    command = [str(CADDY), "run", "--adapter", "caddyfile", "--config", str(CADDYFILE)]
    with (folder / "log").open("w") as log, subprocess.Popen(command, env=environment, stderr=log) as process:
        try:
            wait_for_certificate(process, found["HTTPS_PORT"], folder)
            yield {**found, "root": str(folder / "caddy/pki/authorities/local/root.crt")}  # type: ignore[dict-item]
        finally:
            process.terminate()


def wait_for_certificate(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    def has_certificate() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 10) as connection:
            context.wrap_socket(connection, server_hostname="localhost").close()
            return True
        return False

    wait_until(has_certificate)


def test_caddyfile_is_valid_and_formatted() -> None:
    done = subprocess.run(
        [str(CADDY), "validate", "--adapter", "caddyfile", "--config", str(CADDYFILE)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    formatted = subprocess.run([str(CADDY), "fmt", str(CADDYFILE)], capture_output=True, text=True)
    assert formatted.stdout == CADDYFILE.read_text()


def test_tls_request_reaches_the_site_with_the_visitors_address(
    ports: dict[str, int], upstream: tuple[str, list[dict[str, str]]]
) -> None:
    context = ssl.create_default_context(cafile=str(ports["root"]))
    forged = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "http"}
    response = httpx.get(
        f"https://localhost:{ports['HTTPS_PORT']}/queue/", verify=context, headers=forged, timeout=WAIT_SECONDS
    )
    assert (response.status_code, response.text) == (200, "page")
    seen = upstream[1][-1]
    assert (seen["x-forwarded-for"], seen["x-forwarded-proto"]) == ("127.0.0.1", "https")
    assert seen["host"] == f"localhost:{ports['HTTPS_PORT']}"


def test_plain_request_is_redirected_to_tls(ports: dict[str, int], upstream: tuple[str, list[dict[str, str]]]) -> None:
    before = len(upstream[1])
    response = httpx.get(f"http://localhost:{ports['HTTP_PORT']}/queue/", timeout=WAIT_SECONDS)
    assert response.status_code == 308
    assert response.headers["Location"].startswith("https://localhost")
    assert len(upstream[1]) == before


def test_health_check_of_the_container_answers(ports: dict[str, int]) -> None:
    assert httpx.get(f"http://127.0.0.1:{ports['HEALTH_PORT']}/", timeout=WAIT_SECONDS).status_code == 200
