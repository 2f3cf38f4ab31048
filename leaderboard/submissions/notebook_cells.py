"""A Jupyter notebook, read for a page: its cells and what they said. Everything in it is a stranger's.

Shown: code, Markdown (no HTML in it, no pictures from elsewhere), text, tracebacks, PNG and JPEG. HTML, JavaScript, SVG
and widgets are named, never shown. Nothing is run. Pure.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from django.utils.safestring import SafeString
from markdown_it import MarkdownIt

from leaderboard.submissions import code_flags as flags
from leaderboard.submissions.diffs import escape_hidden

MAX_BYTES = 8 * 2**20
MAX_CELLS = 500
MAX_TEXT = 20_000
"""Characters of one output that are shown."""
MAX_PICTURE = 2 * 2**20
PICTURES = ("image/png", "image/jpeg")
SIGNATURES = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}
ANSI_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class NotebookError(ValueError):
    """This is no notebook that we read; the message is a sentence for its author."""


@dataclass(frozen=True)
class Output:
    kind: Literal["text", "error", "picture", "unshown"]
    text: str = ""
    """What it says; of a picture its data address, of what is not shown its type."""


@dataclass(frozen=True)
class Cell:
    number: int
    """From 1, as it stands in the file."""
    kind: Literal["code", "markdown", "raw"]
    source: str
    outputs: tuple[Output, ...] = ()
    flags: tuple[flags.Flag, ...] = ()

    @property
    def shown(self) -> str:
        return "\n".join(escape_hidden(line) for line in self.source.split("\n"))

    @property
    def html(self) -> SafeString:
        """Return a Markdown cell's page text; raw HTML comes out as the characters it is made of."""
        return SafeString(get_markdown_parser().render(self.shown))


@cache
def get_markdown_parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable("table").disable(["image", "html_block", "html_inline"])


def parse_notebook(contents: bytes) -> dict[str, Any]:
    """Return the notebook as it is written, format 4; raise NotebookError."""
    if len(contents) > MAX_BYTES:
        raise NotebookError(f"The notebook has {len(contents):,} bytes; at most {MAX_BYTES:,} are taken.")
    try:
        found = json.loads(contents)
    except (ValueError, RecursionError):
        raise NotebookError("The notebook is not valid JSON.") from None
    if not isinstance(found, dict) or found.get("nbformat") != 4 or not isinstance(found.get("cells"), list):
        raise NotebookError("The notebook is not of format 4: open it in Jupyter and save it again.")
    if len(found["cells"]) > MAX_CELLS:
        raise NotebookError(f"The notebook has {len(found['cells'])} cells; at most {MAX_CELLS} are taken.")
    return found


def parse_cells(contents: bytes) -> list[Cell]:
    """Return the cells of a notebook, flagged; raise NotebookError."""
    return [parse_cell(number, given) for number, given in enumerate(parse_notebook(contents)["cells"], 1)]


def parse_cell(number: int, given: object) -> Cell:
    table: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    kind, source = table.get("cell_type"), join_text(table.get("source"))
    if kind == "code":
        return Cell(
            number, "code", source, tuple(parse_outputs(table.get("outputs"))), tuple(flag_source(number, source))
        )
    return Cell(number, "markdown" if kind == "markdown" else "raw", source)


def join_text(text: object) -> str:
    """Return a text that the format may split into lines."""
    if isinstance(text, list):
        return "".join(part for part in text if isinstance(part, str))
    return text if isinstance(text, str) else ""


# --- what is in the code ---------------------------------------------------------------------------------------------


def flag_source(number: int, source: str) -> Iterator[flags.Flag]:
    """Yield the flags of a code cell. Lines that are Jupyter's own, not Python's, are told and then left out."""
    path, plain = f"cell {number}", []
    lines = source.split("\n")
    if source.startswith("%%"):
        yield flags.Flag(path, 1, "process", f"the magic {lines[0].split()[0]}")
        return
    for at, line in enumerate(lines, 1):
        said = line.strip()
        if said.startswith(("!", "%")):
            yield flags.Flag(path, at, "process", f"the shell: {said[:60]}" if said[0] == "!" else f"{said.split()[0]}")
            line = line[: len(line) - len(line.lstrip())] + "pass"
        plain.append(line)
    yield from flags.find_flags(path, "\n".join(plain), "", frozenset(range(len(lines) + 1)))


# --- what it said ----------------------------------------------------------------------------------------------------


def parse_outputs(given: object) -> Iterator[Output]:
    for output in given if isinstance(given, list) else []:
        if not isinstance(output, Mapping):
            continue
        kind = output.get("output_type")
        if kind == "stream":
            yield Output("text", truncate_text(join_text(output.get("text"))))
        elif kind == "error":
            trace = output.get("traceback")
            lines = [line for line in trace if isinstance(line, str)] if isinstance(trace, list) else []
            yield Output("error", truncate_text("\n".join(lines) or f"{output.get('ename')}: {output.get('evalue')}"))
        elif isinstance(data := output.get("data"), Mapping):
            yield choose_representation(data)


def choose_representation(data: Mapping[str, Any]) -> Output:
    """Return what of several forms of one answer can be shown: a picture before text."""
    for kind in PICTURES:
        if kind in data and (address := build_data_url(kind, join_text(data[kind]))):
            return Output("picture", address)
    if "text/plain" in data:
        return Output("text", truncate_text(join_text(data["text/plain"])))
    return Output("unshown", escape_hidden(", ".join(sorted(str(kind) for kind in data)))[:200])


def build_data_url(kind: str, text: str) -> str:
    """Return the data address of a picture that is one, by its first bytes; empty for anything else."""
    try:
        contents = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return ""
    if len(contents) > MAX_PICTURE or not contents.startswith(SIGNATURES[kind]):
        return ""
    return f"data:{kind};base64,{base64.b64encode(contents).decode()}"


def truncate_text(text: str) -> str:
    """Return a text without terminal colours and what hides, cut where it gets long."""
    plain = "\n".join(escape_hidden(line) for line in ANSI_ESCAPES.sub("", text).split("\n"))
    left_out = len(plain) - MAX_TEXT
    return plain if left_out <= 0 else f"{plain[:MAX_TEXT]}\n… {left_out:,} more characters"
