"""Fit the baseline's best matrix rate and batch over three sizes, and test rules for both at a larger one.

    python -m benchmarks.scaling_laws [--scale 0.25] [--out FILE.json]

At each size the loss is a parabola in ln(rate), and in ln(batch) with rates ~ sqrt(batch); its lowest point is the best
setting. Power laws of width and of tokens go through the three best settings. At the held-out size, which no law has
seen, the best rate is measured and compared with what each rule predicts from the smaller sizes. Everything runs on one
thread; a finished run is not repeated. Budgets are those of `benchmarks.peers`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks.contenders import ours
from benchmarks.contenders.base import ROWS, SEQUENCE_LENGTH, Factors, Size
from benchmarks.contenders.command_line import build_parser, exit_with, prepare_text
from benchmarks.contenders.results import Entry, Row, Trainer, hash_files
from benchmarks.peers import SIZES
from trainer.errors import UserError
from trainer.trials.plan import list_shared_sources

HELD_OUT = Size(4, 320, 6e12)
RATE = 0.02  # of matrices, at factor 1
FACTORS = (0.5, 1.0, 2.0, 4.0)
BATCH_ROWS = (2, 4, 8)
RULES = {"constant (nanochat's for Muon)": 0.0, "1/sqrt(width)": -0.5, "1/width (muP)": -1.0}
"""Exponents of the width in the best matrix rate."""
BATCH_EXPONENT = 0.383  # of tokens, in the rule that nanochat and `trainer.models.scaling` use
RESULTS = Path(__file__).parent / "results" / "scaling-laws.json"


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_arguments(argv)
    torch.set_num_threads(1)
    console = Console(stderr=True)
    dataset = prepare_text(options)
    trainer = Trainer(options.out, dataset, lambda line: console.print(line, highlight=False, soft_wrap=True))
    entry = Entry("gpt", ours.OurGPT, hash_files([*list_shared_sources(), Path(ours.__file__)]))
    sizes = [Size(size.depth, size.width, size.budget * options.scale) for size in (*SIZES, HELD_OUT)]
    points = [measure_rates(trainer, entry, size, options.factors) for size in sizes]
    rates = {"rates": points, **compare_rules(points)}
    trainer.save(laws=rates)
    sys.stdout.write(format_rates(rates) + "\n\n")
    batches = [measure_batches(trainer, entry, size) for size in sizes[:-1]]
    laws = {**rates, "batches": batches, **fit_batch_law(batches)}
    trainer.save(laws=laws)
    sys.stdout.write(format_batches(laws) + "\n")
    return 0


def measure_rates(trainer: Trainer, entry: Entry, size: Size, factors: Sequence[float]) -> dict[str, Any]:
    """Train a size at each factor on the matrix rate; return losses and the best rate."""
    rows = [trainer.run(entry, size, 1.0, 1, Factors(matrices=factor), ROWS, "rate") for factor in factors]
    return {"size": size.name, "width": size.width, **fit_best([RATE * factor for factor in factors], rows)}


def measure_batches(trainer: Trainer, entry: Entry, size: Size) -> dict[str, Any]:
    """Train a size with each batch, all rates ~ sqrt(batch); return losses and the best batch in tokens."""
    rows = []
    for number in BATCH_ROWS:
        scale = (number / ROWS) ** 0.5
        factors = Factors(matrices=scale, embeddings=scale, scalars=scale, smear=scale)
        rows.append(trainer.run(entry, size, 1.0, 1, factors, number, "batch"))
    found = fit_best([number * SEQUENCE_LENGTH for number in BATCH_ROWS], rows)
    tokens = [row["tokens"] for row in rows if row.get("tokens")]  # a run that diverged has none
    return {"size": size.name, "tokens": tokens[-1], **found}


def fit_best(settings: Sequence[float], rows: Sequence[Row]) -> dict[str, Any]:
    """Fit a parabola of the loss in ln(setting); return its lowest point if it lies inside the settings.

    `bound`: "low" or "high" if it lies outside, and the best setting is the one at that end. Raise `UserError` if all
    runs diverged.
    """
    pairs = [(math.log(s), row["bits_per_byte"]) for s, row in zip(settings, rows, strict=True) if row["bits_per_byte"]]
    if not pairs:
        raise UserError("the runs of a size diverged at every setting: lower --factors")
    x, y = (np.array(values) for values in zip(*pairs, strict=True))
    found: dict[str, Any] = {"settings": [math.exp(value) for value in x], "losses": y.tolist()}
    if len(x) < 3:
        return {**found, "best": float(np.exp(x[y.argmin()])), "bound": "few", "parabola": None}
    parabola = np.polyfit(x, y, 2)
    lowest = -parabola[1] / (2 * parabola[0]) if parabola[0] > 0 else x[y.argmin()]
    bound = "low" if lowest < x.min() else "high" if lowest > x.max() else None
    best = float(np.exp(np.clip(lowest, x.min(), x.max())))
    return {**found, "best": best, "bound": bound, "parabola": parabola.tolist()}


def compare_rules(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Predict the last point's best rate from the others by each rule; return errors and their cost in loss."""
    *known, held_out = points
    x = np.log([point["width"] for point in known])
    y = np.log([point["best"] for point in known])
    exponent, start = np.polyfit(x, y, 1)
    rules = {**RULES, "fitted": float(exponent)}
    target = math.log(held_out["width"])
    predictions = {}
    for name, power in rules.items():
        level = start if name == "fitted" else float(np.mean(y - power * x))
        rate = math.exp(level + power * target)
        predictions[name] = {
            "exponent": power,
            "rate": rate,
            "error": rate / held_out["best"] - 1,
            "cost": find_cost(held_out, rate),
        }
    return {"rate_exponent": float(exponent), "predictions": predictions}


