"""The coordinator's journal: lines of JSON, each on disk before anything depends on it.

    {"kind": "run", "config": ...}                                    the first line
    {"kind": "start", "generation": 2}                                each start of the coordinator
    {"kind": "join", "peer": ..., "stage": 0, "step": 3, ...}         has loaded its stage; a member from this step on
    {"kind": "leave", "peer": ..., "why": ...}                        lost, moved, or stopped by its owner
    {"kind": "first_strike", "peer": ..., "why": ...}                 its gradient sum was wrong; next time: "ban"
    {"kind": "commit", "step": 3, "attempt": ..., "loss": ..., "cover": {stage: {peer: [...]}}, "votes": ..., ...}
    {"kind": "checkpoint", "step": 50} {"kind": "rollback", "to": 50, "lost": [1]} {"kind": "evaluation", ...}
    {"kind": "end", "step": 60}

A commit line is the step's point of no return: every member that voted has to make that update.
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

from trainer.errors import UserError

JOURNAL_FILE = "journal.jsonl"
JournalLine = dict[str, Any]


class RunLockedError(UserError):
    """Another coordinator is running this run."""


class Journal:
    def __init__(self, folder: Path, on_write: Callable[[JournalLine], None] = lambda line: None) -> None:
        """Open and lock the journal, and remove a last line that is incomplete because its writer died.

        `on_write` is called with each line once it is on disk. Raise `RunLockedError` if another process holds the
        lock. The kernel releases a lock when its process ends.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.on_write = folder / JOURNAL_FILE, on_write
        self.file = self.path.open("ab+")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.file.close()
            raise RunLockedError(
                f"{folder} is in use by another coordinator. Nothing was changed. "
                "Wait until it has ended or stop it; it resumes from its journal when it is started again."
            ) from None
        self.file.seek(0)
        complete = self.file.read().rpartition(b"\n")
        self.file.truncate(len(complete[0]) + len(complete[1]))

    def write(self, kind: str, **fields: Any) -> None:
        """Append a line; it is on disk when this returns."""
        line = {"kind": kind, "time": round(time.time(), 3), **fields}
        self.file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())
        self.on_write(line)

    def close(self) -> None:
        self.file.close()


def read_journal(folder: Path) -> list[JournalLine]:
    """Return a journal's complete lines, or none without a journal."""
    path = folder / JOURNAL_FILE
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@dataclass
class JournalState:
    """The state of a run, replayed from its journal."""

    config: JournalLine | None = None
    generation: int = 0
    version: int = 0  # The step to work on
    commit: JournalLine | None = None  # The commit that led to this version; None at the start and after a rollback
    members: dict[str, JournalLine] = field(default_factory=dict)  # The join lines of peers that have not left

    @classmethod
    def from_lines(cls, lines: Iterable[JournalLine]) -> JournalState:
        state = cls()
        for line in lines:
            match line["kind"]:
                case "run":
                    state.config = line["config"]
                case "start":
                    state.generation = line["generation"]
                case "join":
                    state.members[line["peer"]] = line
                case "leave":
                    state.members.pop(line["peer"], None)
                case "commit":
                    state.version, state.commit = line["step"] + 1, line
                case "rollback":
                    state.version, state.commit = line["to"], None
        return state


def get_losses(lines: Iterable[JournalLine]) -> list[float]:
    """Return the losses in step order; for a step that was repeated after a rollback, the last one."""
    losses = {line["step"]: line["loss"] for line in lines if line["kind"] == "commit"}
    return [losses[step] for step in sorted(losses)]
