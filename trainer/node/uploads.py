"""Sending one file so that a line which breaks again and again still gets it there."""

from __future__ import annotations

from collections.abc import Callable
from io import BufferedReader

from trainer.node import client as site
from trainer.node.client import RequestRefusedError, ServerUnreachableError, SiteClient, retry_until_reachable

ELSEWHERE = 416
"""The server has it to another byte than we thought."""


def upload_file(client: SiteClient, path: str, size: int, content: BufferedReader, give_up: Callable[[], bool]) -> None:
    """Send a file, a large one piece by piece; after a break it goes on from where the server has it.

    Raises as `persistently`.
    """
    if size <= site.PIECE_BYTES:
        retry_until_reachable(lambda: upload_whole_file(client, path, size, content), give_up)
        return
    pieces = PieceUpload(client, path, size, content)
    while pieces.sent < size:
        retry_until_reachable(pieces.send_next, give_up)  # patience begins anew with every piece that arrived


def upload_whole_file(client: SiteClient, path: str, size: int, content: BufferedReader) -> None:
    content.seek(0)
    client.put(path, content, size)


class PieceUpload:
    def __init__(self, client: SiteClient, path: str, size: int, content: BufferedReader) -> None:
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
        except ServerUnreachableError:
            self._unsure = True
            raise
        except RequestRefusedError as error:
            if error.status != ELSEWHERE:
                raise
            self._unsure = True
