"""How two graphs differ, call by call, for reviewers. The files are untrusted.

A call is one line: its operator, its arguments and its module. The result of a call is written as `%` and the number of
its line. An inserted call would change all numbers after it, so the lines of both graphs are aligned first, without
numbers. Calls of the second graph that the first has too then have its numbers, and `%+` marks the others.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leaderboard.submissions.diffs import DiffLine, Hunk

SELECTION = "result::item"
"""Takes one of several results of a call. It computes nothing, so it has no line: `%3[1]`."""
MAX_LINES = 4000  # of a graph that is compared
MAX_SHOWN_LINES = 1000  # of a diff
MAX_LINE_LENGTH = 300
MAX_NESTED_SELECTIONS = 10
MAX_NAME_LENGTH = 100  # of what a selection selects from
MAX_RESULTS = 10_000  # of a call
CONTEXT_LINES = 2
NAMED_VALUES = ("dtype", "memory_format", "number")

Part = str | int
"""Text of a line, or the index of the line whose result it reads."""


class ListingError(ValueError):
    """The graph cannot be compared; the message is for its reviewer."""


@dataclass(frozen=True)
class GraphDiff:
    """The difference of two graphs. `problem`: why it is unknown."""

    name: str
    hunks: list[Hunk] = field(default_factory=list)
    omitted: int = 0  # lines that are not shown
    problem: str = ""

    @property
    def changed(self) -> int:
        """Return the number of shown lines that differ."""
        return sum(line.kind != "same" for hunk in self.hunks for line in hunk.lines)


@dataclass(frozen=True)
class Line:
    parts: tuple[Part, ...]

    def write(self, name_result: Callable[[int], str]) -> str:
        """Return the text; the end of a long one is replaced by a hash, which shows that it differs."""
        text = "".join(part if isinstance(part, str) else name_result(part) for part in self.parts)
        if len(text) <= MAX_LINE_LENGTH:
            return text
        return f"{text[:MAX_LINE_LENGTH]}… (SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:16]})"


def compare_files(name: str, before: bytes | None, after: bytes | None) -> GraphDiff:
    """Compare two files of graphs; None: there is none, or it is too large."""
    try:
        return compare_listings(name, list_file(before), list_file(after))
    except ListingError as error:
        return GraphDiff(name, problem=str(error))


def list_file(content: bytes | None) -> list[Line]:
    """Return the lines of `train.json`, `eval.json` or `init.json`. Raises `ListingError`."""
    if content is None:
        raise ListingError("A file is missing or too large to be compared here. Compare the files with each other.")
    try:
        lines = Listing().add_file(json.loads(content))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ListingError("A file is not a valid graph. Do not approve it before you know why.") from error
    if len(lines) > MAX_LINES:
        raise ListingError(f"A graph has more than {MAX_LINES:,} calls. Download the files and compare them.")
    return lines


def compare_listings(name: str, before: Sequence[Line], after: Sequence[Line]) -> GraphDiff:
    same = align_lines(before, after)
    old = [line.write(lambda number: f"%{number + 1}") for line in before]
    new = [line.write(lambda number: f"%{same[number] + 1}" if number in same else f"%+{number + 1}") for line in after]
    hunks, room, omitted = [], MAX_SHOWN_LINES, 0
    for group in difflib.SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT_LINES):
        lines = [line for opcode in group for line in list_diff_lines(old, new, *opcode)]
        omitted += max(0, len(lines) - room)
        if room > 0:
            hunks.append(Hunk("", tuple(lines[:room])))
        room -= len(lines)
    return GraphDiff(name, hunks, omitted)


def align_lines(before: Sequence[Line], after: Sequence[Line]) -> dict[int, int]:
    """Return the indices of lines of `after` -> those of the same calls in `before`, whose arguments may differ."""
    old, new = ([line.write(lambda _: "%") for line in each] for each in (before, after))
    same: dict[int, int] = {}
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new).get_opcodes():
        if tag == "equal":
            same.update(zip(range(j1, j2), range(i1, i2), strict=True))
        elif tag == "replace":
            old_operators, new_operators = (
                [text.partition("(")[0] for text in texts] for texts in (old[i1:i2], new[j1:j2])
            )
            for i, j, size in difflib.SequenceMatcher(None, old_operators, new_operators).get_matching_blocks():
                same |= {j1 + j + k: i1 + i + k for k in range(size)}
    return same


def list_diff_lines(
    old: Sequence[str], new: Sequence[str], tag: str, i1: int, i2: int, j1: int, j2: int
) -> Iterator[DiffLine]:
    """Yield the lines of one of difflib's opcodes."""
    if tag == "equal":
        yield from (DiffLine("same", i + 1, i - i1 + j1 + 1, old[i]) for i in range(i1, i2))
        return
    yield from (DiffLine("removed", i + 1, None, old[i]) for i in range(i1, i2))
    yield from (DiffLine("added", None, j + 1, new[j]) for j in range(j1, j2))


