"""Run lm-eval's tasks of the suite (`trainer.scoring.benchmark_tasks`) from local files, and average the results.

The suite is a sanity check: unlike the held-out text, its tasks are public, so multipliers are computed from bits per
byte.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import numpy as np

from trainer.errors import DivergenceError
from trainer.scoring.benchmark_tasks import CORE, CORES, SUITE, BenchmarkTask, find_file
from trainer.scoring.core import compute_centered, compute_core, run_core
from trainer.scoring.items import METRICS as ITEM_METRICS
from trainer.scoring.passes import CHECKED_ITEMS, EXACT_MATCH

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

    from trainer.data.tokenizer import Tokenizer
    from trainer.scoring.lm_eval_model import LmEvalModel
    from trainer.scoring.model_scorer import ModelScorer

BOOTSTRAPS = 1000  # resamples for the standard error of a metric without a formula (perplexity)

Metrics = dict[str, tuple[float, float]]  # metric -> (value, standard error)
Samples = list[dict[str, Any]]  # lm-eval's records of a task's questions

Item = dict[str, Any]
"""Scores of one question: `task`, `item` (its number), the metrics, `log_likelihoods` of the answers."""


class SuiteResult(NamedTuple):
    """Results of a model in each task."""

    metrics: dict[str, Metrics]  # corrected for later tokens
    corrections: dict[str, Metrics]
    items: list[Item]  # as answered, with later tokens
    seconds: dict[str, float]


HEADLINE: dict[str, tuple[str, float]] = {
    "blimp": ("acc", 0.5),
    "blimp_sample": ("acc", 0.5),
    "lambada_openai": ("acc", 0.0),
    "hellaswag": ("acc_norm", 0.25),
    "piqa": ("acc_norm", 0.5),
    "arc_easy": ("acc_norm", 0.25),
    "arc_challenge": ("acc_norm", 0.25),
    "winogrande": ("acc", 0.5),
    "openbookqa": ("acc_norm", 0.25),
    "boolq": ("acc", 0.5),
    "copa": ("acc", 0.5),
    "sciq": ("acc_norm", 0.25),
}
"""Task -> the metric that enters the average, and its value for random guessing."""

FOLDERS = ("arc", "blimp", "hellaswag", "lambada", "openbookqa", "piqa", "sciq", "super_glue", "winogrande")
"""lm-eval's folders of task definitions."""


def run_suite(
    scorer: ModelScorer,
    tokenizer: Tokenizer,
    names: Sequence[str],
    folder: Path | None,
    limit: int | None,
    progress: Callable[[str, float], None],
) -> SuiteResult:
    """Answer the first `limit` questions of each part of each task, and a random subset again without later tokens;
    all questions of `EXACT_MATCH`, whose text contains the answer.

    `folder` has the tasks' files, beyond the shipped ones. The corrected metric is that of all questions, plus the mean
    over the subset of what changes for a question without later tokens. Its expectation is the metric that the model
    has without later tokens. The subset's sampling error is part of the metric's standard error.
    """
    result = SuiteResult({}, {}, [], {})
    with _silence_lm_eval():
        # Imported here: it takes a second, and most runs are scored without the suite.
        import lm_eval.tasks
        from lm_eval.tasks import TaskManager

        from trainer.scoring.lm_eval_model import LmEvalModel

        # Indexing all of lm-eval's tasks takes six seconds, so only a few folders are indexed.
        folders = [Path(lm_eval.tasks.__file__).parent / name for name in FOLDERS]
        manager = TaskManager(include_defaults=False, include_path=folders)
        for name in names:
            started = time.monotonic()
            try:
                if name in CORES:
                    add_core(name, scorer, tokenizer, folder, limit, progress, result)
                else:
                    run_task(name, manager, LmEvalModel(scorer, tokenizer, progress), folder, limit, result)
            except OverflowError:
                raise DivergenceError(
                    "The model finds a benchmark's answers so unlikely that the benchmark's metrics overflow."
                ) from None
            result.seconds[name] = time.monotonic() - started
    return result


def add_core(
    name: str,
    scorer: ModelScorer,
    tokenizer: Tokenizer,
    folder: Path | None,
    limit: int | None,
    progress: Callable[[str, float], None],
    result: SuiteResult,
) -> None:
    """Add CORE, or its sample, and the accuracies of its tasks to `result`."""
    tasks = CORES[name]
    found = run_core(scorer, tokenizer, folder, limit, progress, tasks)
    averages = compute_core(found.accuracies) if name == CORE else compute_centered(found.accuracies, tasks)
    result.metrics[name] = {**averages, **found.accuracies}
    result.corrections[name] = found.corrections
    result.items.extend({"task": name, **item} for item in found.items)


def run_task(
    name: str, manager: TaskManager, model: LmEvalModel, folder: Path | None, limit: int | None, result: SuiteResult
) -> None:
    """Add a task's metrics, corrections and questions to `result`."""
    from lm_eval.evaluator import evaluate

    parts = SUITE[name]
    tasks = manager.load([{"group": "suite", "task": [build_lm_eval_config(part, folder) for part in parts]}])
    evaluation = evaluate(model, tasks, limit=limit, log_samples=True, bootstrap_iters=BOOTSTRAPS)
    samples = evaluation["samples"]
    model.replaces_later_tokens = True
    chosen = choose_items(name, samples)
    alone = evaluate(model, tasks, samples=chosen, log_samples=True, bootstrap_iters=0)["samples"]
    plain = [parse_metrics(evaluation["results"][part.task]) for part in parts]
    found = [
        compute_corrections(metrics, samples[part.task], alone[part.task])
        for metrics, part in zip(plain, parts, strict=True)
    ]
    result.corrections[name] = average_metrics(found)
    result.metrics[name] = average_metrics([add_corrections(*pair) for pair in zip(plain, found, strict=True)])
    result.items.extend(build_item(name, part, sample) for part in parts for sample in samples[part.task])


