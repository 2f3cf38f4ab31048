"""The log of the tutorials' commands: what each block printed, and how long it took."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

HEADER = """# The tutorials, run from a fresh clone

    RENEW_TUTORIAL_LOG=1 python -m pytest tests/site/test_tutorials.py

The test clones the repository and runs the blocks of a tutorial in order, as a reader who copies and pastes them.
Packages are installed before. A tutorial that is missing here was not run with this option.
The first site has a small corpus, SQLite and a local address in place of a server's. Blocks that begin with `# checks
of the test` are not on the page. Long outputs are cut in the middle. Seconds, measured beside other work, say little.
"""
FIRST_LINES, LAST_LINES, WIDTH = 4, 8, 150
SECRET = re.compile(r"(password of \w+: |dtn_join_)[\w-]+")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class LoggedBlock:
    title: str
    commands: str
    output: Path
    started_at: float = field(default_factory=time.monotonic)
    seconds: float | None = None
    """None: of a terminal, which runs until the end of the tutorial."""


class TutorialLog:
    """Outputs of one tutorial's blocks, in files of `folder`; `replacements`: text in them -> what a reader sees."""

    def __init__(self, folder: Path, replacements: dict[str, str]) -> None:
        self.folder = folder
        self.replacements = replacements
        self.blocks: list[LoggedBlock] = []

    def open_block(self, title: str, commands: str) -> IO[bytes]:
        """Return the file for a block's output."""
        block = LoggedBlock(title, commands, self.folder / f"{len(self.blocks)}.txt")
        self.blocks.append(block)
        return block.output.open("wb")

    def end_block(self) -> None:
        """Note the time of the newest block."""
        self.blocks[-1].seconds = time.monotonic() - self.blocks[-1].started_at

    def read_output(self) -> str:
        """Return what the newest block printed."""
        return self.blocks[-1].output.read_text(errors="replace")

    def build_section(self) -> str:
        return "\n".join(self.build_block(block) for block in self.blocks)

    def build_block(self, block: LoggedBlock) -> str:
        took = "until the end" if block.seconds is None else f"{block.seconds:.0f} s"
        heading = f"{block.title}, {took}" if block.title else took
        commands, output = (
            self.replace_text(text) for text in (block.commands, block.output.read_text(errors="replace"))
        )
        printed = "\n".join(shorten_lines(output))
        return f"### {heading}\n\n```sh\n{commands.strip()}\n```\n" + (f"\n```\n{printed}\n```\n" if printed else "")

    def replace_text(self, text: str) -> str:
        for found, shown in self.replacements.items():
            text = text.replace(found, shown)
        return SECRET.sub(r"\1...", text)


def shorten_lines(output: str) -> list[str]:
    """Return the first and last lines as a terminal shows them: without colors, and the newest state of a line."""
    text = ESCAPE.sub("", output).replace("\r\n", "\n")
    lines = [line.rsplit("\r", 1)[-1].rstrip()[:WIDTH] for line in text.split("\n")]
    lines = [line for line in lines if line and "```" not in line]
    if len(lines) <= FIRST_LINES + LAST_LINES:
        return lines
    left_out = len(lines) - FIRST_LINES - LAST_LINES
    return [*lines[:FIRST_LINES], f"[... {left_out} lines ...]", *lines[-LAST_LINES:]]


def write_section(page: Path, name: str, section: str) -> None:
    """Write the section of one tutorial; those of the others stay."""
    text = page.read_text() if page.exists() else ""
    sections = dict(re.findall(r"^## (\S+)\n\n(.*?)(?=^## |\Z)", text, flags=re.M | re.S))
    sections[name] = section.strip() + "\n\n"
    page.write_text(HEADER + "".join(f"\n## {key}\n\n{sections[key].strip()}\n" for key in sorted(sections)))
