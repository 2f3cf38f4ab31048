"""What `gpu.sh` measured, as one table: `python -m benchmarks.table FOLDER`. A part that failed shows its last line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

Lines = Iterator[tuple[str, ...]]
"""What it is, tokens per second, MFU, memory, and whatever else there is to say."""

CODES = {"0": "", "124": "out of time", "137": "out of time"}


def bench(content: dict[str, Any]) -> Lines:
    for row in content["contenders"]:
        ratio = row["ratio_to_best_peer"]
        remark = row["error"] or (f"{ratio:.2f} x {content['best_peer']}" if ratio else "")
        yield (row["name"], *speed(row["tokens_per_second"], row["mfu"], row["peak_memory_bytes"]), remark)


def profile(content: dict[str, Any]) -> Lines:
    shares = ", ".join(f"{name} {share:.1%}" for name, share in content["shares"].items())
    idle = content["idle"]
    remark = shares if idle is None else f"{shares}; idle {idle:.1%}"
    figures = speed(content["tokens_per_second"], content["mfu"], content["peak_memory_bytes"])
    yield (f"{content['arch']} in the loop, {content['precision']}", *figures, remark)


def losses(content: dict[str, Any]) -> Lines:
    for name, found in content["losses"].items():
        yield (f"loss {name}", "", "", gigabytes(found["memory_bytes"]), f"{found['seconds'] * 1e3:.1f} ms")


def optimizers(content: dict[str, Any]) -> Lines:
    for name, found in content["optimizers"].items():
        if "error" in found:
            yield (name, "", "", "", found["error"])
        else:
            yield (name, "", "", gigabytes(found["state_bytes"]), f"{found['seconds'] * 1e3:.1f} ms a step")


KINDS: dict[str, Callable[[dict[str, Any]], Lines]] = {
    "bench-1024": bench,
    "bench-2048": bench,
    "depth-12": profile,
    "depth-24": profile,
    "loss": losses,
    "optimizers": optimizers,
}


def speed(tokens_per_second: float | None, mfu: float | None, memory: int | None) -> tuple[str, str, str]:
    return (
        f"{tokens_per_second:,.0f}" if tokens_per_second else "",
        f"{mfu:.1%}" if mfu else "",
        gigabytes(memory) if memory else "",
    )


def gigabytes(number: int) -> str:
    return f"{number / 2**30:.2f} GiB"


def lines_of(folder: Path, part: str, code: str) -> Lines:
    """Return a part's lines of the table. Tests have no JSON: their last line is the result."""
    log, answer = folder / f"{part}.log", folder / f"{part}.json"
    written = [line for file in (log, answer) if file.exists() for line in file.read_text().splitlines() if line]
    if code == "0" and part in KINDS:
        yield from KINDS[part](json.loads(answer.read_text()))
    elif part not in KINDS and code in ("0", "5"):  # 5: pytest found no test
        yield (part, "", "", "", written[-1].strip("= ") if part == "tests" and written else "done")
    else:
        reason = CODES.get(code, f"failed ({code})" if code.isdigit() else code)
        yield (part, "", "", "", f"{reason}: {written[-1]}" if written else reason)


def main(argv: list[str]) -> int:
    folder = Path(argv[0])
    numbers = (Column(name, justify="right") for name in ("tokens/s", "MFU", "memory"))
    table = Table("part", "what", *numbers, Column("", overflow="fold"))
    parts = [line.split("\t") for line in (folder / "parts.tsv").read_text().splitlines()]
    for part, code, seconds in parts:
        for number, cells in enumerate(lines_of(folder, part, code)):
            table.add_row(f"{part} ({seconds} s)" if number == 0 else "", *map(escape, cells))
        table.add_section()
    Console(width=160).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
