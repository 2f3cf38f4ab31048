"""Upload one file over a connection that may break repeatedly."""

from __future__ import annotations

from collections.abc import Callable
from io import BufferedReader

from trainer.node import client as site
from trainer.node.client import RequestRefusedError, ServerUnreachableError, SiteClient, retry_until_reachable

OFFSET_MISMATCH_STATUS = 416  # the server has another number of bytes than we thought


def upload_file(
    client: SiteClient, path: str, size: int, content: BufferedReader, should_give_up: Callable[[], bool]
) -> None:
    """Upload a file, a large one in pieces; after a break, continue from what the server has.

    Raises what `retry_until_reachable` raises.
    """
    if size <= site.PIECE_BYTES:
        retry_until_reachable(lambda: upload_whole_file(client, path, size, content), should_give_up)
        return
    pieces = PieceUpload(client, path, size, content)
    while pieces.sent < size:
        retry_until_reachable(pieces.send_next, should_give_up)  # every piece that arrives resets the backoff


def upload_whole_file(client: SiteClient, path: str, size: int, content: BufferedReader) -> None:
    content.seek(0)
    client.put_file(path, content, size)


class PieceUpload:
    def __init__(self, client: SiteClient, path: str, size: int, content: BufferedReader) -> None:
        self._client = client
        self._path = path
        self._size = size
        self._content = content
        self._is_offset_unknown = False
        self.sent = 0  # bytes that the server has

    def send_next(self) -> None:
        if self._is_offset_unknown:
            self.sent = self._client.get_received_bytes(self._path)
            self._is_offset_unknown = False
        if self.sent >= self._size:
            return
        try:
            self.sent = self._client.put_piece(self._path, self._content, self.sent, self._size)
        except ServerUnreachableError:
            self._is_offset_unknown = True
            raise
        except RequestRefusedError as error:
            if error.status != OFFSET_MISMATCH_STATUS:
                raise
            self._is_offset_unknown = True
