"""Sending one file so that a line which breaks again and again still gets it there."""

from __future__ import annotations

from collections.abc import Callable
from io import BufferedReader

from trainer.node import client as site
from trainer.node.client import Client, Refused, Unreachable, persistently

ELSEWHERE = 416
"""The server has it to another byte than we thought."""


def upload(client: Client, path: str, size: int, content: BufferedReader, give_up: Callable[[], bool]) -> None:
    """Send a file, a large one piece by piece; after a break it goes on from where the server has it.

    Raises as `persistently`.
    """
    if size <= site.PIECE:
        persistently(lambda: whole(client, path, size, content), give_up)
        return
    pieces = Pieces(client, path, size, content)
    while pieces.sent < size:
        persistently(pieces.send_next, give_up)  # patience begins anew with every piece that arrived


def whole(client: Client, path: str, size: int, content: BufferedReader) -> None:
    content.seek(0)
    client.put(path, content, size)


class Pieces:
    def __init__(self, client: Client, path: str, size: int, content: BufferedReader) -> None:
        self._client = client
        self._path = path
        self._size = size
        self._content = content
        self._unsure = False
        self.sent = 0
        """Bytes that the server has."""

    def send_next(self) -> None:
        if self._unsure:
            self.sent = self._client.received(self._path)
            self._unsure = False
        if self.sent >= self._size:
            return
        try:
            self.sent = self._client.put_piece(self._path, self._content, self.sent, self._size)
        except Unreachable:
            self._unsure = True
            raise
        except Refused as error:
            if error.status != ELSEWHERE:
                raise
            self._unsure = True
