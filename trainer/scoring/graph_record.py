"""Score a run of a traced architecture: the record that `dailytrain score` prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trainer.data.tokenizer import Tokenizer
from trainer.graph.model import build_model
from trainer.graph.schema import TracedArchitecture, read_traced
from trainer.graph.summary import describe_traced
from trainer.scoring import benchmark_suite, items
from trainer.scoring.graph_scorer import GraphScore, GraphScorer, describe_checks, load_trained_model, score_graph
from trainer.scoring.heldout_text import EncodedDocument
from trainer.scoring.progress import ProgressCallback
from trainer.scoring.run_folder import RunFolder


class Suite(NamedTuple):
    """Which benchmarks to run."""

    tasks: Sequence[str]
    folder: Path | None  # of their files
    limit: int | None  # questions of each


def score_traced_run(
    run: RunFolder,
    device_name: str,
    tokenizer: Tokenizer,
    texts: Sequence[EncodedDocument],
    suite: Suite,
    items_path: Path | None,
    progress: ProgressCallback,
) -> dict[str, Any]:
    """Return the record; write `items_path` if given."""
    device = torch.device(device_name)
    traced = read_traced(run.folder / "graph")
    scorer = GraphScorer(load_trained_model(traced, run.checkpoint), device)
    untrained = GraphScorer(build_model(traced), device)
    lengths, end_of_text = tokenizer.byte_lengths(), tokenizer.end_of_text
    result = score_graph(scorer, untrained, texts, lengths, end_of_text, progress)
    metrics: dict[str, benchmark_suite.Metrics] = {}
    questions: list[benchmark_suite.Item] = []
    if suite.tasks:
        assert suite.folder is not None
        metrics, questions = benchmark_suite.run_suite(
            scorer, tokenizer, suite.tasks, suite.folder, suite.limit, progress
        )
    if items_path is not None:
        items.write_items(items_path, result.documents, questions)
    return build_traced_record(run, traced, result) | {
        "suite": benchmark_suite.list_metrics(metrics),
        "sandbox": "graph",
    }


def build_traced_record(run: RunFolder, traced: TracedArchitecture, result: GraphScore) -> dict[str, Any]:
    summary = describe_traced(traced)
    per_token = summary["flops_per_token"]
    return {
        **dataclasses.asdict(result.bits),
        "arch": run.arch,
        "graph": summary["hash"],
        "parameters": run.parameters,
        "train_flops": run.train_flops,
        "train_seconds": run.train_seconds,
        "train_tokens": run.train_tokens,
        "flops_per_token": per_token,
        "scoring_flops_per_token": summary["scoring_flops_per_token"],
        "flops_void": "",
        "step": run.step,
        "checks": describe_checks(result),
    }
