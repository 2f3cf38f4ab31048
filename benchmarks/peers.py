"""Train a peer's recipe and ours on the same tokens to the same FLOPs, and print our compute multipliers.

    python -m benchmarks.peers --nanochat PATH [--scale 0.25] [--trials 8] [--out FILE.json]

PATH is a checkout of https://github.com/karpathy/nanochat: its model and optimizer are imported from there. Its runs at
half, all and twice the budget are the ladder, and ours at the full budget are read off it. Both sides' factors on
rates, decay and warmup are tuned by the same number of trials at the smallest size; each side's own rules carry them to
the other sizes. Ours with an n-gram memory takes over ours' factors, and its table's own rate is tuned by a
few trials more. Everything runs on one thread. Results are kept in the file, and a finished run is not repeated, so
the same command resumes after an interruption.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from scipy.special import stdtrit

from benchmarks.contenders import nanochat, ours
from benchmarks.contenders.base import ROWS, SEQUENCE_LENGTH, Factors, Size
from benchmarks.contenders.results import Entry, Row, Trainer, hash_files, select_runs
from benchmarks.contenders.search import replace_none, tune_factors
from benchmarks.contenders.speed import measure_cpu_seconds
from trainer.accounting.budget import parse_size
from trainer.data.dataset import prepare_dataset
from trainer.errors import UserError
from trainer.scoring.multiplier import Axis, ResultsError, compare_entries, parse_results
from trainer.trials.plan import list_shared_sources

SIZES = (Size(2, 128, 1e12), Size(3, 192, 2e12), Size(4, 256, 4e12))
PEER, OURS, OURS_WITH_MEMORY = "nanochat", "gpt", "gpt with memory"
MEMORY_ROWS = 65_536
MEMORY_FACTORS = (1.0, 0.5, 0.3, 0.2, 0.1)  # on the rate of the table, tried at the smallest size
SEEDS = (1, 2, 3)
LADDER = {0.5: SEEDS, 1.0: SEEDS, 2.0: SEEDS[:1]}
"""Seeds of the peer's runs at each share of the budget. The first number of each size is the budget of a full run."""
RESULTS = Path(__file__).parent / "results" / "peers.json"
TEXT = "text/gutenberg/train-*.jsonl.xz"  # in $DAILYTRAIN_DATA
FORMS = {"eager": False, "compiled": True}  # of the models


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_arguments(argv)
    torch.set_num_threads(1)
    entries = build_entries(options.nanochat)
    console = Console(stderr=True)
    if options.corpus is None:
        raise UserError(f"set DAILYTRAIN_DATA to the folder of {TEXT}, or name other text with --corpus")
    dataset = prepare_dataset(options.corpus, options.tokenizer, limit_bytes=parse_size(options.limit_bytes))
    sizes = [Size(size.depth, size.width, size.budget * options.scale) for size in SIZES[: options.sizes]]
    trainer = Trainer(options.out, dataset, lambda line: console.print(line, highlight=False, soft_wrap=True))
    if options.report:
        print_tables(trainer, sizes, entries, options.rows)
        return 0
    tuned = {entry.name: tune_entry(trainer, entry, sizes[0], options) for entry in entries[:2]}
    tuned[OURS_WITH_MEMORY] = tune_table(trainer, entries[2], sizes[0], tuned[OURS], options.rows)
    trainer.save(tuned={name: vars(factors) for name, factors in tuned.items()})
    for size in sizes:
        measure_speed(trainer, entries, size, options)
        run_size(trainer, entries, size, tuned, options.rows)
        print_tables(trainer, sizes, entries, options.rows)
    return 0


def build_entries(path: Path) -> list[Entry]:
    """Return the peer, ours, and ours with an n-gram memory. Raises `NanochatError`."""
    nanochat.import_classes(path)
    theirs = [path / name for name in nanochat.FILES]
    source = hash_files([*list_shared_sources(), Path(ours.__file__)])
    return [
        Entry(PEER, partial(nanochat.build_nanochat, path=path), hash_files([*theirs, Path(nanochat.__file__)])),
        Entry(OURS, ours.OurGPT, source),
        Entry(OURS_WITH_MEMORY, partial(ours.OurGPT, memory_rows=MEMORY_ROWS), source),
    ]


