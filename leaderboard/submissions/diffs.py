"""A unified diff, as git writes it, taken apart for a page. Pure; the text is a stranger's: nothing in it is trusted.

A hunk's header says how many lines it has, and just those are taken: no line can pass for another file's heading.
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
HIDDEN = frozenset({"Cf", "Cc", "Co", "Cn", "Cs", "Zl", "Zp"})
"""Unicode categories of characters that are not seen, or that change how others are."""
MODELS, TRAINER, NOTEBOOKS = "trainer/models/", "trainer/", "notebooks/"


@dataclass(frozen=True)
class Line:
    kind: Literal["added", "removed", "same", "note"]
    old: int | None
    new: int | None
    text: str

    @property
    def sign(self) -> str:
        return {"added": "+", "removed": "−", "same": "", "note": ""}[self.kind]

    @property
    def shown(self) -> str:
        return escape_hidden(self.text)


@dataclass(frozen=True)
class Hunk:
    heading: str
    """Where git thinks it is: the function or class."""
    lines: tuple[Line, ...]


@dataclass
class FileDiff:
    """What changed in one file."""

    path: str
    status: Literal["added", "deleted", "changed"] = "changed"
    is_binary: bool = False
    mode: str = ""
    """Its new mode where that changed: a link, or something that can be run."""
    hunks: list[Hunk] = field(default_factory=list)
    is_cut: bool = False
    """The text ended in the middle of it."""

    @property
    def added(self) -> int:
        return sum(line.kind == "added" for line in self.lines())

    @property
    def removed(self) -> int:
        return sum(line.kind == "removed" for line in self.lines())

    def lines(self) -> Iterator[Line]:
        for hunk in self.hunks:
            yield from hunk.lines

    def added_lines(self) -> frozenset[int]:
        """Return the numbers of the lines that are new, counted in the new file."""
        return frozenset(line.new for line in self.lines() if line.kind == "added" and line.new is not None)

    @property
    def shown_path(self) -> str:
        return escape_hidden(self.path)

    @property
    def place(self) -> str:
        """Return what the file is to an entry: models (it is trained), notebook, trainer (ours), or other."""
        if self.path.startswith(MODELS):
            return "models"
        if self.path.startswith(NOTEBOOKS) and self.path.endswith(".ipynb"):
            return "notebook"
        return "trainer" if self.path.startswith(TRAINER) else "other"


def escape_hidden(text: str) -> str:
    """Return the text with every character that could hide, or turn around what is read, written as its number."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        f"⟨U+{ord(char):04X}⟩" if char != "\t" and unicodedata.category(char) in HIDDEN else char for char in text
    )


def has_hidden_characters(text: str) -> bool:
    return escape_hidden(text) != text


def parse_diff(text: str) -> list[FileDiff]:
    """Return the files of a diff that was made without renames; one that was cut off ends with what there is."""
    files: list[FileDiff] = []
    lines = iter(text.removesuffix("\n").split("\n"))  # not splitlines: a form feed does not end a line
    for line in lines:
        if line.startswith("diff --git "):
            files.append(FileDiff(parse_path(line.removeprefix("diff --git "))))
        elif not files:
            continue
        elif match := HUNK.match(line):
            hunk, whole = parse_hunk(match, lines)
            files[-1].hunks.append(hunk)
            files[-1].is_cut = not whole
        else:
            apply_header(files[-1], line)
    return files


def parse_path(pair: str) -> str:
    """Return P of `a/P b/P`, whose halves are alike because nothing is taken for a renaming."""
    half = pair[: (len(pair) - 1) // 2]
    if half.startswith('"'):
        half = unquote_path(half.strip('"'))
    return half.removeprefix("a/")


def unquote_path(text: str) -> str:
    """Undo git's quoting of a path: octal numbers of bytes, and C's escapes."""

    def byte(match: re.Match[str]) -> str:
        word = match[1]
        return chr(int(word, 8) if word.isdigit() else ESCAPES[word])

    return ESCAPE.sub(byte, text).encode("latin-1", "replace").decode(errors="replace")


def apply_header(file: FileDiff, line: str) -> None:
    """Take in one of the lines between a file's heading and its hunks."""
    if line.startswith("new file mode "):
        file.status, file.mode = "added", describe_mode(line)
    elif line.startswith("deleted file mode "):
        file.status = "deleted"
    elif line.startswith("new mode "):
        file.mode = describe_mode(line)
    elif line.startswith(("Binary files ", "GIT binary patch")):
        file.is_binary = True


def describe_mode(line: str) -> str:
    """Return what a mode means where it is not that of a plain file."""
    mode = line.rsplit(" ", 1)[-1]
    return {"100755": "executable", "120000": "a link", "160000": "a submodule"}.get(mode, "")


def parse_hunk(header: re.Match[str], lines: Iterator[str]) -> tuple[Hunk, bool]:
    """Return the hunk, and whether all of it was there."""
    old, new = int(header[1]), int(header[3])
    old_left, new_left = int(header[2] or 1), int(header[4] or 1)
    found: list[Line] = []
    while old_left > 0 or new_left > 0:
        line = next(lines, None)
        if line is None:
            return Hunk(escape_hidden(header[5]), tuple(found)), False
        sign, text = line[:1], line[1:]
        if sign == "+":
            found.append(Line("added", None, new, text))
        elif sign == "-":
            found.append(Line("removed", old, None, text))
        elif sign == "\\":
            found.append(Line("note", None, None, text.strip()))
            continue
        else:
            found.append(Line("same", old, new, text))
        took_old, took_new = sign != "+", sign != "-"
        old, old_left = old + took_old, old_left - took_old
        new, new_left = new + took_new, new_left - took_new
    return Hunk(escape_hidden(header[5]), tuple(found)), True
