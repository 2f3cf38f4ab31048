"""The picture of `benchmarks.swarm.efficiency`: a panel for each link, machines as measured above, far faster below."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from benchmarks.swarm.churn_picture import line, text
from benchmarks.swarm.efficiency import LINKS, MANY, USUAL, kept, modelled, wider

WIDTH, LEFT, TOP, HIGH, GAP = 860, 52, 108, 150, 74
SHAPES = {(2, 1): "a", (2, 4): "b", (4, 4): "c", (4, 16): "d"}
FASTER = 1000
"""How much faster a GPU is taken to be than the one CPU thread that was measured."""
LARGE = 2**15
"""Micro-batches of a step there: four million tokens, as large models have them."""
WIDER = (2, 4, 8, 16)
"""Times the widest that was measured: further widths below, where it starts to pay."""
STYLE = """<style>
text{font:13px system-ui,sans-serif;fill:#24292f;font-variant-numeric:tabular-nums}
.small{font-size:12px;fill:#57606a}.end{text-anchor:end}.middle{text-anchor:middle}
.hair{stroke:#d0d7de;stroke-width:1}.paper{fill:#fff}polyline{stroke-width:2;fill:none}
.a{stroke:#0072b2}.b{stroke:#d55e00}.c{stroke:#009e73}.d{stroke:#cc79a7}circle{stroke-width:2}
.a.full{fill:#0072b2}.loses{fill:#fff}.pays{fill:none;stroke:none}.seen{fill:#24292f;stroke:none}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}.paper,.loses{fill:#0d1117}
.hair{stroke:#30363d}.seen{fill:#e6edf3}.a{stroke:#56b4e9}.b{stroke:#f0913a}.c{stroke:#2fc79a}.d{stroke:#e3a3c8}}
</style>"""


def picture(story: Mapping[str, Any]) -> str:
    """Draw the share of all machines' work that is kept, by width; rings where one process alone is faster."""
    measured = {int(width): row for width, row in story.items()}
    widest = max(measured)
    beyond = measured | {widest * times: wider(measured[widest], times) for times in WIDER}
    across = (WIDTH - LEFT) / len(LINKS)
    title = "Efficiency of a swarm by width of the model, stages x workers and link"
    parts = [text(LEFT, 22, title), *legend()]
    words = f"each {FASTER:,} times as fast, as a GPU; {LARGE:,} micro-batches; beyond {widest} by the width's square"
    rows = (
        (1, measured, f"each machine one CPU thread, as measured; {USUAL} micro-batches a step"),
        (FASTER, beyond, words),
    )
    for row, (faster, costs, words) in enumerate(rows):
        top = TOP + row * (HIGH + GAP)
        parts.append(text(LEFT, top - 22, words))
        for column, name in enumerate(LINKS):
            left = LEFT + column * across
            parts += panel(costs, name, faster, left, left + across - 28, top)
    bottom = TOP + 2 * HIGH + GAP + 48
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom}" width="{WIDTH}" role="img">'
    paper = f'<rect class="paper" width="{WIDTH}" height="{bottom}"/>'
    return "\n".join([head, f"<title>{title}</title>", STYLE, paper, *parts, "</svg>"]) + "\n"


def panel(
    costs: Mapping[int, Mapping[str, Any]], name: str, faster: int, left: float, right: float, top: float
) -> list[str]:
    widths = sorted(costs)

    def x(width: float) -> float:
        reach = math.log2(widths[-1] / widths[0]) or 1.0
        return left + 10 + (right - left - 20) * math.log2(width / widths[0]) / reach

    def y(share: float) -> float:
        return top + HIGH * (1 - min(share, 1.1) / 1.1)

    parts = [text(left, top - 6, name, "small")]
    for share in (0, 0.5, 1):
        parts.append(line(left, y(share), right, y(share)))
        if left == LEFT:
            parts.append(text(left - 8, y(share) + 4, f"{share:.0%}", "small end"))
    parts += [text(x(width), top + HIGH + 16, short(width), "small middle") for width in widths]
    for (stages, workers), kind in SHAPES.items():
        shares = {}
        for width in widths:
            shares[width] = modelled(
                costs[width], width, stages, workers, LINKS[name], faster, USUAL if faster == 1 else LARGE
            )
        points = " ".join(f"{x(width):.1f},{y(share):.1f}" for width, share in shares.items())
        parts.append(f'<polyline class="{kind}" points="{points}"/>')
        rings = [(w, s) for w, s in shares.items() if s * stages * workers < 1]
        parts += [f'<circle class="{kind} loses" cx="{x(w):.1f}" cy="{y(s):.1f}" r="4"/>' for w, s in rings]
    for width in widths if faster == 1 else ():
        found = costs[width]
        if name in found:
            share = kept(found, name)
            parts.append(f'<rect class="seen" x="{x(width) - 4:.1f}" y="{y(share) - 4:.1f}" width="8" height="8"/>')
    return parts


def short(width: int) -> str:
    return str(width) if width < 1024 else f"{width // 1024}k"


def legend() -> list[str]:
    parts, x = [], float(LEFT)
    for (stages, workers), kind in SHAPES.items():
        parts += [f'<polyline class="{kind}" points="{x:.0f},42 {x + 22:.0f},42"/>']
        parts += [text(x + 28, 46, f"{stages} x {workers}", "small")]
        x += 86
    parts += [text(x, 46, "lines: modelled;", "small")]
    return [*parts, text(x, 62, f"squares: measured, 2 x 1, {MANY}; rings: slower than one machine", "small")]