def build_lm_eval_config(part: BenchmarkTask, folder: Path | None) -> dict[str, Any]:
    """Return a part's entry in an inline group; lm-eval merges only such entries with the registered task."""
    file = find_file(part.file, folder)
    assert file is not None, f"checked by split_by_available_data: {part.file}"
    return {
        "task": part.task,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {part.split: str(file.resolve())}},
        **dict.fromkeys(part.missing_splits),
    }


def choose_items(name: str, samples: dict[str, Samples]) -> dict[str, list[int]]:
    """Return the numbers of random questions of each part of a task, or of all."""
    rng = np.random.default_rng()
    chosen = {}
    for part in SUITE[name]:
        numbers = [sample["doc_id"] for sample in samples[part.task]]
        count = len(numbers) if name == EXACT_MATCH else min(len(numbers), max(2, CHECKED_ITEMS // len(SUITE[name])))
        chosen[part.task] = sorted(int(number) for number in rng.choice(numbers, count, replace=False))
    return chosen


def compute_corrections(metrics: Metrics, samples: Samples, alone: Samples) -> Metrics:
    """Return what has to be added to each metric of a part, and its standard error.

    `samples`: all questions; `alone`: a random subset, answered without later tokens. A metric is the mean of its
    values for single questions, except perplexity: exp(-mean of log-likelihoods).
    """
    by_number = {sample["doc_id"]: sample for sample in samples}
    corrections: Metrics = {}
    for name, (value, _) in metrics.items():
        changes = np.array([sample[name] - by_number[sample["doc_id"]][name] for sample in alone], float)
        rest = 1 - len(alone) / len(samples)  # share of the questions that are not in the subset
        error = math.sqrt(float(changes.var(ddof=1)) / len(changes) * rest) if len(changes) > 1 else 0.0
        mean = float(changes.mean())
        is_mean = name != "perplexity"
        corrections[name] = (mean, error) if is_mean else (value * math.expm1(-mean), value * math.exp(-mean) * error)
    return corrections


def add_corrections(metrics: Metrics, corrections: Metrics) -> Metrics:
    return {
        name: (value + corrections[name][0], math.hypot(error, corrections[name][1]))
        for name, (value, error) in metrics.items()
    }


def build_item(name: str, member: BenchmarkTask, sample: dict[str, Any]) -> Item:
    """Return the part of lm-eval's record of a question that is stored."""
    part = {"part": member.task} if len(SUITE[name]) > 1 else {}
    values = [float(value[0]) for value in sample["filtered_resps"]]
    correct = {metric: float(sample[metric]) for metric in ("acc", "acc_norm") if metric in sample}
    return {"task": name, **part, "item": sample["doc_id"], **correct, "log_likelihoods": values}


def average_normalized_scores(metrics_by_task: dict[str, Metrics]) -> tuple[float, float] | None:
    """Return the mean over lm-eval's tasks of (score - chance) / (1 - chance), and its error: 0 is guessing."""
    names = [name for name in metrics_by_task if name in HEADLINE]
    if not names:
        return None
    parts = []
    for name in names:
        metric, chance = HEADLINE[name]
        value, error = metrics_by_task[name][metric]
        parts.append(((value - chance) / (1 - chance), error / (1 - chance)))
    return sum(value for value, _ in parts) / len(parts), math.sqrt(sum(error**2 for _, error in parts)) / len(parts)


def list_metrics(metrics: dict[str, Metrics], has_average: bool = True) -> dict[str, dict[str, list[float]]]:
    """Return task -> metric -> [value, standard error], the normalized average last."""
    average = average_normalized_scores(metrics) if has_average else None
    rows = {
        **metrics,
        **({"average": {"normalized": average}} if average and len(metrics.keys() & HEADLINE.keys()) > 1 else {}),
    }
    return {task: {name: list(pair) for name, pair in values.items()} for task, values in rows.items()}


def parse_metrics(result: dict[str, Any]) -> Metrics:
    """Join lm-eval's `acc,none` and `acc_stderr,none`. A single question gets the largest standard error of a share."""
    metrics: Metrics = {}
    for key, value in result.items():
        name, _, filtered = key.partition(",")
        error = result.get(f"{name}_stderr,{filtered}")
        error = 0.5 if error == "N/A" and name in ITEM_METRICS else error
        if filtered and isinstance(error, int | float):
            metrics[name] = (float(value), float(error))
    return metrics


def average_metrics(members: Sequence[Metrics]) -> Metrics:
    """Return the mean over a task's parts, whose errors are independent."""
    count = len(members)
    return {
        name: (sum(m[name][0] for m in members) / count, math.sqrt(sum(m[name][1] ** 2 for m in members)) / count)
        for name in members[0]
    }


@contextlib.contextmanager
def _silence_lm_eval() -> Iterator[None]:
    """Silence lm-eval and datasets on both streams; no network access, and a temporary cache."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with (
        tempfile.TemporaryDirectory(prefix="dailytrain-suite-") as cache,
        Path(os.devnull).open("w") as devnull,
        contextlib.redirect_stdout(devnull),
        mock.patch.dict(os.environ),
    ):
        os.environ |= {
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "HF_DATASETS_CACHE": cache,
            "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
            "TQDM_DISABLE": "1",
            "DISABLE_MULTIPROC": "1",  # lm-eval would start processes for a thousand resamples
        }
        yield