class Listing:
    """Collects the lines of a file."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def add_file(self, content: Mapping[str, Any]) -> list[Line]:
        """Add graphs call by call, and of other lists and tables (tensors, constants) one line for each item."""
        for name, value in content.items():
            if isinstance(value, Mapping) and "calls" in value:
                self.add(f"{name}({', '.join(map(write_json, value['inputs']))})")
                self.add_graph(value, "  ")
            elif isinstance(value, Mapping):
                for key, item in value.items():
                    self.add(f"{name} {key} {write_json(item)}")
            elif isinstance(value, list):
                for item in value:
                    self.add(f"{name} {write_json(item)}")
            else:
                self.add(f"{name} {write_json(value)}")
        return self.lines

    def add(self, *parts: Part) -> None:
        self.lines.append(Line(parts))

    def add_graph(self, graph: Mapping[str, Any], indent: str) -> None:
        results: dict[str, list[Part]] = {}
        for number, call in enumerate(graph["calls"]):
            arguments = call.get("arguments", [])
            if call["operator"] == SELECTION:
                results[f"%{number}"] = select_result(*arguments, results=results)
                continue
            results[f"%{number}"] = [len(self.lines)]
            written = [write_value(value, results) for value in arguments]
            written += [
                [f"{key}=", *write_value(value, results)] for key, value in (call.get("keywords") or {}).items()
            ]
            module = f"  {call['module']}" if call.get("module") else ""
            self.add(f"{indent}{call['operator']}(", *join_parts(written), f"){module}")
            if call.get("graph") is not None:
                self.add_graph(call["graph"], indent + "  ")
        self.add(f"{indent}return ", *write_value(graph["outputs"], results))


def select_result(source: object, position: object, *, results: Mapping[str, Sequence[Part]]) -> list[Part]:
    """Return the parts of a selection. They are repeated at each use, so an untrusted file must not make them long."""
    if not isinstance(source, str) or len(source) > MAX_NAME_LENGTH:
        raise TypeError("a selection takes a result")
    if type(position) is not int or not 0 <= position < MAX_RESULTS:
        raise TypeError("a selection takes the position of a result")
    selected = [*results.get(source, [source]), f"[{position}]"]
    if len(selected) > MAX_NESTED_SELECTIONS:
        raise ValueError("too many selections from each other")
    return selected


def join_parts(written: Sequence[Sequence[Part]]) -> Iterator[Part]:
    for number, parts in enumerate(written):
        if number:
            yield ", "
        yield from parts


def write_value(value: Any, results: Mapping[str, Sequence[Part]]) -> list[Part]:
    """Return the parts of an argument (`trainer.graph.files` describes its JSON)."""
    if isinstance(value, str):
        return list(results.get(value, [value]))
    if isinstance(value, list):
        return ["[", *join_parts([write_value(item, results) for item in value]), "]"]
    if isinstance(value, Mapping) and (named := [value[kind] for kind in NAMED_VALUES if kind in value]):
        return [str(named[0])]
    return ["None" if value is None else write_json(value)]


def write_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
