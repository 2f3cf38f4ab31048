"""The tables of the multiplier's simulation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.multiplier.nights import Challenger, Coverage, Setting

SIMULATED = ("<!-- simulated: benchmarks/multiplier/simulation.py writes what follows -->", "<!-- end of simulated -->")


def format_tables(
    found: Sequence[Coverage],
    stressed: Sequence[tuple[Setting, Coverage]],
    strained: Sequence[float],
    rates: Sequence[tuple[Challenger, float, float]],
    separations: float,
    challenges: int,
) -> str:
    """Return the tables as Markdown. `stressed`: two rows for each setting; `strained`: one."""
    lines = ["| true CM | runs | coverage | half-width |", "|---|---|---|---|"]
    lines += [f"| {row.multiplier:.2f} | {row.runs} | {row.rate:.2%} | ±{row.half_width:.2%} |" for row in found]
    lines += ["", f"{found[0].trials:,} nights a row: the standard error of a coverage is {found[0].error:.2%}.", ""]
    lines += ["Where the assumptions bend: true CM 1.05; false records by a copy of the baseline with 3 runs.", ""]
    lines += [
        "| setting | runs | coverage | half-width | resolvable | false records in 1,000 |",
        "|---|---|---|---|---|---|",
    ]
    for index, (setting, row) in enumerate(stressed):
        records = f"{strained[index // 2] * 1000:.2f}" if index % 2 == 0 else ""
        lines.append(
            f"| {setting.name} | {row.runs} | {row.rate:.1%} | ±{row.half_width:.2%} | {row.resolved:.1%} | {records} |"
        )
    apart = f"are distinguished in {separations:.2%} of nights (promised: 5 %)."
    lines += ["", f"Two equal entries (1 run, and 3 at 0.8 of the compute) {apart}", ""]
    lines += [
        "| challenger, no better than the record | false records in 1,000 | the same rule at 99.9 % |",
        "|---|---|---|",
    ]
    lines += [f"| {challenger.name} | {ours * 1000:.2f} | {plain * 1000:.2f} |" for challenger, plain, ours in rates]
    lines += ["", f"{challenges:,} challenges a row."]
    return "\n".join(lines)


def replace_tables(path: Path, tables: str) -> None:
    """Replace the text between the two marks by the tables."""
    before, _, rest = path.read_text(encoding="utf-8").partition(SIMULATED[0])
    _, _, after = rest.partition(SIMULATED[1])
    path.write_text(f"{before}{SIMULATED[0]}\n\n{tables}\n\n{SIMULATED[1]}{after}", encoding="utf-8")
