"""The notebooks of a commit: which belong together, in which order, and the tar of exactly their bytes.

`notebooks/sorbian.ipynb` is a series of one; `notebooks/sorbian-part1.ipynb`, `-part2`, ... run one after the other.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from leaderboard.submissions import notebook_cells, repositories
from leaderboard.submissions.notebook_cells import NotebookError
from leaderboard.submissions.repositories import Mirror
from trainer import protocol

FOLDER = "notebooks/"
NOTEBOOK = re.compile(r"notebooks/(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]{0,59}?)(?:-part(?P<part>[1-9]\d?))?\.ipynb")
MAX_PARTS = 20
MAX_BYTES = 8 * 2**20
"""Of all parts together."""


@dataclass(frozen=True)
class Series:
    """Notebooks that make one run."""

    name: str
    parts: tuple[protocol.FileRef, ...]
    bundle: bytes


def find_series_names(paths: Iterable[str]) -> list[str]:
    """Return the names of the series that any of these files belong to, sorted."""
    return sorted({match["name"] for path in paths if (match := NOTEBOOK.fullmatch(path))})


def choose_series(changed: Iterable[str], wanted: str) -> str:
    """Return the series that a commit is about; raise NotebookError where that is not plain."""
    found = find_series_names(changed)
    if wanted:
        if wanted not in found:
            raise NotebookError(f"The commit changes no notebook called {wanted!r} in {FOLDER}.")
        return wanted
    if not found:
        raise NotebookError(f"The commit changes no notebook in {FOLDER}, like {FOLDER}idea.ipynb.")
    if len(found) > 1:
        raise NotebookError(f"The commit changes the notebooks {' and '.join(found)}: say which of them to run.")
    return found[0]


def order_parts(paths: Iterable[str], name: str) -> list[str]:
    """Return the files of a series, first part first; raise NotebookError where one is missing or too many."""
    parts = {
        int(match["part"] or 0): path for path in paths if (match := NOTEBOOK.fullmatch(path)) and match["name"] == name
    }
    if 0 in parts and len(parts) > 1:
        raise NotebookError(f"{parts[0]} stands beside parts of the same name: rename one of them.")
    numbers = sorted(parts)
    if numbers != [0] and numbers != list(range(1, len(numbers) + 1)):
        raise NotebookError(f"The parts of {name} are numbered {', '.join(map(str, numbers))}: they count from 1 on.")
    if len(numbers) > MAX_PARTS:
        raise NotebookError(f"{name} has {len(numbers)} parts; at most {MAX_PARTS} are taken.")
    return [parts[number] for number in numbers]


def read_series(source: Mirror, sha: str, name: str) -> Series:
    """Return a series as it stands in a commit; raise NotebookError, or RepositoryError."""
    contents = {path: source.source(sha, path) for path in order_parts(source.changed_files(sha, None), name)}
    for path, content in contents.items():
        try:
            notebook_cells.parse_cells(content)
        except NotebookError as error:
            raise NotebookError(f"{path}: {error}") from None
    total = sum(map(len, contents.values()))
    if total > MAX_BYTES:
        raise NotebookError(f"The notebooks of {name} have {total:,} bytes; at most {MAX_BYTES:,} are taken.")
    parts = [
        protocol.FileRef(path=path, sha256=hashlib.sha256(content).hexdigest(), size=len(content))
        for path, content in contents.items()
    ]
    return Series(name, tuple(parts), repositories.pack_bundle(contents))
