"""CORE: the mean over 22 tasks of (accuracy - chance) / (1 - chance).

A choice is the one with the lowest mean loss of its tokens; a continuation is right if each of its tokens is the most
likely one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trainer.scoring.benchmark_tasks import find_file
from trainer.scoring.core_questions import Candidate, Question, build_candidates, choose_examples, select_questions
from trainer.scoring.core_tasks import CENTERED, CORE_TASKS, CoreTask
from trainer.scoring.model_scorer import ModelScorer, score_answer
from trainer.scoring.passes import CHECKED_CORE_ITEMS

if TYPE_CHECKING:
    from trainer.data.tokenizer import Tokenizer

Accuracies = dict[str, tuple[float, float]]  # task -> (accuracy, standard error)


class Replacement(NamedTuple):
    """Source of the tokens that replace later ones."""

    text: np.ndarray  # of all questions: the tokens of one would name its answer
    rng: np.random.Generator


class CoreResult(NamedTuple):
    accuracies: Accuracies  # corrected for later tokens
    corrections: Accuracies
    items: list[dict[str, Any]]


def run_core(
    scorer: ModelScorer,
    tokenizer: Tokenizer,
    folder: Path | None,
    limit: int | None,
    progress: Callable[[str, float], None],
    tasks: Sequence[CoreTask] = CORE_TASKS,
) -> CoreResult:
    """Answer `limit` random questions of each task, and a few again without later tokens (`benchmark_suite`).

    An exact match is an answer that the text contains: a model that reads it ahead at few questions gains all of them,
    and a few repetitions would not show it. So every right one is answered again, and has to be right again.
    """
    result, rng = CoreResult({}, {}, []), np.random.default_rng()
    for number, task in enumerate(tasks):
        questions = select_questions(read_questions(task, folder), limit)
        answers = []
        for i in range(len(questions)):
            answers.append(answer_question(scorer, tokenizer, task, questions, i, None))
            progress(f"CORE: {task.name}", (number + (i + 1) / len(questions)) / len(tasks))
        correct = np.array([is_correct for is_correct, _ in answers], float)
        is_exact_match = task.kind == "language_modeling"
        chosen = rng.choice(len(questions), min(CHECKED_CORE_ITEMS, len(questions)), replace=False)
        chosen = np.flatnonzero(correct) if is_exact_match else chosen
        texts = [build_rows(task, questions, i, tokenizer, scorer.sequence_length) for i in range(len(questions))]
        replacement = Replacement(np.concatenate([row.tokens for rows in texts for row in rows]), rng)
        alone = [answer_question(scorer, tokenizer, task, questions, int(i), replacement)[0] for i in chosen]
        changes = np.array(alone, float) - correct[chosen]
        rest = 1 - len(chosen) / len(questions)
        correction = (changes.sum() / len(questions), 0.0) if is_exact_match else estimate_mean(changes, rest)
        result.corrections[task.name] = correction
        value, error = estimate_mean(correct)
        result.accuracies[task.name] = (value + correction[0], math.hypot(error, correction[1]))
        result.items.extend(
            {"part": task.name, "item": i, "acc": float(is_correct), "log_likelihoods": scores}
            for i, (is_correct, scores) in enumerate(answers)
        )
    return result


def read_questions(task: CoreTask, folder: Path | None) -> list[Question]:
    path = find_file(task.file, folder)
    assert path is not None, f"checked by split_by_available_data: {task.file}"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def build_rows(
    task: CoreTask, questions: Sequence[Question], number: int, tokenizer: Tokenizer, length: int
) -> list[Candidate]:
    """Return a question's candidates with their prompt, of at most `length` tokens."""
    examples = choose_examples(questions, number, task.shots)
    return [row.cut_left(length) for row in build_candidates(task, questions[number], examples, tokenizer)]


def answer_question(
    scorer: ModelScorer,
    tokenizer: Tokenizer,
    task: CoreTask,
    questions: Sequence[Question],
    number: int,
    replacement: Replacement | None,
) -> tuple[bool, list[float]]:
    """Return whether the answer is right, and each candidate's log-likelihood; with `replacement` of later tokens."""
    question, found = questions[number], []
    for candidate in build_rows(task, questions, number, tokenizer, scorer.sequence_length):
        positions = np.arange(candidate.start - 1, candidate.end - 1)
        row = np.array(candidate.tokens, np.int64)
        text, rng = replacement or (row, None)
        found.append(score_answer(scorer, row, positions, text, tokenizer.end_of_text, rng) if len(positions) else None)
    likelihoods = [-float(scores.nats.sum()) if scores else 0.0 for scores in found]
    if task.kind == "language_modeling":
        return bool(found[0] is not None and found[0].is_greedy.all()), likelihoods
    losses = [float(scores.nats.mean()) if scores else math.inf for scores in found]
    return losses.index(min(losses)) == question["gold"], likelihoods


def estimate_mean(values: np.ndarray, rest: float = 1.0) -> tuple[float, float]:
    """Return a mean and its standard error; `rest`: the share of the population that was not drawn."""
    error = math.sqrt(float(values.var(ddof=1)) / len(values) * rest) if len(values) > 1 else 0.0
    return float(values.mean()), error


def compute_core(accuracies: Accuracies) -> dict[str, tuple[float, float]]:
    """Return CORE with the present values of chance, and `core_v1` with the first ones, which older figures have."""
    return {
        "core": average_centered(accuracies, {task.name: task.chance for task in CORE_TASKS}),
        "core_v1": average_centered(accuracies, {task.name: task.first_chance for task in CORE_TASKS}),
    }


def compute_centered(accuracies: Accuracies, tasks: Sequence[CoreTask]) -> dict[str, tuple[float, float]]:
    """Return the mean of centered accuracies, under a name that cannot be taken for CORE."""
    return {CENTERED: average_centered(accuracies, {task.name: task.chance for task in tasks})}


def average_centered(accuracies: Accuracies, chances: Mapping[str, float]) -> tuple[float, float]:
    parts = [
        ((value - chance) / (1 - chance), error / (1 - chance))
        for (value, error), chance in ((accuracies[name], chance) for name, chance in chances.items())
    ]
    return sum(value for value, _ in parts) / len(parts), math.sqrt(sum(error**2 for _, error in parts)) / len(parts)
