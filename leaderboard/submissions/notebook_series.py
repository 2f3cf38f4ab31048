"""Series of notebooks in a commit: their parts in order, and a bundle of them.

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
MAX_BYTES = 8 * 2**20  # of all parts together


@dataclass(frozen=True)
class Series:
    name: str
    parts: tuple[protocol.FileRef, ...]
    bundle: bytes


def find_series_names(paths: Iterable[str]) -> list[str]:
    return sorted({match["name"] for path in paths if (match := NOTEBOOK.fullmatch(path))})


def choose_series(changed: Iterable[str], requested: str) -> str:
    """Return the name of the series to run. Raise NotebookError if it is missing or ambiguous."""
    names = find_series_names(changed)
    if requested:
        if requested not in names:
            raise NotebookError(f"The commit changes no notebook called {requested!r} in {FOLDER}.")
        return requested
    if not names:
        raise NotebookError(f"The commit changes no notebook in {FOLDER}, like {FOLDER}idea.ipynb.")
    if len(names) > 1:
        raise NotebookError(f"The commit changes the notebooks {' and '.join(names)}. Choose one of them.")
    return names[0]


def order_parts(paths: Iterable[str], name: str) -> list[str]:
    """Return the files of a series in order. Raise NotebookError if a part is missing or there are too many."""
    matches = [match for path in paths if (match := NOTEBOOK.fullmatch(path)) and match["name"] == name]
    parts = {int(match["part"] or 0): match[0] for match in matches}
    if 0 in parts and len(parts) > 1:
        raise NotebookError(f"{parts[0]} and its numbered parts have the same name: rename one of them.")
    numbers = sorted(parts)
    if numbers != [0] and numbers != list(range(1, len(numbers) + 1)):
        shown = ", ".join(map(str, numbers))
        raise NotebookError(f"The parts of {name} are numbered {shown}: number them from 1 without gaps.")
    if len(numbers) > MAX_PARTS:
        raise NotebookError(f"{name} has {len(numbers)} parts; at most {MAX_PARTS} are allowed.")
    return [parts[number] for number in numbers]


def read_series(source: Mirror, sha: str, name: str) -> Series:
    """Read a series from a commit. Raise NotebookError or RepositoryError."""
    contents = {path: source.read_file(sha, path) for path in order_parts(source.list_changed_files(sha, None), name)}
    for path, content in contents.items():
        try:
            notebook_cells.parse_cells(content)
        except NotebookError as error:
            raise NotebookError(f"{path}: {error}") from None
    total = sum(map(len, contents.values()))
    if total > MAX_BYTES:
        raise NotebookError(f"The notebooks of {name} have {total:,} bytes; at most {MAX_BYTES:,} are allowed.")
    parts = [
        protocol.FileRef(path=path, sha256=hashlib.sha256(content).hexdigest(), size=len(content))
        for path, content in contents.items()
    ]
    return Series(name, tuple(parts), repositories.pack_bundle(contents))
