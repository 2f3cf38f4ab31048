"""Where notices arrive in tests: an SMTP server and a web server, on sockets of this machine."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Letter:
    sender: str
    receivers: list[str]
    message: Message

    @property
    def text(self) -> str:
        plain = next(part for part in self.message.walk() if part.get_content_type() == "text/plain")
        contents = plain.get_payload(decode=True)
        assert isinstance(contents, bytes)
        return contents.decode()

    @property
    def files(self) -> dict[str, bytes]:
        parts = ((part.get_filename(), part.get_payload(decode=True)) for part in self.message.walk())
        return {name: contents for name, contents in parts if name and isinstance(contents, bytes)}


class MailHandler(socketserver.StreamRequestHandler):
    """As much SMTP (RFC 5321) as it takes to get a letter."""

    server: MailServer

    def handle(self) -> None:
        self.say("220 post.test ready")
        sender, receivers = "", []
        while line := self.rfile.readline().decode().strip():
            word = line.upper()
            if word.startswith(("EHLO", "HELO")):
                self.say("250 post.test")
            elif word.startswith("MAIL FROM:"):
                sender = line[10:].partition(">")[0].strip(" <")
                self.say("250 OK")
            elif word.startswith("RCPT TO:"):
                receivers.append(line[8:].strip(" <>"))
                self.say("550 no such mailbox" if self.server.refuses else "250 OK")
            elif word == "DATA":
                self.say("354 go on")
                self.server.letters.append(Letter(sender, receivers, message_from_bytes(self.data())))
                self.say("250 taken")
            elif word == "QUIT":
                self.say("221 bye")
                return
            else:
                self.say("250 OK")

    def data(self) -> bytes:
        lines = []
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line.removeprefix(b"."))
        return b"".join(lines)

    def say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


class MailServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), MailHandler)
        self.letters: list[Letter] = []
        self.refuses = False

    @property
    def url(self) -> str:
        return f"mailto://127.0.0.1:{self.server_address[1]}?from=train@example.org&mode=insecure"


@dataclass
class Post:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Office:
    """A web server that notes what it is sent, and answers `status`."""

    url: str = ""
    posts: list[Post] = field(default_factory=list)
    status: int = 200
    location: str = ""


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def mail() -> Iterator[MailServer]:
    server = MailServer()
    with serving(server):
        yield server


@contextmanager
def web() -> Iterator[Office]:
    office = Office()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            office.posts.append(Post(self.path, dict(self.headers), body))
            self.send_response(office.status)
            if office.location:
                self.send_header("Location", office.location)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    office.url = f"http://127.0.0.1:{server.server_address[1]}"
    with serving(server):
        yield office
