"""`dailytrain score RUN --corpus files:HELDOUT --json`: score a run on held-out text without trusting its model."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.cli.parser import Parser, add_device_flag, parse_positive_integer, resolve_device
from trainer.data.dataset import Dataset
from trainer.data.tokenizer import Tokenizer
from trainer.data.tokenizer_spec import load_tokenizer
from trainer.errors import ExitCode, UserError, print_error
from trainer.sandbox import SandboxDriver, SandboxError, get_driver
from trainer.scoring import benchmark_suite, bundle_scan, heldout_text, items
from trainer.scoring.cost import TrainingCost
from trainer.scoring.misbehavior import ModelMisbehaviorError
from trainer.scoring.model_client import ModelProcessClient
from trainer.scoring.progress import show_progress
from trainer.scoring.run_folder import RunFolder, RunFolderError
from trainer.scoring.scorer import ModelScore, score_model

COMMAND = "dailytrain score"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the record; return 0 scored, 1 infrastructure, 3 the model failed. Raise `UserError` for bad input."""
    options = parse_arguments(argv)
    try:
        record = score(options)
    except ModelMisbehaviorError as failure:
        if options.json:
            print(json.dumps({"failed": failure.sentence}))  # noqa: T201 (the command's output)
        detail = f" ({failure.detail})" if failure.detail else ""
        return print_error(COMMAND, failure.sentence + detail, ExitCode.MODEL_ERROR)
    except SandboxError as error:
        return print_error(COMMAND, error, ExitCode.INFRASTRUCTURE)
    print(json.dumps(record)) if options.json else print_record(record)  # noqa: T201 (the command's output)
    return ExitCode.OK


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Raise `UserError` for options that contradict each other."""
    parser = Parser(prog=COMMAND, description="Score a trained model on held-out text without trusting it.")
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="the run's folder")
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--corpus", help="score every document of this corpus, for example files:heldout.txt")
    text.add_argument("--dataset", type=Path, help="score the test split of this prepared dataset")
    add("--limit-tokens", type=parse_positive_integer, help="score only this much text; the last document is cut")
    add("--checkpoint", type=Path, help="a checkpoint's folder (default: the last one)")
    add("--model-source", type=Path, help="a folder with a trainer/ package that has the model's code")
    add("--suite", default="", help=f"benchmarks as well, of {', '.join(benchmark_suite.SUITE)}; separated by commas")
    add("--eval-data", type=Path, help="the folder with the benchmarks' files, or hub (default: $DAILYTRAIN_EVAL_DATA)")
    add("--items", type=Path, help="write each document's bits and each item's answer there, for `dailytrain compare`")
    add("--suite-limit", type=parse_positive_integer, help="only this many items of each benchmark")
    add_device_flag(parser, "cpu")
    add("--sandbox", default="auto", help="auto, bubblewrap or none (auto: bubblewrap where it works)")
    add("--json", action="store_true", help="print JSON")
    add("--job", action="store_true", help="started by a node: --sandbox is required, model output is never shown")
    add("--show-model-output", action="store_true", help="show the model's own output, for debugging")
    options = parser.parse_args(argv)
    if options.job and (options.sandbox == "auto" or options.show_model_output):
        raise UserError("--job requires --sandbox bubblewrap or none, and excludes --show-model-output")
    return options


def score(options: argparse.Namespace) -> dict[str, Any]:
    """Return the record that `--json` prints. Raise `UserError`, `SandboxError` or `ModelMisbehaviorError`."""
    started = time.monotonic()
    names = [name.strip() for name in options.suite.split(",") if name.strip()]
    folder = options.eval_data or (Path(data) if (data := os.environ.get("DAILYTRAIN_EVAL_DATA")) else None)
    tasks, missing = benchmark_suite.split_by_available_data(names, folder)
    run = RunFolder.open(options.run, options.checkpoint)
    if (run.folder / "graph").is_dir():
        return {**score_traced_run(run, options, tasks, folder), "suite_missing": missing, "seconds": measure(started)}
    source = resolve_model_source(options.model_source)
    sandbox = select_sandbox(options.sandbox)
    with show_progress() as progress, contextlib.ExitStack() as clients:
        output = sys.stderr.buffer if options.show_model_output else None
        # Both load while the text is read. The second gets no token until the first is done.
        probe_client, full_client = (
            clients.enter_context(ModelProcessClient(run, sandbox, model_source=source, output=output))
            for _ in range(2)
        )
        progress("reading the text", 0)
        tokenizer, texts = load_text(run, options)
        if source is not None:
            decoded = (tokenizer.decode(text.tokens.tolist()) for text in texts)
            bundle_scan.scan_bundle(source / "trainer" / "models", decoded)
        lengths = tokenizer.byte_lengths()
        result = score_model(probe_client, full_client, texts, lengths, tokenizer.end_of_text, progress)
        metrics: dict[str, benchmark_suite.Metrics] = {}
        questions: list[benchmark_suite.Item] = []
        if tasks:
            assert folder is not None
            metrics, questions = benchmark_suite.run_suite(
                full_client, tokenizer, tasks, folder, options.suite_limit, progress
            )
        progress("counting FLOPs", 0)
        cost = full_client.measure_cost(texts[0].tokens[: run.sequence_length])
    if options.items is not None:
        items.write_items(options.items, result.documents, questions)
    record = build_record(run, result, cost)
    record |= {"suite": benchmark_suite.list_metrics(metrics), "suite_missing": missing}
    return record | {"sandbox": sandbox.name, "seconds": measure(started)}


def score_traced_run(
    run: RunFolder, options: argparse.Namespace, tasks: list[str], folder: Path | None
) -> dict[str, Any]:
    """Score the graphs of a run in this process. They are data: there is no sandbox."""
    from trainer.scoring import graph_record  # imports torch, which the scorer of Python entries does without

    device = resolve_device(options.device)
    with show_progress() as progress:
        progress("reading the text", 0)
        tokenizer, texts = load_text(run, options)
        suite = graph_record.Suite(tasks, folder, options.suite_limit)
        return graph_record.score_traced_run(run, device, tokenizer, texts, suite, options.items, progress)


def measure(started: float) -> float:
    """Return the seconds since a moment of the monotonic clock."""
    return round(time.monotonic() - started, 3)


def resolve_model_source(source: Path | None) -> Path | None:
    if source is not None and not (source / "trainer").is_dir():
        raise UserError(f"{source} contains no trainer/ package")
    return source.resolve() if source else None


def select_sandbox(name: str) -> SandboxDriver:
    """Return the driver of that name; raise `SandboxError` if it does not work here."""
    if name not in ("auto", "bubblewrap", "none"):
        # Not docker: the model's process shares memory with the scorer, and descriptors do not pass into a container.
        raise UserError(f"the scorer's sandboxes are auto, bubblewrap and none, not {name}")
    chosen = get_driver("bubblewrap" if name == "auto" else name)
    reason = chosen.find_problem()
    if reason and name == "auto":
        print_error(
            COMMAND, f"the model runs WITHOUT A SANDBOX, since bubblewrap does not work here: {reason}", ExitCode.OK
        )
        return get_driver("none")
    if reason:
        raise SandboxError(reason)
    return chosen


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


def build_record(run: RunFolder, result: ModelScore, cost: TrainingCost) -> dict[str, Any]:
    return {
        **dataclasses.asdict(result.bits),
        "arch": run.arch,
        "parameters": run.parameters,
        "parameters_embedding": cost.embedding,
        "parameters_non_embedding": cost.non_embedding,
        "train_flops": compute_train_flops(run, cost),
        "train_seconds": run.train_seconds,
        "train_tokens": run.train_tokens,
        "flops_per_token": cost.flops_per_token,
        "flops_void": cost.void,
        "step": run.step,
        "checks": result.checks,
    }


def compute_train_flops(run: RunFolder, cost: TrainingCost) -> float | None:
    """Return our own count times the tokens, or what the run reported if the count is void."""
    if cost.flops_per_token is None or run.train_tokens is None:
        return run.train_flops
    return cost.flops_per_token * run.train_tokens


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
            f"{record['train_flops']:.3g} FLOPs in {record['train_seconds']:,.0f} s (tokens and time as reported)",
        )
    if record["flops_void"]:
        table.add_row("", f"the FLOPs do not count. {record['flops_void']}")
    for task, metrics in record["suite"].items():
        table.add_row(task, ", ".join(f"{name} {format_value(*pair)}" for name, pair in metrics.items()))
    if record["suite_missing"]:
        table.add_row("without data", ", ".join(record["suite_missing"]))
    for line in describe_check_lines(record):
        table.add_row(*line)
    Console().print(table)


def describe_check_lines(record: dict[str, Any]) -> list[tuple[str, str]]:
    checks = record["checks"]
    if "look_ahead" in checks:
        found, untrained = checks["look_ahead"], checks["untrained"]
        verdict = "uses later tokens" if found["is_beyond_rounding"] else "within rounding"
        return [
            ("later tokens", f"{found['nats_per_token']:+.1e} ± {found['stderr']:.1e} nats a token: {verdict}"),
            ("untrained", f"{untrained['bits_per_byte']:.4f}, unigram {untrained['unigram_bits_per_byte']:.4f}"),
        ]
    prefix = checks["prefix"]
    caught = ", ".join(f"{float(p):.0%}: {caught:.1%}" for p, caught in prefix["catch_probability"].items())
    return [
        ("checks", f"prefix, causality, order: passed ({record['sandbox']})"),
        ("", f"{prefix['cuts']} secret cuts detect a cheat on a share of positions of {caught}"),
    ]


def format_value(value: float, error: float | None) -> str:
    return f"{value:.4f}" if error is None else f"{value:.4f} ± {error:.4f}"
