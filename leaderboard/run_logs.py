"""Logs of training processes: the last lines, matching lines, or the whole log.

The text is untrusted: plain text without terminal escapes, never HTML.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from leaderboard.models import Run
from scheduler.models import LogChunk

TAIL_CHUNKS = 20
SHOWN_LINES = 200
MAX_QUERY_LENGTH = 80
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True)
class LogMatch:
    """A matching line, split at the match."""

    number: int
    before: str
    words: str
    after: str


@dataclass(frozen=True)
class Log:
    text: str = ""  # the last lines
    words: str = ""  # the query
    found: tuple[LogMatch, ...] = ()  # the last matching lines
    count: int = 0  # of all matching lines


def get_log(run: Run, words: str = "") -> Log:
    """Return the end of the log, or the lines that match the query. One query."""
    words = words.strip()[:MAX_QUERY_LENGTH]
    if run.job_id is None:
        return Log(words=words)
    if words:
        return search_lines(iterate_lines(iterate_chunks(run)), words)
    chunks = LogChunk.objects.filter(lease__job=run.job_id).order_by("-lease_id", "-offset")
    last = list(chunks.values_list("text", flat=True)[:TAIL_CHUNKS])
    return Log(text="\n".join(list(iterate_lines(reversed(last)))[-SHOWN_LINES:]))


def get_full_text(run: Run) -> str:
    return "".join(f"{line}\n" for line in iterate_lines(iterate_chunks(run))) if run.job_id else ""


def iterate_chunks(run: Run) -> Iterator[str]:
    chunks = LogChunk.objects.filter(lease__job=run.job_id).order_by("lease_id", "offset")
    return chunks.values_list("text", flat=True).iterator()


def iterate_lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield complete lines. Of a line that was overwritten, such as a progress bar, the last state counts."""
    rest = ""
    for text in texts:
        *ready, rest = (rest + text).split("\n")
        yield from map(strip_escapes, ready)
    if rest:
        yield strip_escapes(rest)


def strip_escapes(line: str) -> str:
    return ESCAPE.sub("", line.rstrip("\r").rpartition("\r")[2])


def search_lines(texts: Iterable[str], words: str) -> Log:
    pattern = re.compile(re.escape(words), re.IGNORECASE)
    last: deque[LogMatch] = deque(maxlen=SHOWN_LINES)
    count = 0
    for number, line in enumerate(texts, 1):
        if match := pattern.search(line):
            count += 1
            last.append(LogMatch(number, line[: match.start()], match[0], line[match.end() :]))
    return Log(words=words, found=tuple(last), count=count)
