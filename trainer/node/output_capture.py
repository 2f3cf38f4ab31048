"""The job's output: from its pipe into a file of limited size."""

from __future__ import annotations

import codecs
import re
import threading
from pathlib import Path
from typing import IO

OUTPUT_BYTES = 2 << 20  # kept of the output of one lease; the rest is dropped
TRUNCATION_NOTE = f"\n[the output beyond {OUTPUT_BYTES >> 20} MiB is not kept]\n"
CONTROL_CHARACTERS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Terminal escape sequences, and characters that a page or a database cannot hold."""


class OutputCapture(threading.Thread):
    """Reads a pipe until no process holds it any more, and appends readable text to `file`."""

    def __init__(self, pipe: IO[bytes], file: Path) -> None:
        super().__init__(name="output capture", daemon=True)
        self._pipe = pipe
        self._file = file
        self._bytes_left = OUTPUT_BYTES

    def run(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with self._pipe, self._file.open("ab", buffering=0) as out:
            while data := self._pipe.read1(65536):  # type: ignore[attr-defined]
                self._write(decoder.decode(data), out)
            self._write(decoder.decode(b"", final=True), out)

    def _write(self, text: str, out: IO[bytes]) -> None:
        if self._bytes_left <= 0:
            return
        data = CONTROL_CHARACTERS.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).encode()
        self._bytes_left -= len(data)
        if self._bytes_left <= 0:
            data = data[: self._bytes_left].decode(errors="ignore").encode() + TRUNCATION_NOTE.encode()
        out.write(data)
