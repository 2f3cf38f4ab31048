"""`dailytrain score RUN --corpus files:HELDOUT --json`: what a trained model is worth, found out at arm's length."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.cli.parser import Parser
from trainer.data.dataset import Dataset
from trainer.data.errors import CorpusError, DatasetError, TokenizerError
from trainer.data.tokenizer import Tokenizer
from trainer.sandbox import SandboxDriver, SandboxError, get_driver
from trainer.scoring import benchmark_suite, bundle_scan, heldout_text, items
from trainer.scoring.cost import TrainingCost
from trainer.scoring.misbehavior import ModelMisbehaviorError
from trainer.scoring.model_client import ModelProcessClient
from trainer.scoring.progress import show_progress
from trainer.scoring.run_folder import RunFolder, RunFolderError
from trainer.scoring.scorer import ModelScore, score_model

DONE, INFRASTRUCTURE, BAD_INPUT, MISBEHAVED, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes."""


class UsageError(ValueError):
    """These options do not make sense."""


USER_ERRORS = (
    UsageError,
    RunFolderError,
    CorpusError,
    DatasetError,
    TokenizerError,
    heldout_text.NoTextError,
    benchmark_suite.UnknownBenchmarkError,
)
"""What a user can get wrong: each is one clear line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 scored, 1 the machine's fault, 2 bad input, 3 the model failed, 130 interrupted."""
    as_json = "--json" in (sys.argv[1:] if argv is None else argv)
    try:
        options = parse(argv)
        record = score(options)
    except ModelMisbehaviorError as failure:
        if as_json:
            print(json.dumps({"failed": failure.sentence}))  # noqa: T201 (the command's output)
        complain(failure.sentence + (f" ({failure.detail})" if failure.detail else ""))
        return MISBEHAVED
    except SandboxError as error:
        complain(str(error))
        return INFRASTRUCTURE
    except USER_ERRORS as error:
        complain(str(error))
        return BAD_INPUT
    except KeyboardInterrupt:
        complain("Interrupted.")
        return INTERRUPTED
    print(json.dumps(record)) if options.json else show(record)  # noqa: T201 (the command's output)
    return DONE


def complain(line: str) -> None:
    print(f"dailytrain score: {line}", file=sys.stderr)  # noqa: T201 (a command's error)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Raises `UsageError`."""
    parser = Parser(
        prog="dailytrain score", description="Score a trained model on held-out text, trusting nothing of it."
    )
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="the run's folder")
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--corpus", help="score every document of this corpus, for example files:heldout.txt")
    text.add_argument("--dataset", type=Path, help="score the test split of this prepared dataset")
    add("--limit-tokens", type=positive, help="score only this much of the text: whole documents, the last one cut")
    add("--checkpoint", type=Path, help="a checkpoint's folder (default: the last one)")
    add("--model-source", type=Path, help="a folder with a trainer/ package whose files the model is built from")
    add("--suite", default="", help=f"benchmarks as well, of {', '.join(benchmark_suite.SUITE)}; separated by commas")
    add("--eval-data", type=Path, help="the folder with the benchmarks' files, or hub (default: $DAILYTRAIN_EVAL_DATA)")
    add("--items", type=Path, help="write each document's bits and each item's answer there, for `dailytrain compare`")
    add("--suite-limit", type=positive, help="only the first so many items of each benchmark")
    add("--sandbox", default="auto", help="auto, bubblewrap or none (auto: bubblewrap where it works)")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    add("--job", action="store_true", help="started by a node's agent: the sandbox must be named, nothing is shown")
    add("--show-model-output", action="store_true", help="let the model's own output through, to find its mistakes")
    options = parser.parse_args(argv)
    if options.job and (options.sandbox == "auto" or options.show_model_output):
        raise UsageError("a job names its sandbox and never shows the model's output")
    return options


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("it should be at least 1")
    return value


def score(options: argparse.Namespace) -> dict[str, Any]:
    """The record that `--json` prints. Raises one of `USER_ERRORS`, `SandboxError` or `Misbehaved`."""
    began = time.monotonic()
    names = [name.strip() for name in options.suite.split(",") if name.strip()]
    folder = options.eval_data or (Path(data) if (data := os.environ.get("DAILYTRAIN_EVAL_DATA")) else None)
    tasks, missing = benchmark_suite.split_by_available_data(names, folder)
    run = RunFolder.open(options.run, options.checkpoint)
    source = existing(options.model_source)
    box = sandbox(options.sandbox)
    with show_progress() as progress, contextlib.ExitStack() as doors:
        output = sys.stderr.buffer if options.show_model_output else None
        # Both start to load now, while the text is being read; the second sees no token until the first is done.
        probe, full = (
            doors.enter_context(ModelProcessClient(run, box, model_source=source, output=output)) for _ in range(2)
        )
        progress("reading the text", 0)
        tokenizer, texts = read(run, options)
        if source is not None:
            bundle_scan.scan_bundle(
                source / "trainer" / "models", (tokenizer.decode(text.tokens.tolist()) for text in texts)
            )
        outcome = score_model(probe, full, texts, tokenizer.byte_lengths(), tokenizer.end_of_text, progress)
        metrics: dict[str, benchmark_suite.Metrics] = {}
        found: list[benchmark_suite.Item] = []
        if tasks:
            assert folder is not None
            metrics, found = benchmark_suite.run_suite(full, tokenizer, tasks, folder, options.suite_limit, progress)
        progress("counting FLOPs", 0)
        cost = full.cost(texts[0].tokens[: run.sequence_length])
    if options.items is not None:
        items.write_items(options.items, outcome.documents, found)
    return record(run, outcome, cost, metrics, missing, box.name, time.monotonic() - began)


