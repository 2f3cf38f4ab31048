"""Which part of the baseline brings how much: each is left out in turn, and read off one ladder.

    python benchmarks/ablations.py [--budget 3e12flops] [--seeds 2] [--out FILE.json]

A multiplier of 0.80 means: without this part the baseline does as well as with it on 80 % of the compute, so the part
is worth a quarter. What is done is kept, as by `dailytrain try`; the budget is in FLOPs, so a busy machine changes
nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from trainer.config import DEFAULT_CORPUS, DEFAULT_TOKENIZER, SHORT_TEXT, cores
from trainer.data.dataset import cache_folder, prepare
from trainer.rehearsal.command import PRESET, train
from trainer.rehearsal.plan import Entry, plan
from trainer.rehearsal.work import Workshop
from trainer.scoring.multiplier import Board, compare, parse

LEFT_OUT = {
    "value embeddings": ("--model.value_embeddings=false",),
    "QK-norm": ("--model.qk_norm=false",),
    "lambdas of stream and embedding": ("--model.residual_lambdas=false", "--model.x0_lambdas=false"),
    "smear of embeddings": ("--model.embedding_smear=false",),
    "backout": ("--model.backout=false",),
    "norm on the embedding": ("--model.embedding_norm=false",),
    "zero-initialised outputs": ("--model.zero_init=false",),
    "soft cap": ("--model.softcap=0",),
    "untied head": ("--model.tied_head=true",),
    "ReLU^2 (SwiGLU instead)": ("--model.mlp=swiglu",),
    "Muon (AdamW at 0.003 instead)": (
        "--recipe.matrices.optimizer=adamw",
        "--recipe.matrices.learning_rate=0.003",
        "--recipe.matrices.normalised=false",
    ),
    "NorMuon's variance normalisation": ("--recipe.matrices.normalised=false",),
    "cautious weight decay": ("--recipe.matrices.cautious=false",),
    "decay to nothing (warmdown 0.2 instead of 0.6)": ("--recipe.schedule.warmdown=0.2",),
}


def main() -> int:
    options = arguments()
    dataset = prepare(DEFAULT_CORPUS, DEFAULT_TOKENIZER, limit_bytes=SHORT_TEXT, progress=True)
    console = Console(stderr=True)
    records: dict[str, dict[str, Any]] = {}
    for name, flags in LEFT_OUT.items():
        laid = plan(
            Entry(arch="gpt", flags=flags),
            budget=options.budget,
            rungs=options.rungs,
            seeds=options.seeds,
            dataset=dataset.hash,
            preset=PRESET,
            folder=options.folder,
        )
        console.print(f"without {name}", highlight=False)
        for trial, record in zip(
            laid.trials, train(laid, Workshop(dataset.folder, PRESET, cores()), console), strict=True
        ):
            entry = "gpt" if trial.entry == laid.baseline else f"without {name}"
            records[str(trial.folder)] = {**record, "entry": entry}
        write(list(records.values()), options.out)
    return 0


def write(records: list[dict[str, Any]], out: Path) -> None:
    """Keep the results and print the table as far as it goes."""
    out.write_text(json.dumps({"runs": records}, indent=1))
    sys.stdout.write(table(compare(parse(records), "gpt")) + "\n\n")
    sys.stdout.flush()


def table(board: Board) -> str:
    lines = ["| | multiplier | 95 % interval | bits per byte |", "|---|---|---|---|"]
    for row in board.entries:
        interval = "" if row.low is None or row.high is None else f"{row.low:.2f} to {row.high:.2f}"
        number = "" if row.cm is None else f"{row.cm:.2f}"
        lines.append(f"| {row.entry} | {number} | {interval or row.verdict} | {row.loss:.4f} |")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="3e12flops")
    parser.add_argument("--rungs", type=lambda text: [float(part) for part in text.split(",")], default=[0.25, 0.5, 1])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=cache_folder().parent / "rehearsals")
    parser.add_argument("--out", type=Path, default=Path("ablations.json"))
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
