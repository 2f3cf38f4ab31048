"""Sends lines of the job's `metrics.jsonl` to the server in numbered batches."""

from __future__ import annotations

from typing import Any

from trainer.node.background_sender import BackgroundSender
from trainer.node.job import Job
from trainer.protocol import MetricsBatch
from trainer.sandbox.safe_files import UnsafeFileError, open_file, parse_json_object

FILE = "metrics.jsonl"
ROWS = 500
BATCH_BYTES = 512_000
LINE_BYTES = 32_000  # longer lines are skipped
FILE_BYTES = 64 << 20  # lines beyond this are skipped


class MetricsSender(BackgroundSender):
    def __init__(self, job: Job) -> None:
        super().__init__(job.client, job.lease, job.stop_signal, "metrics")
        self._out = job.workspace.out
        self._offset = self._sequence = 0

    def send_next(self) -> bool:
        lines = self._read_lines()
        if not lines:
            return False
        rows = tuple(row for line in lines if (row := parse_metrics_row(line)) is not None)
        if rows:
            self.post("metrics", MetricsBatch(sequence=self._sequence + 1, rows=rows))
            self._sequence += 1
        self._offset += sum(map(len, lines))
        return True

    def _read_lines(self) -> list[bytes]:
        """Return the next complete lines; a line that the job is still writing waits."""
        if self._offset > FILE_BYTES:
            return []
        try:
            with open_file(self._out, FILE) as file:
                file.seek(self._offset)
                data = file.read(BATCH_BYTES)
        except (OSError, UnsafeFileError):
            return []
        lines = data.splitlines(keepends=True)[:ROWS]
        if len(data) == BATCH_BYTES and len(lines) == 1:
            return lines  # a line longer than a batch is skipped in pieces, none of which is an object
        return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]


def parse_metrics_row(line: bytes) -> dict[str, Any] | None:
    row = parse_json_object(line, LINE_BYTES)
    return row if row is not None and isinstance(row.get("kind"), str) else None
