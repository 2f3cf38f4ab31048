"""A proxy through which a sandboxed notebook fetches from the hosts that its track allows.

It listens on a Unix socket, the sandbox's only way out, and opens tunnels (HTTP CONNECT, RFC 9110 section 9.3.6) to
port 443 of these hosts at public addresses: nothing in the lender's own network is reached. It cannot see inside them.
"""

from __future__ import annotations

import ipaddress
import selectors
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from tempfile import TemporaryDirectory
from typing import Any

TIMEOUT_SECONDS = 30.0
PORT = 443
MAX_CONNECTIONS = 32
TRANSLATED = ipaddress.ip_network("64:ff9b::/96")  # IPv4 addresses in IPv6 (RFC 6052)


class FetchProxy(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True

    def __init__(self, path: Path, hosts: Sequence[str], max_bytes: int, log: Callable[[str], None]) -> None:
        super().__init__(str(path), TunnelHandler)
        self.hosts, self.log, self.bytes_left = hosts, log, max_bytes
        self.lock, self.places = threading.Lock(), threading.BoundedSemaphore(MAX_CONNECTIONS)

    def verify_request(self, request: object, client_address: object) -> bool:
        """Close a connection beyond the limit at once: each one has a thread and two files of the agent."""
        return self.places.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def spend(self, count: int) -> bool:
        """Count bytes; return whether the job has some left."""
        with self.lock:
            self.bytes_left -= count
            return self.bytes_left > 0

    def is_allowed(self, host: str, port: str) -> bool:
        return port == str(PORT) and any(host == name or host.endswith(f".{name}") for name in self.hosts)


class TunnelHandler(BaseHTTPRequestHandler):
    timeout = TIMEOUT_SECONDS
    server: FetchProxy

    def do_CONNECT(self) -> None:
        proxy, (host, _, port) = self.server, self.path.lower().rpartition(":")
        if not proxy.is_allowed(host, port):
            proxy.log(f"the notebook may not fetch from {self.path[:200]!r}.")
            self.send_error(403, "This track's notebooks may not fetch from this host")
            return
        try:
            upstream = connect_to_public_address(host)
        except OSError as error:
            self.send_error(502, f"{type(error).__name__} at {host}")
            return
        with upstream:
            self.send_response(200)
            self.end_headers()
            proxy.log(f"the notebook exchanged {self.relay(upstream):,} bytes with {host}.")

    def relay(self, upstream: socket.socket) -> int:
        """Pass bytes on until one side ends, nothing comes, or the job's bytes are spent; return how many."""
        count = 0
        others = {self.connection: upstream, upstream: self.connection}
        with selectors.DefaultSelector() as selector:
            for side in others:
                selector.register(side, selectors.EVENT_READ)
            while self.server.spend(0) and (ready := selector.select(TIMEOUT_SECONDS)):
                for key, _ in ready:
                    side = key.fileobj
                    assert isinstance(side, socket.socket)
                    try:
                        data = side.recv(1 << 16)
                        others[side].sendall(data)
                    except OSError:
                        return count
                    if not data:
                        return count
                    count += len(data)
                    self.server.spend(len(data))
        return count

    def log_message(self, format: str, *args: object) -> None:
        """`FetchProxy.log` has one line for each tunnel instead."""


def connect_to_public_address(host: str) -> socket.socket:
    """Connect to a host. Raise `OSError` unless it has a public address that answers."""
    problem = OSError(f"{host} has no public address")
    for *_, address in socket.getaddrinfo(host, PORT, type=socket.SOCK_STREAM):
        if is_public(str(address[0])):
            try:
                return socket.create_connection((str(address[0]), PORT), TIMEOUT_SECONDS)
            except OSError as error:
                problem = error
    raise problem


def is_public(text: str) -> bool:
    """Whether an address is one host's on the internet, and no translation of another address."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and (address.sixtofour or address.teredo or address in TRANSLATED):
        return False
    return address.is_global and not address.is_multicast


@contextmanager
def serve_proxy(hosts: Sequence[str], max_bytes: int, log: Callable[[str], None]) -> Iterator[Path]:
    """Run a proxy; yield its socket, in a folder of its own whose path is short enough for one."""
    with TemporaryDirectory(prefix="fetch-") as folder, FetchProxy(Path(folder, "s"), hosts, max_bytes, log) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield Path(folder, "s")
        finally:
            proxy.shutdown()
