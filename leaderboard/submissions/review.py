"""Diffs of entries from main: for the review by a maintainer, with notebooks, and for the public page.

Diffs are untrusted. Public pages do not show git's error messages, since they may name folders of the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.core.cache import cache

from leaderboard.models import Entry
from leaderboard.submissions import diffs, notebook_cells, repositories
from leaderboard.submissions.diffs import FileDiff, Hunk
from leaderboard.submissions.notebook_cells import Cell, NotebookError
from leaderboard.submissions.repositories import Mirror, RepositoryError

ERROR_CACHE_SECONDS = 60
MAX_LINES = 600  # of all files of a public diff
MAX_FILES = 30
MAX_REVIEWED_FILES = 60  # notebooks of further files are not shown cell by cell


@dataclass(frozen=True)
class FileReview:
    """One changed file. `problem`: why a notebook's cells cannot be shown."""

    file: FileDiff
    cells: Sequence[Cell] = ()
    problem: str = ""

    @property
    def is_open(self) -> bool:
        """Whether the page shows it expanded: it will run."""
        return self.file.place in ("models", "notebook")


@dataclass(frozen=True)
class Review:
    """What an entry's commit changes. `problem`: why the diff is missing or incomplete."""

    files: Sequence[FileReview] = ()
    problem: str = ""

    @property
    def added(self) -> int:
        return sum(file.file.added for file in self.files)

    @property
    def removed(self) -> int:
        return sum(file.file.removed for file in self.files)

    @property
    def outside(self) -> int:
        return sum(not file.is_open for file in self.files)


def review_entry(entry: Entry) -> Review:
    if not entry.base_sha:
        return Review(problem=diffs.NO_BASE)
    try:
        source = repositories.open_mirror(entry.repository)
        text = source.read_diff(entry.sha, entry.base_sha)
    except RepositoryError as error:
        return Review(problem=f"The diff cannot be shown: {error}")
    files = diffs.parse_diff(text)
    reviews = [review_file(source, entry, file) for file in files[:MAX_REVIEWED_FILES]]
    is_truncated = len(text) >= repositories.DIFF_LENGTH or len(files) > MAX_REVIEWED_FILES
    problem = "The diff is too long to show completely. Read the rest in its repository." if is_truncated else ""
    return Review([*reviews, *(FileReview(file) for file in files[MAX_REVIEWED_FILES:])], problem)


def review_file(source: Mirror, entry: Entry, file: FileDiff) -> FileReview:
    if file.status == "deleted" or file.is_binary:
        return FileReview(file)
    if file.path.endswith(".ipynb"):
        try:
            return FileReview(file, cells=notebook_cells.parse_cells(source.read_file(entry.sha, file.path)))
        except NotebookError as error:
            return FileReview(file, problem=str(error))
    return FileReview(file)


def get_review_summary(entry: Entry) -> dict[str, Any]:
    """Return the numbers of a review, for one line of the queue. Cached, since a commit never changes."""
    key = f"review:{entry.pk}:{entry.sha}:{entry.base_sha}"
    summary: dict[str, Any] | None = cache.get(key)
    if summary is None:
        review = review_entry(entry)
        summary = {name: getattr(review, name) for name in ("added", "removed", "problem")}
        summary["files"] = len(review.files)
        if not review.problem:
            cache.set(key, summary, diffs.CACHE_SECONDS)
    return summary


# --- the public diff --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Changes:
    """`files` may be truncated; the numbers are those of the whole diff. `problem`: why there is no diff."""

    files: Sequence[FileDiff] = ()
    count: int = 0
    added: int = 0
    removed: int = 0
    omitted: int = 0  # changed lines that are not shown
    problem: str = ""


def get_changes(entry: Entry) -> Changes:
    if not entry.base_sha:
        return Changes(problem=diffs.NO_BASE)
    key = f"changes:{entry.pk}:{entry.sha}:{entry.base_sha}"
    changes: Changes | None = cache.get(key)
    if changes is None:
        try:
            text = repositories.open_mirror(entry.repository).read_diff(entry.sha, entry.base_sha)
            changes = truncate_files(diffs.parse_diff(text))
        except RepositoryError:
            changes = Changes(problem="This site has no copy of the commit, so its diff is not shown here.")
        cache.set(key, changes, ERROR_CACHE_SECONDS if changes.problem else diffs.CACHE_SECONDS)
    return changes


def truncate_files(files: Sequence[FileDiff]) -> Changes:
    room, shown = MAX_LINES, []
    for file in files[:MAX_FILES]:
        hunks = []
        for hunk in file.hunks:
            if room > 0:
                hunks.append(Hunk(hunk.heading, hunk.lines[:room]))
            room -= len(hunk.lines)
        shown.append(replace(file, hunks=hunks))
    return Changes(
        files=shown,
        count=len(files),
        added=(added := sum(file.added for file in files)),
        removed=(removed := sum(file.removed for file in files)),
        omitted=added + removed - sum(file.added + file.removed for file in shown),
    )
