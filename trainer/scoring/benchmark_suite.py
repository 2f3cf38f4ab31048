"""The benchmark suite: its lm-eval tasks, where their files are, and how the results are averaged.

Tasks are read from local files (`--eval-data FOLDER`; tasks without files are skipped and listed) or from the Hub
(`--eval-data hub`). The suite is a sanity check: unlike the held-out text, its tasks are public, so multipliers are
computed from bits per byte.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import numpy as np

from trainer.errors import ModelError, UserError

if TYPE_CHECKING:
    from trainer.data.tokenizer import Tokenizer
    from trainer.scoring.model_scorer import ModelScorer

BOOTSTRAPS = 1000  # resamples for the standard error of a metric without a formula (perplexity)
CHECKED_ITEMS = 32  # questions of each task that are answered again without later tokens
HUB = Path("hub")  # instead of a folder: read tasks from the Hub

Metrics = dict[str, tuple[float, float]]  # metric -> (value, standard error)
Samples = list[dict[str, Any]]  # lm-eval's records of a task's questions

Item = dict[str, Any]
"""Scores of one question: `task`, `item` (its number), the metrics, `log_likelihoods` of the answers."""


class SuiteResult(NamedTuple):
    """What a model reached in each task."""

    metrics: dict[str, Metrics]  # corrected for later tokens
    corrections: dict[str, Metrics]
    items: list[Item]  # as answered, with later tokens


class UnknownBenchmarkError(UserError):
    """A task that is not in the suite."""


@dataclass(frozen=True)
class BenchmarkTask:
    """One lm-eval task, read from a local file."""

    task: str  # lm-eval's name
    split: str  # lm-eval's name of the split to score
    file: str  # relative to the folder of `--eval-data`
    missing_splits: tuple[str, ...] = ()  # splits that lm-eval would read and that have no file

    def config(self, folder: Path) -> dict[str, Any] | str:
        """Return the task's entry in an inline group; lm-eval merges only such entries with the registered task."""
        if folder == HUB:
            return self.task
        return {
            "task": self.task,
            "dataset_path": "json",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": {self.split: str((folder / self.file).resolve())}},
            **dict.fromkeys(self.missing_splits),
        }


PARADIGMS = (
    "adjunct_island",
    "anaphor_gender_agreement",
    "anaphor_number_agreement",
    "determiner_noun_agreement_1",
    "determiner_noun_agreement_with_adj_2",
    "distractor_agreement_relational_noun",
    "existential_there_quantifiers_1",
    "irregular_past_participle_verbs",
    "npi_present_1",
    "passive_1",
    "regular_plural_subject_verb_agreement_1",
    "wh_questions_subject_gap",
)
"""12 of BLiMP's 67: at most two from each of its phenomena that small models begin to learn."""


def build_validation_task(task: str) -> tuple[BenchmarkTask, ...]:
    return (BenchmarkTask(task, "validation", f"{task}/validation.jsonl.gz", missing_splits=("training_split",)),)


def build_test_task(task: str, file: str = "test") -> tuple[BenchmarkTask, ...]:
    return (
        BenchmarkTask(task, "test", f"{task}/{file}.jsonl.gz", missing_splits=("training_split", "validation_split")),
    )


SUITE: dict[str, tuple[BenchmarkTask, ...]] = {
    # BLiMP's only split is called train.
    "blimp": tuple(BenchmarkTask(f"blimp_{name}", "train", f"blimp/{name}.jsonl.gz") for name in PARADIGMS),
    "lambada_openai": (BenchmarkTask("lambada_openai", "test", "lambada_openai/test.jsonl.gz"),),
    "hellaswag": build_validation_task("hellaswag"),
    "piqa": build_validation_task("piqa"),
    "arc_easy": build_test_task("arc_easy"),
    "arc_challenge": build_test_task("arc_challenge"),
    "winogrande": build_validation_task("winogrande"),
    "openbookqa": build_test_task("openbookqa"),
    "boolq": build_validation_task("boolq"),
    "copa": build_validation_task("copa"),
    "sciq": build_test_task("sciq", "validation"),  # our file is its validation split
}

