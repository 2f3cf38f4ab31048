"""Train a peer's recipe and ours on the same tokens to the same FLOPs, and print our compute multipliers.

    OMP_NUM_THREADS=1 python -m benchmarks.peers --nanochat PATH [--sizes 1] [--trials 8] [--out FILE.jsonl]

PATH is a checkout of https://github.com/karpathy/nanochat: its model and optimizer are imported from there. Its runs at
half, all and twice the budget are the ladder, and ours at the full budget are read off it. A full run has a night's
ratio, ten tokens for each parameter outside embeddings, and steps of 4,096 tokens.

First one run of each rung and entry with the rates of a search for short runs. Then both sides' factors on rates, decay
and warmup are tuned by the same number of trials at the smallest size; each side's own rules carry them to the other
sizes. Ours with an n-gram memory takes over ours' factors, and its table's own rate is tuned by a few trials more. Then
all runs and seeds with these. A finished run is a line of the file and is not repeated; one that was interrupted goes
on from a snapshot that is at most five minutes old: the same command resumes.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import nanochat, ours
from benchmarks.contenders.base import ROWS, Factors, Size
from benchmarks.contenders.results import Entry, Row, Trainer, hash_files, select_runs
from benchmarks.contenders.search import tune_factors
from benchmarks.contenders.speed import measure_cpu_seconds
from trainer.accounting.budget import parse_size
from trainer.data.dataset import prepare_dataset
from trainer.errors import UserError
from trainer.scoring.multiplier import Axis, ResultsError, compare_entries, parse_results
from trainer.trials.plan import list_shared_sources

SIZES = (Size(2, 128, 2.5e13), Size(3, 192, 1.9e14))
PEER, OURS = "nanochat", "gpt"
MEMORY_ROWS = (262_144, 524_288)  # for each order, read at the embedding and before each block
MEMORY_FACTORS = (1.0, 0.5, 2.0)  # on the rate of the table, tried at the smallest size
STARTS = {
    PEER: Factors(1.59, 0.609, 0.147, 0.0403, decay=0.21, warmup=0.00681),
    OURS: Factors(0.649, 1.47, 0.0351, 0.0416, decay=0.471, warmup=0.131),
}
"""The best of sixteen trials at 1e12 FLOPs in steps of 1,024 tokens (`results/peers.json`), the first trial here."""
SEEDS = (1, 2, 3)
LADDER = {0.5: SEEDS, 1.0: SEEDS, 2.0: SEEDS[:1]}
"""Seeds of the peer's runs at each share of the budget. The first number of each size is the budget of a full run."""
RESULTS = Path("benchmarks/out/peers.jsonl")
TEXT = "text/gutenberg/train-*.jsonl.xz"  # in $DAILYTRAIN_DATA
FORMS = {"eager": False, "compiled": True}  # of the models


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_arguments(argv)
    torch.set_num_threads(1)
    entries = build_entries(options.nanochat)
    if options.corpus is None:
        raise UserError(f"set DAILYTRAIN_DATA to the folder of {TEXT}, or name other text with --corpus")
    dataset = prepare_dataset(options.corpus, options.tokenizer, limit_bytes=parse_size(options.limit_bytes))
    sizes = [Size(size.depth, size.width, size.budget * options.scale) for size in SIZES[: options.sizes]]
    trainer = Trainer(options.out, dataset, partial(print, flush=True))
    if not options.report:
        # The same numbers, and compiling costs more than it saves here. `measure_cpu_seconds` compiles.
        with torch.compiler.set_stance("force_eager"):
            run_all(trainer, entries, sizes, options)
    print_tables(trainer, sizes, entries, options.rows)
    return 0


def run_all(trainer: Trainer, entries: Sequence[Entry], sizes: Sequence[Size], options: argparse.Namespace) -> None:
    """Tune both sides at the smallest size, then measure speeds and train the runs of each size."""
    run_size(trainer, entries, sizes[0], find_factors(trainer, entries, None), options.rows, SEEDS[:1])
    print_tables(trainer, sizes, entries, options.rows)
    for entry in entries[:2]:
        tune_entry(trainer, entry, sizes[0], options)
    tune_table(trainer, entries[2], sizes[0], find_factors(trainer, entries, sizes[0])[OURS], options.rows)
    for size in sizes:
        measure_speed(trainer, entries, size, options)
        run_size(trainer, entries, size, find_factors(trainer, entries, sizes[0]), options.rows, SEEDS)


def find_factors(trainer: Trainer, entries: Sequence[Entry], size: Size | None) -> dict[str, Factors]:
    """Return each entry's factors: the best finished trial's at a size, or those to start from. All with a memory share
    theirs."""
    peer, ours, *with_memory = entries
    found = {}
    for entry in (peer, ours, with_memory[0]):
        trials = [row for row in trainer.load() if row.get("part") == "search"]
        identity = {"entry": entry.name, "source": entry.source, "dataset": trainer.dataset.hash}
        runs = select_runs(trials, **identity, size=size.name, budget=size.budget) if size else []
        best = min(runs, key=lambda run: run["bits_per_byte"], default=None)
        found[entry.name] = Factors(**best["factors"]) if best else STARTS[PEER if entry is peer else OURS]
    return found | {entry.name: found[with_memory[0].name] for entry in with_memory}


