"""The picture of a ladder and the tables of the multiplier's simulation.

Plain SVG with a style for light and dark; colors are safe for the color-blind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.multiplier.nights import Challenger, Coverage, Setting
from trainer.scoring.multiplier.estimates import estimate_multipliers

STYLE = """<style>
text{font:13px system-ui,sans-serif;fill:#24292f;font-variant-numeric:tabular-nums}
.small{font-size:12px;fill:#57606a}.end{text-anchor:end}.middle{text-anchor:middle}
.hair{stroke:#8c959f;stroke-width:1;fill:none}.faint{stroke:#d0d7de;stroke-width:1}
.band{fill:#0072b2;opacity:.12}.curve{stroke:#0072b2;stroke-width:2;fill:none}.dot{fill:#0072b2}
.new{fill:#d55e00}.newline{stroke:#d55e00;stroke-width:2;fill:none}.open{fill:none;stroke:#0072b2;stroke-width:1.5}
.paper{fill:#fff}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}.paper{fill:#0d1117}.faint{stroke:#30363d}
.hair{stroke:#6e7681}.band{fill:#56b4e9;opacity:.18}.curve{stroke:#56b4e9}.dot{fill:#56b4e9}.open{stroke:#56b4e9}
.new{fill:#f0913a}.newline{stroke:#f0913a}}
</style>"""

SIMULATED = ("<!-- simulated: benchmarks/multiplier/simulation.py writes what follows -->", "<!-- end of simulated -->")


def build_svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    paper = f'<rect class="paper" width="{width}" height="{height}"/>'
    return "\n".join([head, f"<title>{title}</title>", STYLE, paper, *parts, "</svg>"]) + "\n"


def draw_text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{words}</text>'


def draw_line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def draw_dot(x: float, y: float, kind: str, radius: float = 4) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" class="{kind}"/>'


def draw_ladder(rng: np.random.Generator, setting: Setting) -> str:
    """Draw one night: the baseline's runs and curve, an entry, and its multiplier as a distance."""
    fitted, losses = setting.simulate_ladders(rng, 1)
    new = setting.simulate_entry(rng, 1, 1.35, 3)
    reading = estimate_multipliers(fitted, new.loss, 1.0, 3)
    low, high = reading.interval(fitted)

    def scale_x(x: float) -> float:
        return 70 + (x - math.log(0.11)) / math.log(2.3 / 0.11) * 610

    def scale_y(loss: float) -> float:
        return 30 + (3.58 - loss) / (3.58 - 3.17) * 290

    xs = np.linspace(math.log(0.115), math.log(2.2), 80)
    path = " ".join(f"{scale_x(x):.1f},{scale_y(float(fitted.loss_at(np.array([x]))[0])):.1f}" for x in xs)
    loss, crossing = float(new.loss[0]), float(reading.x[0])
    parts = [draw_line(70, 320, 690, 320, "hair"), draw_line(70, 30, 70, 320, "hair")]
    for at, name in ((1 / 8, "1/8"), (1 / 4, "1/4"), (1 / 2, "1/2"), (1, "full budget"), (2, "2")):
        parts.append(draw_text(scale_x(math.log(at)), 338, name, "small middle"))
    for tick in (3.2, 3.3, 3.4, 3.5):
        parts += [
            draw_line(66, scale_y(tick), 690, scale_y(tick), "faint"),
            draw_text(60, scale_y(tick) + 4, f"{tick:.1f}", "small end"),
        ]
    parts.append(f'<polyline class="curve" points="{path}"/>')
    parts += [
        draw_dot(scale_x(math.log(c)), scale_y(value), "open", 3.5)
        for c, value in zip(setting.compute, losses[0], strict=True)
    ]
    parts += [draw_line(scale_x(0), scale_y(loss), scale_x(crossing), scale_y(loss), "newline")]
    parts += [draw_line(scale_x(crossing), scale_y(loss), scale_x(crossing), 320, "faint")]
    parts += [draw_dot(scale_x(0), scale_y(loss), "new", 5), draw_dot(scale_x(crossing), scale_y(loss), "dot", 4)]
    label = f"CM {math.exp(crossing):.3f}, 95 % {low[0]:.3f} to {high[0]:.3f}"
    parts += [draw_text(scale_x(0) - 12, scale_y(loss) + 18, "an entry: mean of 3 runs", "end")]
    parts += [draw_text(scale_x(0) - 12, scale_y(loss) + 36, label, "end")]
    parts += [
        draw_text(scale_x(math.log(0.26)), scale_y(3.47), "the baseline's curve, 22 runs"),
        draw_text(16, 20, "nats per token"),
    ]
    parts += [draw_text(380, 358, "training compute", "small middle")]
    return build_svg(710, 368, "Reading a compute multiplier off the baseline's ladder", parts)


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
