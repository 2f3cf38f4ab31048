"""Sends the job's output to the server."""

from __future__ import annotations

import codecs

from trainer.node.background_sender import BackgroundSender
from trainer.node.job import Job
from trainer.protocol import LogChunk

CHUNK_BYTES = 48_000


class LogSender(BackgroundSender):
    def __init__(self, job: Job) -> None:
        super().__init__(job.client, job.lease, job.stop_signal, "log")
        self._file = job.workspace.output
        self._offset = 0

    def send_next(self) -> bool:
        if not self._file.exists():
            return False
        with self._file.open("rb") as file:
            file.seek(self._offset)
            text = decode_complete_characters(file.read(CHUNK_BYTES))
        if not text:
            return False
        self.post("log", LogChunk(offset=self._offset, text=text))
        self._offset += len(text.encode())
        return True


def decode_complete_characters(data: bytes) -> str:
    """Decode UTF-8 without a last character that is cut off; it comes with the next chunk."""
    return codecs.getincrementaldecoder("utf-8")().decode(data)