def tune_entry(trainer: Trainer, entry: Entry, size: Size, options: argparse.Namespace) -> Factors:
    torch.compiler.set_stance("force_eager")  # the same numbers, and compiling costs more than it saves here
    defaults = Factors()
    if entry.name == PEER:
        defaults = nanochat.choose_default_factors(options.rows * SEQUENCE_LENGTH)

    def compute_loss(factors: Factors) -> float | None:
        return trainer.run(entry, size, 1.0, SEEDS[0], factors, options.rows, "search")["bits_per_byte"]

    return tune_factors(defaults, options.trials, compute_loss)


def tune_table(trainer: Trainer, entry: Entry, size: Size, factors: Factors, rows: int) -> Factors:
    """Return the factors with the best of a few on the table's rate."""
    torch.compiler.set_stance("force_eager")
    tried = [dataclasses.replace(factors, memory=factor) for factor in MEMORY_FACTORS]
    found = [trainer.run(entry, size, 1.0, SEEDS[0], factors, rows, "search") for factors in tried]
    losses = [replace_none(run["bits_per_byte"]) for run in found]
    return tried[losses.index(min(losses))]


def run_size(trainer: Trainer, entries: Sequence[Entry], size: Size, tuned: dict[str, Factors], rows: int) -> None:
    """Train the peer's ladder and our runs at one size, the full budget first."""
    torch.compiler.set_stance("force_eager")
    for share, seeds in sorted(LADDER.items(), key=lambda pair: (pair[0] != 1, pair[0])):
        for seed in seeds:
            for entry in entries if share == 1 else entries[:1]:
                trainer.run(entry, size, share, seed, tuned[entry.name], rows, "ladder")


def measure_speed(trainer: Trainer, entries: Sequence[Entry], size: Size, options: argparse.Namespace) -> None:
    """Measure CPU-seconds of a token in the forms for which the file lacks an entry, for all entries by turns."""
    vocabulary = trainer.dataset.manifest["tokenizer"]["vocabulary_size"]
    for form in options.forms:
        speed = trainer.load().get("speed", {})
        key = f"{size.name} {form}"
        if not {entry.name for entry in entries} <= set(speed.get(key, {})):
            measured = measure_cpu_seconds(entries, size, options.rows, vocabulary, FORMS[form])
            trainer.save(speed={**speed, key: measured})


def print_tables(trainer: Trainer, sizes: Sequence[Size], entries: Sequence[Entry], rows: int) -> None:
    """Print our multipliers over the peer at each size that has them, and store them in the file."""
    content = trainer.load()
    tuned = content.get("tuned", {})
    runs: list[Row] = []
    for entry in entries:
        identity = {"entry": entry.name, "source": entry.source, "factors": tuned.get(entry.name), "rows": rows}
        runs += select_runs(content["runs"], dataset=trainer.dataset.hash, **identity)
    speed = content.get("speed", {})
    pairs = [(size, entry.name) for size in sizes for entry in entries[1:]]
    table = [row for size, name in pairs if (row := compare_size(runs, speed, size, name))]
    trainer.save(multipliers=table)
    sys.stdout.write(format_table(table) + "\n\n")


def compare_size(runs: Sequence[Row], speed: dict[str, Any], size: Size, name: str) -> dict[str, Any] | None:
    """Return the multipliers of one of our entries at a size, in FLOPs and in the CPU-seconds of each measured form;
    None without runs."""
    shares = [size.budget * share for share in LADDER]
    runs = [
        run for run in runs if run["size"] == size.name and run["budget"] in shares and run["entry"] in (PEER, name)
    ]
    if len({run["entry"] for run in runs}) < 2:
        return None
    row: dict[str, Any] = {"size": size.name, "budget": size.budget, "entry": name, "runs": len(runs)}
    row |= {"peer_loss": mean_loss(runs, PEER, size.budget), "loss": mean_loss(runs, name, size.budget)}
    row["flops"] = estimate(runs, name, "flops", lambda run: 1.0)
    row["paired"] = estimate_paired(runs, name, size.budget)
    for form in FORMS:
        measured = speed.get(f"{size.name} {form}")
        if measured and name in measured:
            row[f"{form}_seconds"] = estimate(runs, name, "seconds", lambda run, m=measured: m[run["entry"]]["median"])
            row[f"{form}_cost"] = measured[name]["median"] / measured[PEER]["median"]
    return row


