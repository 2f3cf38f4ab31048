"""What a maintainer sees before deciding about an entry: its difference from main, flagged, and its notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from django.core.cache import cache

from leaderboard.models import Entry
from leaderboard.submissions import code_flags as flags
from leaderboard.submissions import diffs, notebook_cells, repositories
from leaderboard.submissions.code_flags import Flag
from leaderboard.submissions.diffs import FileDiff, Line
from leaderboard.submissions.notebook_cells import Cell, NotebookError
from leaderboard.submissions.repositories import Mirror, RepositoryError

READ_FILES = 60
"""So many files are looked into; of a larger change the others are shown without flags."""
CACHE_SECONDS = 7 * 24 * 3600.0
PLACE_ORDER = ("models", "notebook", "trainer", "other")
"""In the order of the page: what is run comes first."""


@dataclass(frozen=True)
class ReviewRow:
    """A line of the difference, and what is to be said about it."""

    line: Line
    flags: Sequence[Flag]


@dataclass(frozen=True)
class ReviewPart:
    """A stretch of lines that belong together."""

    heading: str
    rows: Sequence[ReviewRow]


@dataclass(frozen=True)
class FileReview:
    """One changed file."""

    file: FileDiff
    flags: Sequence[Flag] = ()
    cells: Sequence[Cell] = ()
    problem: str = ""
    """Why a notebook cannot be shown cell by cell."""

    @property
    def parts(self) -> list[ReviewPart]:
        at: dict[int, list[Flag]] = {}
        for flag in self.flags:
            at.setdefault(flag.line, []).append(flag)
        return [
            ReviewPart(
                hunk.heading,
                [ReviewRow(line, at.get(line.new or -1, ()) if line.sign == "+" else ()) for line in hunk.lines],
            )
            for hunk in self.file.hunks
        ]

    @property
    def whole(self) -> list[Flag]:
        """Return the flags that are about no line in particular."""
        return [flag for flag in self.flags if not flag.line]

    @property
    def all_flags(self) -> list[Flag]:
        return [*self.flags, *(flag for cell in self.cells for flag in cell.flags)]

    @property
    def is_open(self) -> bool:
        """Whether it is unfolded at first: what will be run."""
        return self.file.place in ("models", "notebook")


@dataclass(frozen=True)
class Review:
    """What an entry's commit changes."""

    files: Sequence[FileReview] = ()
    problem: str = ""
    """Why nothing, or not all, can be shown."""

    @property
    def counts(self) -> dict[str, int]:
        """Return how often each kind of flag was raised, worst kind first, in the words of the page."""
        found = Counter(flag.kind for file in self.files for flag in file.all_flags)
        return {label: found[kind] for kind, label in flags.KINDS.items() if found[kind]}

    @property
    def added(self) -> int:
        return sum(file.file.added for file in self.files)

    @property
    def removed(self) -> int:
        return sum(file.file.removed for file in self.files)

    @property
    def outside(self) -> int:
        """Return how many files are not among what is run."""
        return sum(not file.is_open for file in self.files)


@dataclass(frozen=True)
class ReviewSummary:
    """As much of a review as a line of the queue shows."""

    files: int
    added: int
    removed: int
    counts: dict[str, int]
    problem: str


def review_entry(entry: Entry) -> Review:
    """Return what the entry's commit changes, read from our own mirror."""
    if not entry.base_sha:
        return Review(problem="It has no history in common with main, so there is no difference to show.")
    try:
        source = repositories.open_mirror(entry.repository)
        text = source.diff(entry.sha, entry.base_sha)
    except RepositoryError as error:
        return Review(problem=f"The difference cannot be shown: {error}")
    files = sorted(diffs.parse_diff(text), key=lambda file: (PLACE_ORDER.index(file.place), file.path))
    looked = [review_file(source, entry, file) for file in files[:READ_FILES]]
    is_cut = len(text) >= repositories.DIFF_LENGTH or len(files) > READ_FILES
    problem = "It changes more than is shown here: read the rest where it was made." if is_cut else ""
    return Review([*looked, *(FileReview(file) for file in files[READ_FILES:])], problem)


def review_file(source: Mirror, entry: Entry, file: FileDiff) -> FileReview:
    if file.status == "deleted" or file.is_binary:
        return FileReview(file)
    if file.path.endswith(".ipynb"):
        try:
            return FileReview(file, cells=notebook_cells.parse_cells(source.source(entry.sha, file.path)))
        except NotebookError as error:
            return FileReview(file, problem=str(error))
    if not file.path.endswith(".py"):
        return FileReview(file, flag_hidden(file))
    after, before = (source.source(sha, file.path).decode(errors="replace") for sha in (entry.sha, entry.base_sha))
    return FileReview(file, flags.find_flags(file.path, after, before, file.added_lines()))


def flag_hidden(file: FileDiff) -> list[Flag]:
    """Return the flags of text that is no Python: what cannot be seen in it."""
    return [
        Flag(file.path, line.new or 0, "hidden", "characters that are not seen")
        for line in file.lines()
        if line.kind == "added" and diffs.has_hidden_characters(line.text)
    ]


def get_review_summary(entry: Entry) -> ReviewSummary:
    """Return the review in brief. A commit never changes, so it is worked out once in a while only."""
    key = f"vetting:{entry.pk}:{entry.sha}:{entry.base_sha}"
    kept: ReviewSummary | None = cache.get(key)
    if kept is None:
        whole = review_entry(entry)
        kept = ReviewSummary(len(whole.files), whole.added, whole.removed, whole.counts, whole.problem)
        if not whole.problem:
            cache.set(key, kept, CACHE_SECONDS)
    return kept
