"""The picture of `benchmarks.swarm.churn`: plain SVG with a style for light and dark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

WIDTH, LEFT, RIGHT = 760, 52, 16
UPPER, LOWER, BOTTOM = (64, 264), (300, 372), 404
"""Top and bottom of the two panels, and of the picture."""

STYLE = """<style>
text{font:13px system-ui,sans-serif;fill:#24292f;font-variant-numeric:tabular-nums}
.small{font-size:12px;fill:#57606a}.end{text-anchor:end}.middle{text-anchor:middle}
.hair{stroke:#d0d7de;stroke-width:1}.paper{fill:#fff}.peers{fill:#8c959f;opacity:.35}
.with{stroke:#0072b2;stroke-width:2;fill:none}.without{stroke:#d55e00;stroke-width:1.5;fill:none}
.withname{fill:#0072b2}.withoutname{fill:#d55e00}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}.paper{fill:#0d1117}.hair{stroke:#30363d}
.with{stroke:#56b4e9}.without{stroke:#f0913a}.withname{fill:#56b4e9}.withoutname{fill:#f0913a}}
</style>"""


def picture(story: dict[str, Any]) -> str:
    """Draw both ways' share of what was possible over the hours, and below how many peers there were."""
    hours, most = story["hours"], max(story["peers"])
    quarters = len(story["peers"])

    def across(quarter: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * quarter / quarters

    def high(share: float) -> float:
        return UPPER[1] - (UPPER[1] - UPPER[0]) * min(share, 1.1) / 1.1

    def many(peers: float) -> float:
        return LOWER[1] - (LOWER[1] - LOWER[0]) * peers / most

    title = f"{story['visits']} peers come and go in {hours:g} hours: how much of what the best places would allow"
    parts = [text(LEFT, 22, title), *legend(story)]
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts += [
            line(LEFT, high(share), WIDTH - RIGHT, high(share)),
            text(LEFT - 8, high(share) + 4, f"{share:.0%}", "small end"),
        ]
    for way in ("without", "with"):
        parts.append(curve(shares(story[way]["done"], story["ideal"]["done"]), lambda n: across(n + 0.5), high, way))
    parts.append(area(story["peers"], lambda n: across(n + 0.5), many))
    parts += [text(LEFT, LOWER[0] - 10, "Peers", "small"), text(LEFT - 8, LOWER[0] + 8, str(most), "small end")]
    parts += [
        text(across(4 * hour), LOWER[1] + 18, f"{hour} h", "small middle") for hour in range(0, round(hours) + 1, 4)
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {BOTTOM}" width="{WIDTH}" role="img">'
    paper = f'<rect class="paper" width="{WIDTH}" height="{BOTTOM}"/>'
    return "\n".join([head, f"<title>{title}</title>", STYLE, paper, *parts, "</svg>"]) + "\n"


def legend(story: dict[str, Any]) -> list[str]:
    kinds = (("with", "With rebalancing", LEFT), ("without", "Without", LEFT + 350))
    return [
        text(x, 44, f"{words}: {story[way]['of_ideal']:.1%}, {story[way]['of_static']:.1%} of static", f"{way}name")
        for way, words, x in kinds
    ]


def shares(done: Sequence[int], ideal: Sequence[int]) -> list[float]:
    """Return each quarter of an hour's share of the ideal, with its neighbours: work done in one ends in the next."""
    around = [slice(max(0, n - 1), n + 2) for n in range(len(done))]
    return [sum(done[part]) / max(1, sum(ideal[part])) for part in around]


def curve(values: Sequence[float], x: Callable[[int], float], y: Callable[[float], float], kind: str) -> str:
    points = " ".join(f"{x(n):.1f},{y(value):.1f}" for n, value in enumerate(values))
    return f'<polyline class="{kind}" points="{points}"/>'


def area(values: Sequence[float], x: Callable[[int], float], y: Callable[[float], float]) -> str:
    points = " ".join(f"{x(n):.1f},{y(value):.1f}" for n, value in enumerate(values))
    return f'<polygon class="peers" points="{x(0):.1f},{y(0):.1f} {points} {x(len(values) - 1):.1f},{y(0):.1f}"/>'


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{words}</text>'


def line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="hair"/>'
