"""Which part of the baseline brings how much: each is left out in turn, and read off one ladder.

    python -m benchmarks.ablations [--budget 3e12flops] [--seeds 2] [--tokenizer bpe:8192] [--out FILE.json]

A multiplier of 0.80 means: without this part the baseline does as well as with it on 80 % of the compute, so the part
is worth a quarter. The budget is in FLOPs, so a busy machine changes nothing. All runs are made one after another in
this process, on one thread; what is done is kept, and not made again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from trainer.cli.try_idea import PRESET
from trainer.config.parsing import parse_config as configuration
from trainer.config.train_config import DEFAULT_CORPUS, DEFAULT_TOKENIZER, SHORT_TEXT
from trainer.data.dataset import get_cache_folder, prepare_dataset
from trainer.data.sizes import parse_size
from trainer.scoring.multiplier import TrackComparison, compare_entries, parse_results
from trainer.train import run_training as train
from trainer.training.interruption import StopRequest
from trainer.trials.plan import Entry, Trial, plan_trials

DEV_TOKENS = "32768"
"""Of every run's last evaluation, from which its bits per byte come."""

LEFT_OUT = {
    "value embeddings": ("--model.value_embeddings=false",),
    "QK-norm": ("--model.qk_norm=false",),
    "lambdas of stream and embedding": ("--model.residual_lambdas=false", "--model.x0_lambdas=false"),
    "smear of embeddings": ("--model.embedding_smear=false",),
    "backout": ("--model.backout=false",),
    "norm on the embedding": ("--model.embedding_norm=false",),
    "zero-initialized outputs": ("--model.zero_init=false",),
    "soft cap": ("--model.softcap=0",),
    # At the rate of the head, not of the embedding, which is 25 times as high.
    "untied head": ("--model.tied_head=true", "--recipe.embedding.learning_rate=0.01"),
    "ReLU^2 (SwiGLU instead)": ("--model.mlp=swiglu",),
    "Muon (AdamW at 0.003 instead)": (
        "--recipe.matrices.optimizer=adamw",
        "--recipe.matrices.learning_rate=0.003",
        "--recipe.matrices.normalised=false",
    ),
    "NorMuon's variance normalization": ("--recipe.matrices.normalised=false",),
    "cautious weight decay": ("--recipe.matrices.cautious=false",),
    "decay to nothing (warmdown 0.2 instead of 0.6)": ("--recipe.schedule.warmdown=0.2",),
}


def main() -> int:
    options = arguments()
    console = Console(stderr=True)
    dataset = prepare_dataset(
        DEFAULT_CORPUS, options.tokenizer, limit_bytes=parse_size(options.limit_bytes), progress=True
    )
    records: dict[Path, dict[str, Any]] = {}
    for name, trial in trials(options, dataset.hash):
        if trial.folder not in records:
            records[trial.folder] = {**trained(trial, dataset.folder), "entry": name}
            console.print(f"{name}, {trial.budget}, seed {trial.seed}", highlight=False)
            write(list(records.values()), options.out)
    sys.stdout.write(table(compare_entries(parse_results(list(records.values())), "gpt")) + "\n")
    return 0


def trials(options: argparse.Namespace, dataset: str) -> Iterator[tuple[str, Trial]]:
    """Yield each run with the name of its entry: the whole ladder of the baseline, then each part left out."""
    for name, flags in LEFT_OUT.items():
        plan = plan_trials(
            Entry(arch="gpt", flags=flags),
            budget=options.budget,
            rungs=options.rungs,
            seeds=options.seeds,
            dataset=dataset,
            preset=PRESET,
            folder=options.folder,
        )
        for trial in plan.trials:
            yield "gpt" if trial.entry == plan.baseline else f"without {name}", trial


def trained(trial: Trial, dataset: Path) -> dict[str, Any]:
    """Train a run, or go on with it, and return its result as a record of `dailytrain multiplier`."""
    result = trial.folder / "result.json"
    if not result.is_file():
        flags = [
            *("--preset", PRESET, "--dataset", str(dataset), "--out", str(trial.folder), "--arch", trial.entry.arch),
            *("--budget", trial.budget, "--seed", str(trial.seed), "--threads", "1", "--checkpoint-every", "1h"),
            *("--train.sample_tokens", "0", "--train.evaluations", "1", "--train.dev_tokens", DEV_TOKENS),
        ]
        with StopRequest() as interruption:
            code = train(configuration([*flags, *trial.entry.flags]), Console(stderr=True, quiet=True), interruption)
        if code:
            raise SystemExit(code)
    found = json.loads(result.read_text())
    return {
        "seed": trial.seed,
        "flops": found["train_flops"],
        "seconds": found["train_seconds"],
        "bits_per_byte": found["bits_per_byte"],
    }


def write(records: list[dict[str, Any]], out: Path) -> None:
    """Keep the results as far as they go, for `dailytrain multiplier`."""
    out.write_text(json.dumps({"runs": records}, indent=1))


def table(board: TrackComparison) -> str:
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
    parser.add_argument("--tokenizer", default=DEFAULT_TOKENIZER)
    parser.add_argument("--limit-bytes", default=str(SHORT_TEXT), help="of the text, as for `dailytrain train`")
    parser.add_argument("--folder", type=Path, default=get_cache_folder().parent / "ablations")
    parser.add_argument("--out", type=Path, default=Path("ablations.json"))
    return parser.parse_args()


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the same command goes on with the runs that are not finished") from None