HEADLINE: dict[str, tuple[str, float]] = {
    "blimp": ("acc", 0.5),
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


def split_by_available_data(names: Sequence[str], folder: Path | None) -> tuple[list[str], list[str]]:
    """Return (tasks with all their files, the other tasks). Raise `UnknownBenchmarkError`."""
    for name in names:
        if name not in SUITE:
            raise UnknownBenchmarkError(f"There is no task {name!r} in the suite; known: {', '.join(SUITE)}.")
    if folder == HUB:
        return list(names), []
    available = [name for name in names if folder and all((folder / member.file).is_file() for member in SUITE[name])]
    return available, [name for name in names if name not in available]


def run_suite(
    scorer: ModelScorer,
    tokenizer: Tokenizer,
    names: Sequence[str],
    folder: Path,
    limit: int | None,
    progress: Callable[[str, float], None],
) -> SuiteResult:
    """Answer the first `limit` questions of each part of each task, and a random subset again without later tokens.

    The corrected metric is that of all questions, plus the mean over the subset of what changes for a question without
    later tokens. Its expectation is the metric that the model has without later tokens, whatever it does with them. The
    subset's sampling error is part of the metric's standard error.
    """
    with _silence_lm_eval(offline=folder != HUB):
        # Imported here: it takes a second, and most runs are scored without the suite.
        import lm_eval.tasks
        from lm_eval.evaluator import evaluate
        from lm_eval.tasks import TaskManager

        from trainer.scoring.lm_eval_model import LmEvalModel

        members = [member.config(folder) for name in names for member in SUITE[name]]
        # Indexing all of lm-eval's tasks takes six seconds, so only a few folders are indexed.
        folders = [Path(lm_eval.tasks.__file__).parent / name for name in FOLDERS]
        tasks = TaskManager(include_defaults=False, include_path=folders).load([{"group": "suite", "task": members}])
        model = LmEvalModel(scorer, tokenizer, progress)
        try:
            evaluation = evaluate(model, tasks, limit=limit, log_samples=True, bootstrap_iters=BOOTSTRAPS)
            samples = evaluation["samples"]
            chosen = choose_items(names, samples)
            model.replaces_later_tokens = True
            alone = evaluate(model, tasks, samples=chosen, log_samples=True, bootstrap_iters=0)["samples"]
        except OverflowError:
            raise ModelError(
                "The model finds a benchmark's answers so unlikely that the benchmark's metrics overflow."
            ) from None
    metrics, corrections = {}, {}
    for name in names:
        plain = [parse_metrics(evaluation["results"][member.task]) for member in SUITE[name]]
        found = [
            compute_corrections(m, samples[part.task], alone[part.task])
            for m, part in zip(plain, SUITE[name], strict=True)
        ]
        corrections[name] = average_metrics(found)
        metrics[name] = average_metrics([add_corrections(*pair) for pair in zip(plain, found, strict=True)])
    questions = [build_item(name, m, sample) for name in names for m in SUITE[name] for sample in samples[m.task]]
    return SuiteResult(metrics, corrections, questions)


def choose_items(names: Sequence[str], samples: dict[str, Samples]) -> dict[str, list[int]]:
    """Return the numbers of random questions of each part."""
    rng = np.random.default_rng()
    chosen = {}
    for name in names:
        for member in SUITE[name]:
            numbers = [sample["doc_id"] for sample in samples[member.task]]
            count = min(len(numbers), max(2, CHECKED_ITEMS // len(SUITE[name])))
            chosen[member.task] = sorted(int(number) for number in rng.choice(numbers, count, replace=False))
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
    """Return the mean over tasks of (score - chance) / (1 - chance), and its standard error: 0 is random guessing."""
    if not metrics_by_task:
        return None
    parts = []
    for name, metrics in metrics_by_task.items():
        metric, chance = HEADLINE[name]
        value, error = metrics[metric]
        parts.append(((value - chance) / (1 - chance), error / (1 - chance)))
    return sum(value for value, _ in parts) / len(parts), math.sqrt(sum(error**2 for _, error in parts)) / len(parts)


def list_metrics(metrics: dict[str, Metrics], has_average: bool = True) -> dict[str, dict[str, list[float]]]:
    """Return task -> metric -> [value, standard error], the normalized average last."""
    average = average_normalized_scores(metrics) if has_average else None
    rows = {**metrics, **({"average": {"normalised": average}} if average and len(metrics) > 1 else {})}
    return {task: {name: list(pair) for name, pair in values.items()} for task, values in rows.items()}


def parse_metrics(result: dict[str, Any]) -> Metrics:
    """Join lm-eval's `acc,none` and `acc_stderr,none`."""
    metrics: Metrics = {}
    for key, value in result.items():
        name, _, filtered = key.partition(",")
        error = result.get(f"{name}_stderr,{filtered}")
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
def _silence_lm_eval(offline: bool) -> Iterator[None]:
    """Silence lm-eval and datasets on both streams. `offline`: no network access, and a temporary cache."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with (
        tempfile.TemporaryDirectory(prefix="dailytrain-suite-") as cache,
        Path(os.devnull).open("w") as devnull,
        contextlib.redirect_stdout(devnull),
        mock.patch.dict(os.environ),
    ):
        os.environ |= {
            **({"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": cache} if offline else {}),
            "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
            "TQDM_DISABLE": "1",
            "DISABLE_MULTIPROC": "1",  # lm-eval would start processes for a thousand resamples
        }
        yield