def build_entries(path: Path) -> list[Entry]:
    """Return the peer, ours, and ours with n-gram memories. Raises `NanochatError`."""
    nanochat.import_classes(path)
    theirs = [path / name for name in nanochat.FILES]
    source = hash_files([*list_shared_sources(), Path(ours.__file__)])
    with_memory = [
        Entry(f"{OURS}, {rows:,} rows", partial(ours.OurGPT, memory_rows=rows), source) for rows in MEMORY_ROWS
    ]
    return [
        Entry(PEER, partial(nanochat.Nanochat, path=path), hash_files([*theirs, Path(nanochat.__file__)])),
        Entry(OURS, ours.OurGPT, source),
        *with_memory,
    ]


def tune_entry(trainer: Trainer, entry: Entry, size: Size, options: argparse.Namespace) -> None:
    def compute_loss(factors: Factors) -> float | None:
        return trainer.run(entry, size, 1.0, SEEDS[0], factors, options.rows, "search")["bits_per_byte"]

    tune_factors(STARTS[entry.name], options.trials, compute_loss)


def tune_table(trainer: Trainer, entry: Entry, size: Size, factors: Factors, rows: int) -> None:
    for factor in MEMORY_FACTORS:
        trainer.run(entry, size, 1.0, SEEDS[0], dataclasses.replace(factors, memory=factor), rows, "search")


def run_size(
    trainer: Trainer, entries: Sequence[Entry], size: Size, factors: dict[str, Factors], rows: int, seeds: Sequence[int]
) -> None:
    """Train the peer's ladder and our runs at one size, a seed after the other."""
    for seed in seeds:
        for share in (share for share, own in LADDER.items() if seed in own):
            trainer.run(entries[0], size, share, seed, factors[PEER], rows, "ladder")
        for entry in entries[1:]:
            trainer.run(entry, size, 1.0, seed, factors[entry.name], rows, "ladder")


def measure_speed(trainer: Trainer, entries: Sequence[Entry], size: Size, options: argparse.Namespace) -> None:
    """Measure CPU-seconds of a token in each form for which the file lacks an entry, for all entries by turns."""
    vocabulary = trainer.dataset.manifest["tokenizer"]["vocabulary_size"]
    for form in FORMS:
        if (size.name, form) not in find_speeds(trainer, entries):
            measured = measure_cpu_seconds(entries, size, options.rows, vocabulary, FORMS[form])
            trainer.append({"size": size.name, "form": form, "source": entries[1].source, "speed": measured})


def find_speeds(trainer: Trainer, entries: Sequence[Entry]) -> dict[tuple[str, str], Any]:
    """Return what was measured of today's code, by size and form."""
    found = [row for row in trainer.load() if "speed" in row and row["source"] == entries[1].source]
    return {(row["size"], row["form"]): row["speed"] for row in found}


def print_tables(trainer: Trainer, sizes: Sequence[Size], entries: Sequence[Entry], rows: int) -> None:
    """Print our multipliers at each size: with the rates to start from, and tuned here if there are any."""
    speed, finished = find_speeds(trainer, entries), [row for row in trainer.load() if "speed" not in row]
    is_tuned = any(row["part"] == "search" for row in finished)
    for title, tuned_at in (("Rates of short runs", None), ("Rates tuned here", sizes[0]))[: 1 + is_tuned]:
        runs: list[Row] = []
        for name, factors in find_factors(trainer, entries, tuned_at).items():
            source = next(entry.source for entry in entries if entry.name == name)
            identity = {"entry": name, "source": source, "factors": vars(factors), "rows": rows}
            runs += select_runs(finished, dataset=trainer.dataset.hash, **identity)
        found = [compare_size(runs, speed, size, entry.name) for size in sizes for entry in entries[1:]]
        table = [row for row in found if row]
        sys.stdout.write(f"{title}\n\n{format_table(table)}\n\n")
    sys.stdout.flush()


def compare_size(runs: Sequence[Row], speed: dict[tuple[str, str], Any], size: Size, name: str) -> Row | None:
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
    for form in FORMS:
        if measured := speed.get((size.name, form)):
            row[f"{form}_seconds"] = estimate(runs, name, "seconds", lambda run, m=measured: m[run["entry"]]["median"])
    return row


def estimate(runs: Sequence[Row], name: str, axis: Axis, get_seconds: Any) -> dict[str, Any]:
    """Return an entry's multiplier with its interval. Seconds are a run's tokens times the seconds of a token."""
    records = [{**run, "seconds": run["tokens"] * get_seconds(run)} for run in runs]
    try:
        comparison = compare_entries(parse_results(records), PEER, axis)
    except ResultsError as error:
        return {"verdict": str(error)}
    return next(row for row in comparison.entries if row.entry == name).to_dict()  # type: ignore[return-value]


def mean_loss(runs: Sequence[Row], name: str, budget: float) -> float:
    losses = [run["bits_per_byte"] for run in runs if run["entry"] == name and run["budget"] == budget]
    return sum(losses) / max(len(losses), 1)


def format_table(table: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"| size | budget | ours | bits per byte | {PEER}'s | FLOPs | CPU-seconds, eager | compiled |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in table:
        cells = [row["size"], f"{row['budget']:.3g}", row["entry"], f"{row['loss']:.4f}", f"{row['peer_loss']:.4f}"]
        cells += [format_estimate(row.get(name)) for name in ("flops", "eager_seconds", "compiled_seconds")]
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
    parser.add_argument("--limit-bytes", default="112MiB", help="no run reads a token twice")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all budgets")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--nanochat", type=Path, required=True, help="a checkout")
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="how many sizes, the smallest first")
    parser.add_argument("--rows", type=int, default=ROWS, help="of a step, 256 tokens each")
    parser.add_argument("--trials", type=int, default=8, help="of each side's search")
    parser.add_argument("--report", action="store_true", help="train nothing, print the table of the finished runs")
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the same command goes on with the runs that are not finished") from None
