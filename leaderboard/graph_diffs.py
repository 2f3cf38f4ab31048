"""How two graphs differ, call by call, for reviewers. The files are untrusted.

A call is one line: its result, operator and arguments. A result is named by its module, its operator and a number, so
that an inserted call renames only those of the same operator after it in the same module: `%blocks.0.mlp/mul.2`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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


def compare_files(name: str, before: bytes | None, after: bytes | None) -> GraphDiff:
    """Compare two files of graphs; None: there is none, or it is too large."""
    try:
        old, new = list_file(before), list_file(after)
    except ListingError as error:
        return GraphDiff(name, problem=str(error))
    hunks, room, omitted = [], MAX_SHOWN_LINES, 0
    for group in difflib.SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT_LINES):
        lines = [line for opcode in group for line in list_diff_lines(old, new, *opcode)]
        omitted += max(0, len(lines) - room)
        if room > 0:
            hunks.append(Hunk("", tuple(lines[:room])))
        room -= len(lines)
    return GraphDiff(name, hunks, omitted)


def list_file(content: bytes | None) -> list[str]:
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
        self.lines: list[str] = []
        self.counts: Counter[str] = Counter()

    def add_file(self, content: Mapping[str, Any]) -> list[str]:
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

    def add(self, text: str) -> None:
        """Add a line; the end of a long one is replaced by a hash, which shows that it differs."""
        if len(text) > MAX_LINE_LENGTH:
            text = f"{text[:MAX_LINE_LENGTH]}… (SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:16]})"
        self.lines.append(text)

    def add_graph(self, graph: Mapping[str, Any], indent: str) -> None:
        results: dict[str, str] = {}
        for number, call in enumerate(graph["calls"]):
            operator, arguments = call["operator"], call.get("arguments", [])
            if operator == SELECTION:
                results[f"%{number}"] = select_result(*arguments, results=results)
                continue
            written = [write_value(value, results) for value in arguments]
            written += [f"{key}={write_value(value, results)}" for key, value in (call.get("keywords") or {}).items()]
            results[f"%{number}"] = name = self.name_result(call.get("module") or "", operator)
            self.add(f"{indent}{name} = {operator}({', '.join(written)})")
            if call.get("graph") is not None:
                self.add_graph(call["graph"], indent + "  ")
        self.add(f"{indent}return {write_value(graph['outputs'], results)}")

    def name_result(self, module: str, operator: str) -> str:
        """Return an unambiguous name. It is repeated at each use, so an untrusted file must not make it long."""
        prefix = f"%{module[-MAX_NAME_LENGTH:]}/{operator.rpartition('::')[2][:MAX_NAME_LENGTH]}"
        self.counts[prefix] += 1
        return f"{prefix}.{self.counts[prefix]}"


def select_result(source: object, position: object, *, results: Mapping[str, str]) -> str:
    """Return the name of a selected result, of bounded length, too."""
    if not isinstance(source, str) or len(source) > MAX_NAME_LENGTH:
        raise TypeError("a selection takes a result")
    if type(position) is not int or not 0 <= position < MAX_RESULTS:
        raise TypeError("a selection takes the position of a result")
    selected = f"{results.get(source, source)}[{position}]"
    if selected.count("[") > MAX_NESTED_SELECTIONS:
        raise ValueError("too many selections from each other")
    return selected


def write_value(value: Any, results: Mapping[str, str]) -> str:
    """Return an argument as text (`trainer.graph.files` describes its JSON)."""
    if isinstance(value, str):
        return results.get(value, value)
    if isinstance(value, list):
        return f"[{', '.join(write_value(item, results) for item in value)}]"
    if isinstance(value, Mapping) and (named := [value[kind] for kind in NAMED_VALUES if kind in value]):
        return str(named[0])
    return "None" if value is None else write_json(value)


def write_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
