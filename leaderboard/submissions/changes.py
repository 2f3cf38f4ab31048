"""What an entry changes, for everybody to read: its difference from main, from our own mirror.

Maintainers see more of it (`vetting.py`). Strangers wrote it: nothing in it is trusted, hidden characters are
shown as numbers. What git says when it fails stays here, since it may name folders of the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from django.core.cache import cache

from leaderboard.models import Entry
from leaderboard.submissions import diffs, repositories
from leaderboard.submissions.diffs import FileDiff, Hunk
from leaderboard.submissions.repositories import RepositoryError

CACHE_SECONDS = 7 * 24 * 3600
"""A commit never changes; without a limit pages nobody opens would stay for ever."""
FAILED_SECONDS = 60
MAX_LINES = 600
"""Of all files together; who wants more reads it where it was made."""
MAX_FILES = 30
ORDER = ("models", "notebook", "trainer", "other")


@dataclass(frozen=True)
class Changes:
    files: Sequence[FileDiff] = ()
    """As far as they are shown."""
    count: int = 0
    added: int = 0
    removed: int = 0
    left_out: int = 0
    """Changed lines that are not shown."""
    problem: str = ""
    """Why there is nothing to show."""


def get_changes(entry: Entry) -> Changes:
    """Return what the entry changes; one call of git, once in a while."""
    if not entry.base_sha:
        return Changes(problem="It has no history in common with main, so there is no difference to show.")
    key = f"changes:{entry.pk}:{entry.sha}:{entry.base_sha}"
    kept: Changes | None = cache.get(key)
    if kept is None:
        kept = compute_changes(entry)
        cache.set(key, kept, FAILED_SECONDS if kept.problem else CACHE_SECONDS)
    return kept


def compute_changes(entry: Entry) -> Changes:
    try:
        text = repositories.open_mirror(entry.repository).diff(entry.sha, entry.base_sha)
    except RepositoryError:
        return Changes(problem="This site has no copy of the commit at hand, so its difference is not shown here.")
    return truncate_files(sorted(diffs.parse_diff(text), key=lambda file: (ORDER.index(file.place), file.path)))


def truncate_files(files: Sequence[FileDiff]) -> Changes:
    """Keep what a page has room for: what is trained first."""
    room, shown = MAX_LINES, []
    for file in files[:MAX_FILES]:
        hunks = []
        for hunk in file.hunks:
            if room > 0:
                hunks.append(Hunk(hunk.heading, hunk.lines[:room]))
            room -= len(hunk.lines)
        shown.append(replace(file, hunks=hunks))
    whole = sum(file.added + file.removed for file in files)
    return Changes(
        files=shown,
        count=len(files),
        added=sum(file.added for file in files),
        removed=sum(file.removed for file in files),
        left_out=whole - sum(file.added + file.removed for file in shown),
    )
