"""Local servers that receive notices in tests: an SMTP server and an HTTP server."""

from __future__ import annotations

import gzip
import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from typing import Any

from tests.support.http_server import Handler, run_server


@dataclass
class Email:
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
    """The part of SMTP (RFC 5321) that is needed to receive an email."""

    server: MailServer

    def handle(self) -> None:
        self.send_reply("220 post.test ready")
        sender, receivers = "", []
        while line := self.rfile.readline().decode().strip():
            word = line.upper()
            if word.startswith(("EHLO", "HELO")):
                self.send_reply("250 post.test")
            elif word.startswith("MAIL FROM:"):
                sender = line[10:].partition(">")[0].strip(" <")
                self.send_reply("250 OK")
            elif word.startswith("RCPT TO:"):
                receivers.append(line[8:].strip(" <>"))
                self.send_reply("250 OK")
            elif word == "DATA":
                self.send_reply("354 start mail input")
                self.server.emails.append(Email(sender, receivers, message_from_bytes(self.read_data())))
                self.send_reply("250 OK")
            elif word == "QUIT":
                self.send_reply("221 bye")
                return
            else:
                self.send_reply("250 OK")

    def read_data(self) -> bytes:
        lines = []
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line.removeprefix(b"."))
        return b"".join(lines)

    def send_reply(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


class MailServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), MailHandler)
        self.emails: list[Email] = []

    @property
    def url(self) -> str:
        return f"mailto://127.0.0.1:{self.server_address[1]}?from=train@example.org&mode=insecure"


@dataclass
class ReceivedPost:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        is_compressed = self.headers.get("Content-Encoding") == "gzip"
        return (gzip.decompress(self.body) if is_compressed else self.body).decode(errors="replace")


@dataclass
class ChatServer:
    """The state of an HTTP server that records POST requests and responds with `status`."""

    url: str = ""
    posts: list[ReceivedPost] = field(default_factory=list)
    status: int = 200


@contextmanager
def run_mail_server() -> Iterator[MailServer]:
    server = MailServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def run_chat_server() -> Iterator[ChatServer]:
    chat_server = ChatServer()

    class ChatHandler(Handler):
        def do_POST(self) -> None:
            chat_server.posts.append(ReceivedPost(self.path, dict(self.headers), self.read_body()))
            self.send(chat_server.status, b"ok")

    with run_server(ChatHandler) as chat_server.url:
        yield chat_server
