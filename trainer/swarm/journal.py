"""What a coordinator knows when it is started again: lines of JSON, each on the disk before anything follows from it.

    {"kind": "run", "config": ...}                                    first of all
    {"kind": "start", "generation": 2}                                each start of the coordinator
    {"kind": "join", "peer": ..., "stage": 0, "step": 3, ...}         has its stage, belongs from this step on
    {"kind": "leave", "peer": ..., "why": ...}                        lost, moved, or gone by itself
    {"kind": "doubt", "peer": ..., "why": ...}                        its sum was wrong; the next time it is a "ban"
    {"kind": "commit", "step": 3, "attempt": ..., "loss": ..., "cover": {stage: {peer: [...]}}, "votes": ..., ...}
    {"kind": "checkpoint", "step": 50} {"kind": "rollback", "to": 50, "lost": [1]} {"kind": "evaluation", ...}
    {"kind": "end", "step": 60}

A commit's line is the step's point of no return: whoever voted must make that update, and will.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAME = "journal.jsonl"
Line = dict[str, Any]


class Led(ValueError):
    """This run has a coordinator."""


class Journal:
    def __init__(self, folder: Path) -> None:
        """Open it, and cut off a line that was not finished when its writer died.

        Raise `Led` if another process has it open. The kernel ends a lock with its process, however that ends.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / NAME
        self.told: Callable[[Line], None] = lambda line: None
        """Hears of each line once it is on the disk."""
        self.file = self.path.open("ab+")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.file.close()
            raise Led(
                f"{folder} is led by another coordinator, which is still running. Nothing was changed. "
                "Wait until it has ended, or end it; it goes on from its journal when it is started again."
            ) from None
        self.file.seek(0)
        whole = self.file.read().rpartition(b"\n")
        self.file.truncate(len(whole[0]) + len(whole[1]))

    def write(self, kind: str, **fields: Any) -> None:
        """Add a line; it is on the disk when this returns."""
        line = {"kind": kind, "time": round(time.time(), 3), **fields}
        self.file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())
        self.told(line)

    def close(self) -> None:
        self.file.close()


def read(folder: Path) -> list[Line]:
    """Return a journal's whole lines, none if there is no journal."""
    path = folder / NAME
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@dataclass
class History:
    """What follows from a journal's lines."""

    config: Line | None = None
    generation: int = 0
    version: int = 0
    """The step to work on."""
    commit: Line | None = None
    """That led to this version; None where nothing did, or a rollback."""
    members: dict[str, Line] = field(default_factory=dict)
    """Lines of those who joined and have not left."""
    ended: bool = False

    @classmethod
    def of(cls, lines: Iterable[Line]) -> History:
        history = cls()
        for line in lines:
            history.take(line)
        return history

    def take(self, line: Line) -> None:
        match line["kind"]:
            case "run":
                self.config = line["config"]
            case "start":
                self.generation = line["generation"]
            case "join":
                self.members[line["peer"]] = line
            case "leave":
                self.members.pop(line["peer"], None)
            case "commit":
                self.version, self.commit = line["step"] + 1, line
            case "rollback":
                self.version, self.commit = line["to"], None
            case "end":
                self.ended = True


def losses(lines: Iterable[Line]) -> list[float]:
    """Return each step's loss, in order; of a step that was made twice, the last one."""
    found = {line["step"]: line["loss"] for line in lines if line["kind"] == "commit"}
    return [found[step] for step in sorted(found)]
