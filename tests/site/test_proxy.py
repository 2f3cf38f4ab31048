"""The site behind its reverse proxy, as compose.yaml configures both."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from django.core.exceptions import ImproperlyConfigured

from dailytrain import asgi
from dailytrain.environment import read_networks
from dailytrain.proxies import TrustedProxiesMiddleware
from scheduler.page_cache import PROXY_SECONDS
from tests.support.http_server import Handler, run_server
from tests.support.paths import REPOSITORY
from tests.support.waits import WAIT_SECONDS, wait_until
from trainer.distributed.ports import find_free_port
from trainer.node.client import PIECE_BYTES

pytestmark = pytest.mark.processes

PROXY_ADDRESS = "172.20.0.5"  # of a proxy that is not named
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
TEMPLATE = REPOSITORY / "docker" / "nginx.conf.template"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())["services"]
    return found


def get_client(
    trusted: Sequence[str], peer: str = PROXY_ADDRESS, headers: Sequence[tuple[bytes, bytes]] = ()
) -> tuple[str, str]:
    """Return the client address and the scheme that the site sees for a request of the peer."""
    seen: list[tuple[str, str]] = []

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        seen.append((scope["client"][0], scope["scheme"]))

    scope = {"type": "http", "scheme": "http", "client": (peer, 40_000), "headers": headers}
    asyncio.run(TrustedProxiesMiddleware(application, trusted)(scope, None, None))
    return seen[0]


VISITOR = [(b"x-forwarded-for", b"203.0.113.7"), (b"x-forwarded-proto", b"https")]


def test_client_address_behind_proxy_is_that_of_the_visitor(services: dict[str, Any]) -> None:
    # Rate limits count by it: with the proxy's address all visitors share one.
    trusted = services["web"]["environment"]["TRUSTED_PROXIES"].split()
    proxy = services["proxy"]["networks"]["default"]["ipv4_address"]
    assert get_client(trusted, proxy, VISITOR) == ("203.0.113.7", "https")


def test_address_and_scheme_sent_by_other_peers_are_ignored(
    services: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    trusted = services["web"]["environment"]["TRUSTED_PROXIES"].split()
    assert get_client(trusted, PROXY_ADDRESS, VISITOR) == (PROXY_ADDRESS, "http")
    assert f"{PROXY_ADDRESS} sent X-Forwarded-For but is not in TRUSTED_PROXIES" in caplog.text


@pytest.mark.parametrize("value", ["*", "proxy", "10.0.0.0/33", "10.0.0.7/24", "0.0.0.0/0", "::/0", "127.0.0.1 web"])
def test_wrong_trusted_proxies_are_refused_at_start(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUSTED_PROXIES", value)
    with pytest.raises(ImproperlyConfigured, match="TRUSTED_PROXIES names"):
        read_networks("TRUSTED_PROXIES")


def test_web_service_is_reachable_through_the_proxy_only(services: dict[str, Any]) -> None:
    assert "ports" not in services["web"]
    assert services["proxy"]["ports"] == ["127.0.0.1:8000:8000"]
    config = TEMPLATE.read_text()
    assert "proxy_set_header X-Forwarded-For $remote_addr;" in config, "replaced, not extended"


# --- nginx with this configuration ------------------------------------------------------------------------------------


@dataclass
class Upstream:
    """Stands for the web service: numbers its responses and records the requests."""

    port: int = 0
    requests: list[dict[str, str]] = field(default_factory=list)
    uploads: list[tuple[str, int]] = field(default_factory=list)
    """(path, bytes) of each upload."""
    begun: list[str] = field(default_factory=list)
    cache_seconds: str = PROXY_SECONDS


LEASE = "/api/node/v1/leases/7"
CACHE_CONTROL = {"/page": "max-age=5", "/live.json": "no-cache"}
"""What the site tells browsers, by path (`scheduler.page_cache`)."""
PAGES = ("/", *CACHE_CONTROL)


class UpstreamHandler(Handler):
    upstream: Upstream

    def do_GET(self) -> None:
        if self.path.endswith("/authorization"):
            is_known = self.headers["Authorization"] == "Bearer known"
            owner = "user 2" if "/leases/9/" in self.path else "user 1"
            return self.send(204, headers={"X-Owner": owner}) if is_known else self.send(401)
        self.upstream.requests.append({name.lower(): value for name, value in self.headers.items()})
        number, headers = len(self.upstream.requests), {}
        time.sleep(0.2)
        if self.path.startswith("/form"):
            headers["Set-Cookie"] = "csrftoken=1"
        if browsers := CACHE_CONTROL.get(self.path):
            headers |= {"X-Accel-Expires": self.upstream.cache_seconds, "Cache-Control": browsers}
        return self.send(200, f"page {number}".encode(), headers)

    def do_PUT(self) -> None:
        self.upstream.begun.append(self.path)
        self.upstream.uploads.append((self.path, len(self.read_body())))
        self.send(200)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    recorded = Upstream()
    with run_server(UpstreamHandler, upstream=recorded) as url:
        recorded.port = urlsplit(url).port or 0
        yield recorded


@pytest.fixture
def start_proxy(tmp_path: Path, upstream: Upstream) -> Iterator[Callable[..., str]]:
    """Return a function that starts nginx with the given TRUSTED_PROXIES and returns its URL."""
    if NGINX is None:
        pytest.skip("nginx is not installed (apt install nginx-light)")
    started: list[subprocess.Popen[bytes]] = []

    def start(trusted_proxies: str, cache_seconds: str = PROXY_SECONDS, upload_rate: str = "20r/s") -> str:
        port, upstream.cache_seconds = find_free_port(), cache_seconds
        replacements = {
            "${TRUSTED_PROXIES}": trusted_proxies,
            "listen 8000;": f"listen 127.0.0.1:{port};",
            "server web:8000;": f"server 127.0.0.1:{upstream.port};",
            "rate=20r/s": f"rate={upload_rate}",
            "/tmp/pages": f"{tmp_path}/pages",
            "/tmp/uploads": f"{tmp_path}/uploads",
            "proxy_cache_valid 200 1s;": f"proxy_cache_valid 200 {cache_seconds}s;",
        }
        site = TEMPLATE.read_text()
        for old, new in replacements.items():
            assert old in site
            site = site.replace(old, new)
        names = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        folders = "".join(f"{name}_temp_path {tmp_path}/{name};\n" for name in names)
        main = "user root;\n" if os.geteuid() == 0 else ""
        main += f"daemon off;\npid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\n"
        (tmp_path / "nginx.conf").write_text(f"{main}http {{\naccess_log off;\n{folders}{site}}}\n")
        started.append(subprocess.Popen([str(NGINX), "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]))
        wait_for_port(port, started[-1])
        return f"http://127.0.0.1:{port}"

    yield start
    for process in started:
        process.terminate()
        process.wait(WAIT_SECONDS)


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    def listens() -> bool:
        assert process.poll() is None, "nginx refused its configuration"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(listens)


def get(url: str, **options: Any) -> httpx.Response:
    return httpx.get(url, timeout=WAIT_SECONDS, **options)


def test_proxy_with_concurrent_visitors_requests_each_page_once(
    start_proxy: Callable[..., str], upstream: Upstream
) -> None:
    url = start_proxy("10.0.0.0/8", cache_seconds="3600")  # longer than a busy machine takes for the eight requests
    for number, path in enumerate(PAGES, start=1):
        with ThreadPoolExecutor(8) as pool:
            responses = list(pool.map(lambda _, path=path: get(url + path), range(8)))  # type: ignore[misc]
        assert {response.text for response in responses} == {f"page {number}"}
        assert "X-Accel-Expires" not in responses[0].headers


@pytest.mark.slow
def test_proxy_requests_each_page_again_after_a_second(start_proxy: Callable[..., str], upstream: Upstream) -> None:
    url = start_proxy("10.0.0.0/8")
    before = {get(url + path).text for path in PAGES}
    time.sleep(2)  # nginx counts whole seconds
    assert not before & {get(url + path).text for path in PAGES}


def test_proxy_does_not_share_personal_pages(start_proxy: Callable[..., str], upstream: Upstream) -> None:
    url = start_proxy("10.0.0.0/8")
    for header in ("Cookie", "Authorization"):
        pages = [get(f"{url}/{header}", headers=headers).text for headers in ({header: "own"}, {}, {header: "own"})]
        assert len({*pages}) == 3
    assert get(f"{url}/form").text != get(f"{url}/form").text, "a page that sets a cookie"


@pytest.mark.parametrize(("trusted", "seen"), [("127.0.0.1", "203.0.113.7"), ("10.0.0.0/8", "127.0.0.1")])
def test_proxy_replaces_forwarded_address_of_untrusted_clients(
    start_proxy: Callable[..., str], upstream: Upstream, trusted: str, seen: str
) -> None:
    get(start_proxy(trusted), headers={"X-Forwarded-For": "203.0.113.7"})
    assert upstream.requests[0]["x-forwarded-for"] == seen


# --- uploads ----------------------------------------------------------------------------------------------------------


BLOB = f"{LEASE}/blobs/{'0' * 64}"


def start_upload(
    url: str,
    token: str,
    length: int,
    body: bytes = b"",
    path: str = BLOB,
    sender: str = "127.0.0.1",
    forwarded: str = "",
) -> socket.socket:
    """Send the headers of an upload and the first bytes of its body."""
    address = urlsplit(url)
    target = (address.hostname or "", address.port or 0)
    connection = socket.create_connection(target, WAIT_SECONDS, source_address=(sender, 0))
    headers = f"PUT {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
    headers += f"X-Forwarded-For: {forwarded}\r\n" if forwarded else ""
    connection.sendall(f"{headers}Content-Length: {length}\r\n\r\n".encode() + body)
    return connection


def read_status(connection: socket.socket) -> int:
    return int(connection.makefile("rb").readline().split()[1])


def put(url: str, size: int, token: str = "known", path: str = BLOB) -> httpx.Response:  # noqa: S107
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.put(f"{url}{path}", content=bytes(size), headers=headers, timeout=WAIT_SECONDS)


def test_upload_with_unknown_token_is_refused_before_its_body(
    start_proxy: Callable[..., str], upstream: Upstream, tmp_path: Path
) -> None:
    url = start_proxy("10.0.0.0/8")
    with start_upload(url, "invented", PIECE_BYTES, b"x" * 200_000) as connection:
        assert read_status(connection) == 401
    assert upstream.uploads == []
    assert not any((tmp_path / "uploads").iterdir())
    assert put(url, 10, "invented").json() == {"detail": "The site does not accept this token for files of this lease."}


@pytest.mark.parametrize(("size", "status"), [(PIECE_BYTES, 200), (PIECE_BYTES + 1, 413)])
def test_largest_upload_is_the_largest_piece_of_a_node(start_proxy: Callable[..., str], size: int, status: int) -> None:
    assert put(start_proxy("10.0.0.0/8"), size).status_code == status


def test_volume_of_the_proxy_holds_all_uploads_at_once(services: dict[str, Any]) -> None:
    size = re.search(r"size=(\d+)m", dict(mount.split(":", 1) for mount in services["proxy"]["tmpfs"])["/tmp/uploads"])
    most = re.search(r"limit_conn all_uploads (\d+);", TEMPLATE.read_text())
    assert int(most[1]) * PIECE_BYTES < int(size[1]) * 2**20  # type: ignore[index]
    bodies = re.findall(r"limit_conn all_(?:node_|lease_)?bodies (\d+);", TEMPLATE.read_text())
    assert len(bodies) == 3
    assert sum(map(int, bodies)) * 4 * 2**20 < asgi.COLLECTED_BYTES, "strangers' bodies leave memory for reports"


def test_body_that_is_no_file_reaches_the_site_as_it_arrives(
    start_proxy: Callable[..., str], upstream: Upstream, tmp_path: Path
) -> None:
    """The site ends slow bodies; the proxy would wait for a byte now and then, for ever."""
    url = start_proxy("10.0.0.0/8")
    with ExitStack() as stack:
        for path in ("/form", f"{LEASE}/metrics"):
            stack.enter_context(start_upload(url, "known", 2**20, b"x" * 100_000, path))
        wait_until(lambda: len(upstream.begun) == 2)
        assert not any(path.is_file() for path in (tmp_path / "client_body").rglob("*"))


def test_large_bodies_of_a_lease_have_places_that_strangers_cannot_take(
    start_proxy: Callable[..., str], upstream: Upstream
) -> None:
    url = start_proxy("10.0.0.0/8", upload_rate="1r/m")
    with ExitStack() as stack:
        for number in range(120):
            sender = f"127.0.1.{1 + number // 8}"
            stack.enter_context(start_upload(url, "none", 2**20, path="/form", sender=sender))
        late = stack.enter_context(start_upload(url, "none", 20_000, path="/form", sender="127.0.0.2"))
        assert read_status(late) == 503
        for _ in range(20):
            stack.enter_context(start_upload(url, "invented", 2**20, path=f"{LEASE}/metrics", sender="127.0.1.1"))
        assert put(url, 20_000, path=f"{LEASE}/metrics").status_code == 200
        assert put(url, 20_000, path="/api/node/v1/poll").status_code == 200
        refused = put(url, 20_000, "invented", f"{LEASE}/metrics")
        assert (refused.status_code, list(refused.json())) == (401, ["detail"])
        assert put(url, 100, "invented", f"{LEASE}/metrics").status_code == 200, "the site itself checks small ones"


def test_addresses_of_one_ipv6_network_count_as_one(start_proxy: Callable[..., str]) -> None:
    url = start_proxy("127.0.0.1")
    network = ("2001:db8::1", "2001:db8::a:b:c:d", "2001:db8:0:0:a::", "2001:db8::10:0:a", "2001:db8::2:0:0:1")
    with ExitStack() as stack:
        for number in range(8):
            connection = start_upload(url, "none", 2**20, path="/form", forwarded=network[number % len(network)])
            stack.enter_context(connection)
        for forwarded, status in (("2001:db8::ffff:1", 503), ("2001:db8:0:1::1", 200), ("203.0.113.7", 200)):
            other = start_upload(url, "none", 20_000, bytes(20_000), "/form", forwarded=forwarded)
            assert read_status(stack.enter_context(other)) == status, forwarded


@pytest.mark.parametrize(("path", "most"), [(f"blobs/{'0' * 64}", 16), ("metrics", 8)])
def test_leases_of_one_owner_share_their_places(
    start_proxy: Callable[..., str], upstream: Upstream, path: str, most: int
) -> None:
    """Slow bodies of all leases of an owner leave those of others their places."""
    url, first = start_proxy("10.0.0.0/8", upload_rate="1000r/s"), "/api/node/v1/leases"
    with ExitStack() as stack:
        for number in range(most):
            lease = f"{'0' * (number // 2)}{1 + number % 2}"
            stack.enter_context(start_upload(url, "known", 2**20, b"x", f"{first}/{lease}/{path}"))
        wait_until(lambda: put(url, 20_000, path=f"{first}/3/{path}").status_code == 503)
        assert put(url, 20_000, path=f"{first}/9/{path}").status_code == 200
    wait_until(lambda: put(url, 20_000, path=f"{first}/3/{path}").status_code == 200)


def test_uploads_with_invented_tokens_take_no_place_of_others(start_proxy: Callable[..., str]) -> None:
    url = start_proxy("10.0.0.0/8", upload_rate="1r/m")  # and 64 at once, whatever the load of the machine
    with ExitStack() as stack:
        for number in range(140):
            sender = ("127.0.0.1", "127.0.0.3")[number % 2]
            stack.enter_context(start_upload(url, "invented", PIECE_BYTES, b"x", sender=sender))
        known = stack.enter_context(start_upload(url, "known", 1, b"x", sender="127.0.0.2"))
        assert read_status(known) == 200
        refused = stack.enter_context(start_upload(url, "invented", PIECE_BYTES, b"x"))
        assert read_status(refused) == 503, "attempts of one address are limited"


def test_large_bodies_of_one_address_are_limited(start_proxy: Callable[..., str], upstream: Upstream) -> None:
    url = start_proxy("10.0.0.0/8")
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(start_upload(url, "known", 2**20, path="/form"))
        wait_until(lambda: put(url, 2**20, path="/form").status_code == 503)
        assert put(url, 1000, path="/form").status_code == 200
        other = stack.enter_context(start_upload(url, "known", 20_000, bytes(20_000), "/form", "127.0.0.2"))
        assert read_status(other) == 200
        assert put(url, 20_000, path="/runs/3/weights/final").status_code == 413