def existing(source: Path | None) -> Path | None:
    if source is not None and not (source / "trainer").is_dir():
        raise UsageError(f"{source} holds no trainer/ package")
    return source.resolve() if source else None


def sandbox(name: str) -> SandboxDriver:
    """The driver of that name; raises `SandboxError` where it does not work."""
    if name not in ("auto", "bubblewrap", "none"):
        # Not docker: the model's process shares memory with the scorer, and no descriptor passes into a container.
        raise UsageError(f"the scorer's sandboxes are auto, bubblewrap and none, not {name}")
    chosen = get_driver("bubblewrap" if name == "auto" else name)
    reason = chosen.find_problem()
    if reason and name == "auto":
        complain(f"the model runs WITHOUT A SANDBOX, since bubblewrap does not work here: {reason}")
        return get_driver("none")
    if reason:
        raise SandboxError(reason)
    return chosen


def read(run: RunFolder, options: argparse.Namespace) -> tuple[Tokenizer, list[heldout_text.EncodedDocument]]:
    """The tokenizer that the run was trained with, and the held-out text in its tokens."""
    dataset = Dataset.open(options.dataset) if options.dataset else None
    tokenizer = dataset.tokenizer if dataset else Tokenizer.load(run.folder / "tokenizer.json")
    if run.tokenizer_sha256 and tokenizer.sha256 != run.tokenizer_sha256:
        raise RunFolderError("The run was trained with another tokenizer than the one of this text.")
    if tokenizer.vocabulary_size > run.vocabulary_size:
        raise RunFolderError("The run's model has fewer tokens than its tokenizer.")
    if dataset:
        return tokenizer, heldout_text.load_test_split(dataset, options.limit_tokens)
    return tokenizer, heldout_text.load_corpus(options.corpus, tokenizer, options.limit_tokens)


def record(
    run: RunFolder,
    outcome: ModelScore,
    cost: TrainingCost,
    metrics: dict[str, benchmark_suite.Metrics],
    missing: list[str],
    sandbox: str,
    seconds: float,
) -> dict[str, Any]:
    bits = outcome.bits
    return {
        "bits_per_byte": bits.bits_per_byte,
        "stderr": bits.stderr,
        "nats_per_token": bits.nats_per_token,
        "tokens": bits.tokens,
        "bytes": bits.bytes,
        "documents": bits.documents,
        "arch": run.arch,
        "parameters": run.parameters,
        "parameters_embedding": cost.embedding,
        "parameters_non_embedding": cost.non_embedding,
        "train_flops": train_flops(run, cost),
        "train_seconds": run.train_seconds,
        "train_tokens": run.train_tokens,
        "flops_per_token": cost.flops_per_token,
        "flops_void": cost.void,
        "step": run.step,
        "checks": outcome.checks,
        "suite": listed(metrics),
        "suite_missing": missing,
        "sandbox": sandbox,
        "seconds": round(seconds, 3),
    }


def listed(metrics: dict[str, benchmark_suite.Metrics]) -> dict[str, dict[str, list[float]]]:
    """Task -> metric -> [value, standard error], the normalised average last."""
    average = benchmark_suite.average_normalized_scores(metrics)
    whole = {**metrics, **({"average": {"normalised": average}} if average and len(metrics) > 1 else {})}
    return {task: {name: list(pair) for name, pair in found.items()} for task, found in whole.items()}


def train_flops(run: RunFolder, cost: TrainingCost) -> float | None:
    """Our own count times the tokens; what the run said where the count is void."""
    if cost.flops_per_token is None or run.train_tokens is None:
        return run.train_flops
    return cost.flops_per_token * run.train_tokens


def show(record: dict[str, Any]) -> None:
    """The same for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("bits per byte", figure(record["bits_per_byte"], record["stderr"]))
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
        table.add_row(task, ", ".join(f"{name} {figure(*pair)}" for name, pair in metrics.items()))
    if record["suite_missing"]:
        table.add_row("without data", ", ".join(record["suite_missing"]))
    prefix = record["checks"]["prefix"]
    caught = ", ".join(f"{float(p):.0%}: {caught:.1%}" for p, caught in prefix["catch_probability"].items())
    table.add_row("checks", f"prefix, causality, order: passed ({record['sandbox']})")
    table.add_row("", f"{prefix['cuts']} secret cuts catch a cheat on a share of positions of {caught}")
    Console().print(table)


def figure(value: float, error: float | None) -> str:
    return f"{value:.4f}" if error is None else f"{value:.4f} ± {error:.4f}"