def estimate(runs: Sequence[Row], name: str, axis: Axis, get_seconds: Any) -> dict[str, Any]:
    """Return an entry's multiplier with its interval. Seconds are a run's tokens times the seconds of a token."""
    records = [{**run, "seconds": run["tokens"] * get_seconds(run)} for run in runs]
    try:
        comparison = compare_entries(parse_results(records), PEER, axis)
    except ResultsError as error:
        return {"verdict": str(error)}
    return next(row for row in comparison.entries if row.entry == name).to_dict()  # type: ignore[return-value]


def estimate_paired(runs: Sequence[Row], name: str, budget: float) -> dict[str, float] | None:
    """Return an entry's multiplier in FLOPs with the interval of the differences between runs of one seed.

    None with fewer than two such pairs. A seed gives both the same tokens in the same order, so what they share
    cancels. The slope and its error are the ladder's. Student's t has one degree of freedom less than seeds.
    """
    losses = {(run["entry"], run["seed"]): run["bits_per_byte"] for run in runs if run["budget"] == budget}
    pairs = [(losses[PEER, seed], losses[name, seed]) for seed in SEEDS if {(PEER, seed), (name, seed)} <= set(losses)]
    if len(pairs) < 2:
        return None
    ladder = compare_entries(parse_results([{**run, "seconds": None} for run in runs]), PEER, "flops", budget).ladder
    zero = np.zeros(())
    slope, variation = float(ladder.slope_at(zero)), float(np.nan_to_num(ladder.slope_variation(zero)))
    gains = np.array([ours - theirs for theirs, ours in pairs]) / slope
    error = math.hypot(float(gains.std(ddof=1)) / math.sqrt(len(gains)), float(gains.mean()) * variation)
    width = float(stdtrit(len(gains) - 1, 0.975)) * error
    return {name: math.exp(gains.mean() + sign * width) for name, sign in (("cm", 0), ("low", -1), ("high", 1))}


def mean_loss(runs: Sequence[Row], name: str, budget: float) -> float:
    losses = [run["bits_per_byte"] for run in runs if run["entry"] == name and run["budget"] == budget]
    return sum(losses) / max(len(losses), 1)


def format_table(table: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"| size | budget | ours | bits per byte | {PEER}'s | FLOPs | paired by seed | CPU-seconds, eager | compiled |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in table:
        cells = [row["size"], f"{row['budget']:.3g}", row["entry"], f"{row['loss']:.4f}", f"{row['peer_loss']:.4f}"]
        cells += [format_estimate(row.get(name)) for name in ("flops", "paired", "eager_seconds", "compiled_seconds")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def format_estimate(found: dict[str, Any] | None) -> str:
    if found is None:
        return "not measured"
    if found.get("cm") is None:
        return str(found["verdict"])
    if found["low"] is None:
        return f"{found['cm']:.2f}"
    return f"{found['cm']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folder = os.environ.get("DAILYTRAIN_DATA")
    parser.add_argument("--corpus", default=folder and f"files:{folder}/{TEXT}", help="as for `dailytrain train`")
    parser.add_argument("--tokenizer", default="bpe:4096")
    parser.add_argument("--limit-bytes", default="48MiB")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all budgets")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--nanochat", type=Path, required=True, help="a checkout")
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="how many sizes, the smallest first")
    parser.add_argument("--rows", type=int, default=ROWS, help="of a step, 256 tokens each")
    parser.add_argument("--trials", type=int, default=16, help="of each side's search")
    parser.add_argument("--forms", nargs="*", choices=FORMS, default=list(FORMS), help="whose speed is measured")
    parser.add_argument("--report", action="store_true", help="train nothing, print the table of the finished runs")
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the same command goes on with the runs that are not finished") from None
