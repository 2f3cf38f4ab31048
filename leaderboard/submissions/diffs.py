"""Parse git's unified diffs for pages. The text is untrusted.

The parser reads as many lines as a hunk's header announces, so that no line can pass for another file's heading.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)")
ESCAPE = re.compile(r'\\([0-7]{3}|["\\abfnrtv])')
ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
# Unicode categories of invisible characters and of those that change how others are displayed.
HIDDEN = frozenset({"Cf", "Cc", "Co", "Cn", "Cs", "Zl", "Zp"})
PLACES = ("models", "notebook", "trainer", "other")  # in the order of pages: first what runs
CACHE_SECONDS = 7 * 24 * 3600  # a commit never changes; the limit bounds the cache's size
NO_BASE = "The commit of main that it is based on is not known, so there is no diff to show."


@dataclass(frozen=True)
class DiffLine:
    kind: Literal["added", "removed", "same", "note"]
    old: int | None
    new: int | None
    text: str

    @property
    def sign(self) -> str:
        return {"added": "+", "removed": "−", "same": "", "note": ""}[self.kind]

    @property
    def visible_text(self) -> str:
        return escape_hidden(self.text)


@dataclass(frozen=True)
class Hunk:
    heading: str  # the function or class that contains it
    lines: tuple[DiffLine, ...]


@dataclass
class FileDiff:
    path: str
    status: Literal["added", "deleted", "changed"] = "changed"
    is_binary: bool = False
    mode: str = ""  # "executable" or another special mode that is new
    hunks: list[Hunk] = field(default_factory=list)
    is_truncated: bool = False

    @property
    def added(self) -> int:
        return sum(line.kind == "added" for line in self.lines())

    @property
    def removed(self) -> int:
        return sum(line.kind == "removed" for line in self.lines())

    def lines(self) -> Iterator[DiffLine]:
        for hunk in self.hunks:
            yield from hunk.lines

    @property
    def visible_path(self) -> str:
        return escape_hidden(self.path)

    @property
    def place(self) -> str:
        """Return which of `PLACES` the file is in. Entries run files of "models" and "notebook" only."""
        if self.path.startswith("trainer/models/"):
            return "models"
        if self.path.startswith("notebooks/") and self.path.endswith(".ipynb"):
            return "notebook"
        return "trainer" if self.path.startswith("trainer/") else "other"


def escape_hidden(text: str) -> str:
    """Return the text with invisible and direction-changing characters replaced by their code points."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        f"⟨U+{ord(char):04X}⟩" if char != "\t" and unicodedata.category(char) in HIDDEN else char for char in text
    )


def parse_diff(text: str) -> list[FileDiff]:
    """Return the files of a diff without renames, those that entries run first. A truncated diff is accepted."""
    files: list[FileDiff] = []
    lines = iter(text.removesuffix("\n").split("\n"))  # not splitlines: a form feed does not end a line
    for line in lines:
        if line.startswith("diff --git "):
            files.append(FileDiff(parse_path(line.removeprefix("diff --git "))))
        elif not files:
            continue
        elif match := HUNK.match(line):
            hunk, is_complete = parse_hunk(match, lines)
            files[-1].hunks.append(hunk)
            files[-1].is_truncated = not is_complete
        else:
            apply_header(files[-1], line)
    return sorted(files, key=lambda file: (PLACES.index(file.place), file.path))


def parse_path(pair: str) -> str:
    """Return P of `a/P b/P`. Both halves are equal because the diff has no renames."""
    half = pair[: (len(pair) - 1) // 2]
    if half.startswith('"'):
        half = unquote_path(half[1:-1])
    return half.removeprefix("a/")


def unquote_path(text: str) -> str:
    """Undo git's quoting of a path: octal numbers of bytes, and C's escapes."""

    def byte(match: re.Match[str]) -> str:
        word = match[1]
        return chr(int(word, 8) if word.isdigit() else ESCAPES[word])

    return ESCAPE.sub(byte, text).encode("latin-1", "replace").decode(errors="replace")


def apply_header(file: FileDiff, line: str) -> None:
    if line.startswith("new file mode "):
        file.status, file.mode = "added", describe_mode(line)
    elif line.startswith("deleted file mode "):
        file.status = "deleted"
    elif line.startswith("new mode "):
        file.mode = describe_mode(line)
    elif line.startswith(("Binary files ", "GIT binary patch")):
        file.is_binary = True


def describe_mode(line: str) -> str:
    mode = line.rsplit(" ", 1)[-1]
    return {"100755": "executable", "120000": "a link", "160000": "a submodule"}.get(mode, "")


def parse_hunk(header: re.Match[str], lines: Iterator[str]) -> tuple[Hunk, bool]:
    old, new = int(header[1]), int(header[3])
    old_left, new_left = int(header[2] or 1), int(header[4] or 1)
    lines_shown: list[DiffLine] = []
    while old_left > 0 or new_left > 0:
        line = next(lines, None)
        if line is None:
            return Hunk(escape_hidden(header[5]), tuple(lines_shown)), False
        sign, text = line[:1], line[1:]
        if sign == "+":
            lines_shown.append(DiffLine("added", None, new, text))
        elif sign == "-":
            lines_shown.append(DiffLine("removed", old, None, text))
        elif sign == "\\":
            lines_shown.append(DiffLine("note", None, None, text.strip()))
            continue
        else:
            lines_shown.append(DiffLine("same", old, new, text))
        took_old, took_new = sign != "+", sign != "-"
        old, old_left = old + took_old, old_left - took_old
        new, new_left = new + took_new, new_left - took_new
    return Hunk(escape_hidden(header[5]), tuple(lines_shown)), True
