"""Draw the modules of a traced architecture: one rectangle each, as high as its share of the FLOPs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib import colormaps, rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

MIN_LABEL_SHARE = 0.012  # of the height, for a label to fit


def draw_modules(content: dict[str, Any], path: Path) -> None:
    """Write an SVG for what `describe_traced` returned: children stand to the right of their module, in call order."""
    tree = build_tree(content["modules"])
    depth = measure_depth(tree)
    figure = Figure(figsize=(2.4 * depth + 0.6, 9), layout="constrained")
    axes = figure.add_subplot(xlim=(0, depth), ylim=(1, 0))
    axes.set_axis_off()
    draw_node(axes, f"model, {content['flops_per_token']:,.0f} FLOPs a token", tree, 0, 0.0, 1.0)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "dailytrain"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def build_tree(modules: list[dict[str, Any]]) -> dict[str, Any]:
    """Return nested nodes `{"flops": with those of children, "children": {name: node}}` from dotted names."""
    root: dict[str, Any] = {"flops": 0.0, "children": {}}
    for module in modules:
        node = root
        node["flops"] += module["flops_per_token"]
        for part in module["name"].split(".") if module["name"] else ():
            node = node["children"].setdefault(part, {"flops": 0.0, "children": {}})
            node["flops"] += module["flops_per_token"]
    return root


def measure_depth(node: dict[str, Any]) -> int:
    return 1 + max((measure_depth(child) for child in node["children"].values()), default=0)


def draw_node(axes: Any, name: str, node: dict[str, Any], level: int, top: float, height: float) -> None:
    color = colormaps["YlGnBu"](0.12 + 0.5 * min(1.0, height))
    axes.add_patch(Rectangle((level, top), 0.98, height, facecolor=color, edgecolor="white"))
    if height >= MIN_LABEL_SHARE:
        label = name if level == 0 else f"{name}  {height:.1%}"
        axes.text(level + 0.03, top + height / 2, label, va="center", fontsize=8, clip_on=True)
    start = top
    for child_name, child in node["children"].items():
        share = height * child["flops"] / node["flops"] if node["flops"] else 0.0
        draw_node(axes, child_name, child, level + 1, start, share)
        start += share
