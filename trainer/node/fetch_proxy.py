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

TIMEOUT_SECONDS = 30.0
PORT = 443
MAX_TUNNELS = 32


class FetchProxy(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True

    def __init__(self, path: Path, hosts: Sequence[str], max_bytes: int, log: Callable[[str], None]) -> None:
        super().__init__(str(path), TunnelHandler)
        self.hosts, self.log, self.bytes_left = hosts, log, max_bytes
        self.tunnels = threading.BoundedSemaphore(MAX_TUNNELS)

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
        with proxy.tunnels:
            try:
                upstream = connect_to_public_address(host)
            except OSError as error:
                self.send_error(502, f"{type(error).__name__} at {host}")
                return
            with upstream:
                self.send_response(200)
                self.end_headers()
                before = proxy.bytes_left
                self.relay(upstream)
                proxy.log(f"the notebook exchanged {before - proxy.bytes_left:,} bytes with {host}.")

    def relay(self, upstream: socket.socket) -> None:
        """Pass bytes on in both directions until one side ends, nothing comes, or the job's bytes are spent."""
        others = {self.connection: upstream, upstream: self.connection}
        with selectors.DefaultSelector() as selector:
            for side in others:
                selector.register(side, selectors.EVENT_READ)
            while self.server.bytes_left > 0 and (ready := selector.select(TIMEOUT_SECONDS)):
                for key, _ in ready:
                    side = key.fileobj
                    assert isinstance(side, socket.socket)
                    try:
                        data = side.recv(1 << 16)
                        others[side].sendall(data)
                    except OSError:
                        return
                    if not data:
                        return
                    self.server.bytes_left -= len(data)

    def log_message(self, format: str, *args: object) -> None:
        """`FetchProxy.log` has one line for each tunnel instead."""


def connect_to_public_address(host: str) -> socket.socket:
    """Connect to a host. Raise `OSError` unless it has a public address that answers."""
    found = socket.getaddrinfo(host, PORT, type=socket.SOCK_STREAM)
    public = [str(address[0]) for *_, address in found if ipaddress.ip_address(address[0]).is_global]
    if not public:
        raise OSError(f"{host} has no public address")
    return socket.create_connection((public[0], PORT), TIMEOUT_SECONDS)


@contextmanager
def serve_proxy(hosts: Sequence[str], max_bytes: int, log: Callable[[str], None]) -> Iterator[Path]:
    """Run a proxy; yield its socket, in a folder of its own whose path is short enough for one."""
    with TemporaryDirectory(prefix="fetch-") as folder, FetchProxy(Path(folder, "s"), hosts, max_bytes, log) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield Path(folder, "s")
        finally:
            proxy.shutdown()
