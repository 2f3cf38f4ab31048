"""`dailytrain score RUN --corpus files:HELDOUT --json`: score a run on held-out text."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.cli import Parser, add_device_flag, parse_positive_integer, resolve_device
from trainer.data.dataset import Dataset
from trainer.data.tokenizer import Tokenizer, load_tokenizer
from trainer.errors import ExitCode, ModelError, UnusableCheckpointError, UserError, find_fault, print_error
from trainer.scoring import benchmark_tasks, heldout_text
from trainer.scoring.progress import show_progress
from trainer.scoring.run_folder import RunFolder, RunFolderError

COMMAND = "dailytrain score"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the record; return 0 scored, 3 the model failed. Raise `UserError` for bad input."""
    options = parse_arguments(argv)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is the record's alone
            record = score(options)
    except (ModelError, RunFolderError, UnusableCheckpointError) as failure:
        if options.json:
            fault = find_fault(failure, is_graph=(options.run / "graph").is_dir())
            fault = "checkpoint" if isinstance(failure, RunFolderError) else fault
            # `by_graph`: for agents that know no fault of the model.
            report = {"failed": str(failure), "fault": fault, "by_graph": fault == "model"}
            print(json.dumps(report))  # noqa: T201 (the command's output)
        if not isinstance(failure, ModelError):
            raise
        return print_error(COMMAND, failure, ExitCode.MODEL_ERROR)
    print(json.dumps(record)) if options.json else print_record(record)  # noqa: T201 (the command's output)
    return ExitCode.OK


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Raise `UserError` for options that contradict each other."""
    parser = Parser(prog=COMMAND, description="Score a trained model on held-out text.")
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="the run's folder")
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--corpus", help="score every document of this corpus, for example files:heldout.txt")
    text.add_argument("--dataset", type=Path, help="score the test split of this prepared dataset")
    add("--limit-tokens", type=parse_positive_integer, help="score only this much text; the last document is cut")
    add("--checkpoint", type=Path, help="a checkpoint's folder (default: the last one)")
    add("--suite", default="", help=f"benchmarks as well, of {', '.join(benchmark_tasks.NAMES)}; separated by commas")
    add("--eval-data", type=Path, help="the folder with the benchmarks' files (default: only the shipped samples)")
    add("--items", type=Path, help="write each document's bits and each item's answer there, and losses.npy beside it")
    add("--reference", type=Path, help="losses.npy of another run on the same text, for a more exact look-ahead check")
    add("--suite-limit", type=parse_positive_integer, help="only this many items of each benchmark")
    add_device_flag(parser)
    add("--json", action="store_true", help="print JSON")
    return parser.parse_args(argv)


def score(options: argparse.Namespace) -> dict[str, Any]:
    """Return the record that `--json` prints. Raise `UserError` or `ModelError`."""
    started = time.monotonic()
    if options.items and not options.items.absolute().parent.is_dir():
        raise UserError(f"--items: there is no folder {options.items.parent}")
    names = [name.strip() for name in options.suite.split(",") if name.strip()]
    tasks, missing = benchmark_tasks.split_by_available_data(names, options.eval_data)
    if tasks and importlib.util.find_spec("lm_eval") is None:
        print("lm-eval is not installed, so the benchmarks are left out: pip install 'dailytrain[training]'")  # noqa: T201 (to standard error)
        tasks, missing = [], names
    run = RunFolder.open(options.run, options.checkpoint)
    with show_progress() as progress:
        progress("reading the text", 0)
        tokenizer, texts = load_text(run, options)
        # Imported late: torch takes seconds.
        from trainer.scoring.score_record import Suite, score_run

        suite = Suite(tasks, options.eval_data, options.suite_limit)
        device = resolve_device(options.device)
        record = score_run(run, device, tokenizer, texts, suite, options.items, options.reference, progress)
    return {**record, "suite_missing": missing, "seconds": round(time.monotonic() - started, 3)}


def load_text(run: RunFolder, options: argparse.Namespace) -> tuple[Tokenizer, list[heldout_text.EncodedDocument]]:
    """Return the tokenizer that the run was trained with, and the held-out text in its tokens."""
    dataset = Dataset.open(options.dataset) if options.dataset else None
    tokenizer = dataset.tokenizer if dataset else load_tokenizer(run.folder / "tokenizer.json")
    if run.tokenizer_sha256 and tokenizer.sha256 != run.tokenizer_sha256:
        raise RunFolderError("The run was trained with another tokenizer than the one of this text.")
    if tokenizer.vocabulary_size > run.vocabulary_size:
        raise RunFolderError("The run's model has fewer tokens than its tokenizer.")
    if dataset:
        return tokenizer, heldout_text.load_test_split(dataset, options.limit_tokens)
    return tokenizer, heldout_text.load_corpus(options.corpus, tokenizer, options.limit_tokens)


def print_record(record: dict[str, Any]) -> None:
    """Print the record as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("bits per byte", format_value(record["bits_per_byte"], record["stderr"]))
    table.add_row("nats per token", f"{record['nats_per_token']:.4f}")
    table.add_row("text", f"{record['tokens']:,} tokens, {record['bytes']:,} bytes, {record['documents']:,} documents")
    table.add_row("model", f"{record['arch']}, {record['parameters']:,} parameters, step {record['step']:,}")
    if record["train_flops"] is not None and record["train_seconds"] is not None:
        table.add_row(
            "training",
            f"{record['train_flops']:.3g} FLOPs in {record['train_seconds']:,.0f} s (as reported)",
        )
    for task, metrics in record["suite"].items():
        seconds = f" in {record['suite_seconds'][task]:.0f} s" if task in record["suite_seconds"] else ""
        table.add_row(task, ", ".join(f"{name} {format_value(*pair)}" for name, pair in metrics.items()) + seconds)
    if record["suite_missing"]:
        table.add_row("left out", ", ".join(record["suite_missing"]))
    for line in describe_check_lines(record):
        table.add_row(*line)
    Console().print(table)


def describe_check_lines(record: dict[str, Any]) -> list[tuple[str, str]]:
    found, untrained = record["checks"]["look_ahead"], record["checks"]["untrained"]
    suite = [
        (
            f"later tokens, {task}",
            ", ".join(f"{name} {value:+.1e} ± {error:.1e}" for name, (value, error) in pairs.items()),
        )
        for task, pairs in record["checks"]["suite"].items()
    ]
    products = record["checks"]["products"]
    rounding = products["precision"]
    if products["tf32_nats_per_token"] is not None:
        difference, error = products["tf32_nats_per_token"], products["tf32_stderr"]
        rounding += f"; TF32 changes {difference:+.1e} ± {error:.1e} nats a token"
    if training := record["checks"].get("training"):
        verdict = "the graphs differ" if training["is_beyond_noise"] else "within its noise"
        suite.append(("training graph", f"{training['nats']:+.1e} nats a token: {verdict}"))
    verdict = "uses later tokens" if found["is_beyond_rounding"] else "within rounding"
    return [
        ("later tokens", f"{found['nats_per_token']:+.1e} ± {found['stderr']:.1e} nats a token: {verdict}"),
        ("untrained", f"{untrained['bits_per_byte']:.4f} with seed {untrained['seed']}"),
        ("unigram", f"{untrained['unigram_bits_per_byte']:.4f}, the text's own token frequencies"),
        ("products", rounding),
        *suite,
    ]


def format_value(value: float, error: float | None) -> str:
    return f"{value:.4f}" if error is None else f"{value:.4f} ± {error:.4f}"
