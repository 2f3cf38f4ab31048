"""What a training process printed: its last lines, the lines that hold some words, or all of it.

A stranger's code wrote it: plain text, never HTML, without what only a terminal understands.
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
"""Letters of what is searched for."""
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True)
class Match:
    """A line that holds the words, in three pieces."""

    number: int
    before: str
    words: str
    after: str


@dataclass(frozen=True)
class Log:
    text: str = ""
    """The last lines."""
    words: str = ""
    """What was looked for; empty: nothing was."""
    found: tuple[Match, ...] = ()
    """The last lines that hold it."""
    count: int = 0
    """How many there are."""


def get_log(run: Run, words: str = "") -> Log:
    """Return what a page shows: the end of the log, or where in all of it these words are. One query."""
    words = words.strip()[:MAX_QUERY_LENGTH]
    if run.job_id is None:
        return Log(words=words)
    return search_lines(iterate_lines(iterate_chunks(run)), words) if words else Log(text="\n".join(read_tail(run)))


def get_full_text(run: Run) -> str:
    return "".join(f"{line}\n" for line in iterate_lines(iterate_chunks(run))) if run.job_id else ""


def iterate_chunks(run: Run) -> Iterator[str]:
    kept = LogChunk.objects.filter(lease__job=run.job_id).order_by("lease_id", "offset")
    return kept.values_list("text", flat=True).iterator()


def read_tail(run: Run) -> list[str]:
    last = LogChunk.objects.filter(lease__job=run.job_id).order_by("-lease_id", "-offset")
    texts = list(last.values_list("text", flat=True)[:TAIL_CHUNKS])
    return list(iterate_lines(reversed(texts)))[-SHOWN_LINES:]


def iterate_lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield whole lines; of one that was written over again and again, as a progress bar is, the last state."""
    rest = ""
    for text in texts:
        *ready, rest = (rest + text).split("\n")
        yield from map(strip_escapes, ready)
    if rest:
        yield strip_escapes(rest)


def strip_escapes(line: str) -> str:
    return ESCAPE.sub("", line.rstrip("\r").rpartition("\r")[2])


def search_lines(texts: Iterable[str], words: str) -> Log:
    """Look for the words, as they are, in upper or lower case."""
    pattern = re.compile(re.escape(words), re.IGNORECASE)
    last: deque[Match] = deque(maxlen=SHOWN_LINES)
    count = 0
    for number, line in enumerate(texts, 1):
        if at := pattern.search(line):
            count += 1
            last.append(Match(number, line[: at.start()], at[0], line[at.end() :]))
    return Log(words=words, found=tuple(last), count=count)