def find_cost(point: dict[str, Any], rate: float) -> float | None:
    """Return the loss at a rate above that at the best one, on the point's parabola; None without one."""
    if point["parabola"] is None:
        return None
    return float(np.polyval(point["parabola"], math.log(rate)) - np.polyval(point["parabola"], math.log(point["best"])))


def fit_batch_law(batches: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the exponent of a run's tokens in its best batch."""
    tokens, best = (np.log([batch[name] for batch in batches]) for name in ("tokens", "best"))
    if np.ptp(tokens) < 0.5:
        return {"batch_exponent": None}  # runs of nearly equal length do not determine it
    return {"batch_exponent": float(np.polyfit(tokens, best, 1)[0])}


def format_rates(laws: dict[str, Any]) -> str:
    lines = ["| size | best matrix rate | bits per byte at each rate |", "|---|---|---|"]
    for point in laws["rates"]:
        lines.append(f"| {point['size']} | {format_best(point, '.4f')} | {format_losses(point, '.3g')} |")
    lines += [
        "",
        "| rule for the matrix rate | at the held-out size | error | cost, bits per byte |",
        "|---|---|---|---|",
    ]
    for name, found in laws["predictions"].items():
        cost = "unknown" if found["cost"] is None else f"{found['cost']:.4f}"
        label = f"{name}, width^{found['exponent']:.2f}"
        lines.append(f"| {label} | {found['rate']:.4f} | {found['error']:+.0%} | {cost} |")
    return "\n".join(lines)


def format_batches(laws: dict[str, Any]) -> str:
    lines = ["| size | tokens | best batch, tokens | bits per byte at each batch |", "|---|---|---|---|"]
    for point in laws["batches"]:
        cells = (point["size"], f"{point['tokens']:,}", format_best(point, ",.0f"), format_losses(point, ".0f"))
        lines.append("| " + " | ".join(cells) + " |")
    exponent = laws["batch_exponent"]
    fitted = "not resolved" if exponent is None else f"tokens^{exponent:.2f}"
    return "\n".join([*lines, "", f"Best batch: {fitted}; the rule in use: tokens^{BATCH_EXPONENT}."])


def format_best(point: dict[str, Any], form: str) -> str:
    note = {"low": " or less", "high": " or more", "few": " of too few"}.get(point["bound"] or "", "")
    return f"{point['best']:{form}}{note}"


def format_losses(point: dict[str, Any], form: str) -> str:
    return ", ".join(f"{s:{form}}: {loss:.4f}" for s, loss in zip(point["settings"], point["losses"], strict=True))


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser(__doc__, RESULTS)
    parser.add_argument("--factors", type=float, nargs="+", default=list(FACTORS), help="on the matrix rate of 0.02")
    return parser.parse_args(argv)


if __name__ == "__main__":
    exit_with(main)
