"""Parse Jupyter notebooks for pages: their cells and outputs, all of it untrusted.

Shown: code, Markdown (without HTML and remote images), text, tracebacks, PNG and JPEG. HTML, JavaScript, SVG and
widgets are named, never shown. Nothing runs.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from django.utils.safestring import SafeString

from leaderboard.markdown import render_markdown
from leaderboard.submissions.diffs import escape_hidden

MAX_BYTES = 8 * 2**20
MAX_CELLS = 500
MAX_TEXT = 20_000  # characters of one output
MAX_PICTURE = 2 * 2**20
PICTURES = ("image/png", "image/jpeg")
SIGNATURES = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}
ANSI_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class NotebookError(ValueError):
    """The notebook cannot be read; the message is for its author."""


@dataclass(frozen=True)
class Output:
    """`text` is the data URL of a picture and the MIME type of an output that is not shown."""

    kind: Literal["text", "error", "picture", "unshown"]
    text: str = ""


@dataclass(frozen=True)
class Cell:
    number: int  # from 1
    kind: Literal["code", "markdown", "raw"]
    source: str
    outputs: tuple[Output, ...] = ()

    @property
    def visible_source(self) -> str:
        return "\n".join(escape_hidden(line) for line in self.source.split("\n"))

    @property
    def html(self) -> SafeString:
        """Return a Markdown cell as HTML."""
        return render_markdown(self.visible_source)


def parse_notebook(contents: bytes) -> dict[str, Any]:
    if len(contents) > MAX_BYTES:
        raise NotebookError(f"The notebook has {len(contents):,} bytes; at most {MAX_BYTES:,} are allowed.")
    try:
        notebook = json.loads(contents)
    except (ValueError, RecursionError):
        raise NotebookError("The notebook is not valid JSON.") from None
    if not isinstance(notebook, dict) or notebook.get("nbformat") != 4 or not isinstance(notebook.get("cells"), list):
        raise NotebookError("The notebook is not of format 4: open it in Jupyter and save it again.")
    if len(notebook["cells"]) > MAX_CELLS:
        raise NotebookError(f"The notebook has {len(notebook['cells'])} cells; at most {MAX_CELLS} are allowed.")
    return notebook


def parse_cells(contents: bytes) -> list[Cell]:
    """Return the cells of a notebook, or raise NotebookError."""
    return [parse_cell(number, given) for number, given in enumerate(parse_notebook(contents)["cells"], 1)]


def parse_cell(number: int, given: object) -> Cell:
    table: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    kind, source = table.get("cell_type"), join_text(table.get("source"))
    if kind == "code":
        return Cell(number, "code", source, tuple(parse_outputs(table.get("outputs"))))
    return Cell(number, "markdown" if kind == "markdown" else "raw", source)


def join_text(text: object) -> str:
    """Return a text that the format may have split into lines."""
    if isinstance(text, list):
        return "".join(part for part in text if isinstance(part, str))
    return text if isinstance(text, str) else ""


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
    for kind in PICTURES:
        if kind in data and (address := build_data_url(kind, join_text(data[kind]))):
            return Output("picture", address)
    if "text/plain" in data:
        return Output("text", truncate_text(join_text(data["text/plain"])))
    return Output("unshown", escape_hidden(", ".join(sorted(str(kind) for kind in data)))[:200])


def build_data_url(kind: str, text: str) -> str:
    """Return the data URL of a picture with a valid signature, else an empty string."""
    try:
        contents = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return ""
    if len(contents) > MAX_PICTURE or not contents.startswith(SIGNATURES[kind]):
        return ""
    return f"data:{kind};base64,{base64.b64encode(contents).decode()}"


def truncate_text(text: str) -> str:
    """Return text without terminal colors, with hidden characters escaped, limited to `MAX_TEXT`."""
    clean = "\n".join(escape_hidden(line) for line in ANSI_ESCAPES.sub("", text).split("\n"))
    omitted = len(clean) - MAX_TEXT
    return clean if omitted <= 0 else f"{clean[:MAX_TEXT]}\n… {omitted:,} more characters"
