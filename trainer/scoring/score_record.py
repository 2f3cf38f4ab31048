"""Score a run: the record that `dailytrain score` prints."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from trainer.accounting.flops import count_parameters
from trainer.data.tokenizer import Tokenizer
from trainer.errors import LookAheadError, UserError, attribute_to_model
from trainer.graph.reading import read_traced
from trainer.graph.summary import describe_traced
from trainer.scoring import benchmark_suite, items
from trainer.scoring.heldout_text import EncodedDocument
from trainer.scoring.model_scorer import Losses, ModelScorer
from trainer.scoring.progress import ProgressCallback
from trainer.scoring.run_folder import RunFolder
from trainer.scoring.scored_models import ScoredModels, load_graph_models
from trainer.scoring.text_score import TextScore, describe_checks, score_text
from trainer.scoring.tf32 import round_products

LOSSES_FILE = "losses.npy"  # beside the items


class Suite(NamedTuple):
    """Which benchmarks to run."""

    tasks: Sequence[str]
    folder: Path | None  # of their files
    limit: int | None  # questions of each


def score_run(
    run: RunFolder,
    device_name: str,
    tokenizer: Tokenizer,
    texts: Sequence[EncodedDocument],
    suite: Suite,
    items_path: Path | None,
    reference_path: Path | None,
    progress: ProgressCallback,
) -> dict[str, Any]:
    """Return the record; write the items and the losses if `items_path` is given. Raise `ModelError`."""
    # Matrix products and convolutions round equally on all devices, except where the record says TF32.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    reference = read_reference(reference_path, sum(len(text.tokens) for text in texts)) if reference_path else None
    progress("loading the model", 0)
    lengths, end_of_text = tokenizer.byte_lengths(), tokenizer.end_of_text
    models, facts = load_models(run)
    with attribute_to_model("while it was scored"):
        device = torch.device(device_name)
        trained = ModelScorer(models.trained, device, run.sequence_length)
        untrained = ModelScorer(models.untrained, device, run.sequence_length)
        result = score_text(trained, untrained, texts, lengths, end_of_text, progress, reference)
    if result.untrained.is_better:
        raise LookAheadError(
            "The untrained model predicts the held-out text better than the text's own token frequencies do:"
            " it holds knowledge that was not trained. Remove tables that were computed from text, and read no later"
            " tokens."
        )
    answers = benchmark_suite.SuiteResult({}, {}, [], {})
    if suite.tasks:
        with round_products(result.precision.name):  # the error of benchmarks is larger than the text's
            answers = benchmark_suite.run_suite(trained, tokenizer, suite.tasks, suite.folder, suite.limit, progress)
    if items_path is not None:
        items.write_items(items_path, result.documents, answers.items)
        np.save(items_path.with_name(LOSSES_FILE), result.losses.astype(np.float16))
    record = {**build_record(run, result), **facts, "suite": benchmark_suite.list_metrics(answers.metrics)}
    record["suite_seconds"] = {name: round(seconds, 1) for name, seconds in answers.seconds.items()}
    record["checks"]["untrained"]["seed"] = models.seed
    record["checks"]["suite"] = benchmark_suite.list_metrics(answers.corrections, has_average=False)
    return record


def load_models(run: RunFolder) -> tuple[ScoredModels, dict[str, Any]]:
    """Return the models, and what the record says about them."""
    if (run.folder / "graph").is_dir():
        with attribute_to_model("while its graphs were loaded"):
            traced = read_traced(run.folder / "graph")
            summary = describe_traced(traced)
            return load_graph_models(traced, run), {
                "graph": summary["hash"],
                "flops_per_token": summary["flops_per_token"],
                "scoring_flops_per_token": summary["scoring_flops_per_token"],
            }
    from trainer.scoring.python_models import load_python_models  # runs the architecture's code

    models = load_python_models(run)
    counts = count_parameters(models.trained)
    return models, {
        "parameters_embedding": counts["embedding"],
        "parameters_non_embedding": counts["non_embedding"],
        "flops_per_token": run.train_flops / run.train_tokens if run.train_flops and run.train_tokens else None,
    }


def read_reference(path: Path, count: int) -> Losses | None:
    """Return another model's losses of the same tokens; None, with a line in the log, if the file is of another text.

    Raise `UserError` for a file that holds no losses.
    """
    try:
        with path.open("rb") as file:  # `np.load` would open an archive, too
            losses = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} holds no losses (`dailytrain score --items` writes {LOSSES_FILE})") from error
    if losses.shape != (count,) or losses.dtype.kind != "f" or not np.isfinite(losses).all():
        sys.stderr.write(f"dailytrain score: {path.name} is ignored: it is not of these {count:,} tokens\n")
        return None
    return losses.astype(np.float64)


def build_record(run: RunFolder, result: TextScore) -> dict[str, Any]:
    return {
        **dataclasses.asdict(result.bits),
        "arch": run.arch,
        "parameters": run.checkpoint_floats,
        "train_flops": run.train_flops,
        "train_seconds": run.train_seconds,
        "train_tokens": run.train_tokens,
        "step": run.step,
        "checks": describe_checks(result),
    }
