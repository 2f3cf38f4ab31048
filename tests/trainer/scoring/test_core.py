"""CORE against examples computed by hand, as DCLM and nanochat define it, and the passes that a score needs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.scored_runs import CharacterTokenizer, build_scorer
from trainer.scoring import core
from trainer.scoring.benchmark_tasks import CORE, CORE_SAMPLE, SHIPPED, SUITE
from trainer.scoring.core import (
    Replacement,
    answer_question,
    average_centered,
    compute_centered,
    compute_core,
    run_core,
)
from trainer.scoring.core_questions import build_candidates, choose_examples, select_questions
from trainer.scoring.core_tasks import CORE_SAMPLE_TASKS, CORE_TASKS, SAMPLE_NAMES, CoreTask, build_task
from trainer.scoring.model_scorer import ModelScorer, TargetScores, score_answer
from trainer.scoring.passes import (
    CORE_QUESTIONS,
    CORE_SAMPLE_COUNT,
    count_task_passes,
)

MULTIPLE = build_task("m", "m", "multiple_choice", 1, 0.5)
SCHEMA = build_task("s", "s", "schema", 0, 0.5)
LANGUAGE = build_task("l", "l", "language_modeling", 1, delimiter="\nAnswer: ")
LENGTH = 12


class WordTokenizer:
    """A token for each word, and one for each line break; 0 is the end of text."""

    end_of_text = 0

    def __init__(self) -> None:
        self.ids: dict[str, int] = {"<end>": 0}

    def encode(self, text: str) -> list[int]:
        return [self.ids.setdefault(word, len(self.ids)) for word in text.replace("\n", " \n ").split(" ") if word]


class Unigram(torch.nn.Module):
    """Predicts the same probabilities everywhere."""

    def __init__(self, probabilities: list[float]) -> None:
        super().__init__()
        self.register_buffer("log_probabilities", torch.tensor(probabilities).log())

    def features(self, tokens: Tensor) -> Tensor:
        return tokens[..., None].float()

    def logits(self, features: Tensor) -> Tensor:
        return self.log_probabilities.expand(*features.shape[:-1], -1)


def build_unigram_scorer(tokenizer: WordTokenizer, probabilities: dict[str, float]) -> ModelScorer:
    for word in probabilities:
        tokenizer.encode(word)
    values = [probabilities.get(word, 1e-9) for word in tokenizer.ids]
    return ModelScorer(Unigram(values), torch.device("cpu"), LENGTH)


def write_task(folder: Path, task: CoreTask, rows: list[dict[str, Any]]) -> WordTokenizer:
    """Write a task's questions to a folder; return a tokenizer of all their words."""
    path, tokenizer = folder / task.file, WordTokenizer()
    path.parent.mkdir()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for row in rows:
        tokenizer.encode(" ".join(" ".join(text) if isinstance(text, list) else str(text) for text in row.values()))
    tokenizer.encode("\n")
    return tokenizer


def test_choice_with_lowest_mean_loss_wins_not_with_lowest_sum() -> None:
    tokenizer = WordTokenizer()
    question = {"query": "The sky is", "choices": ["red", "very very blue"], "gold": 1}
    tokenizer.encode("The sky is red very blue")
    scorer = build_unigram_scorer(tokenizer, {"red": 0.25, "very": 0.5, "blue": 0.25})
    task = build_task("m", "m", "multiple_choice", 0, 0.5)
    is_right, likelihoods = answer_question(scorer, tokenizer, task, [question], 0, None)
    assert likelihoods == pytest.approx([math.log(0.25), 2 * math.log(0.5) + math.log(0.25)], rel=1e-5)
    assert likelihoods[0] > likelihoods[1], "the sum would choose red"
    assert is_right, "mean losses are 1.39 and 0.92"


def test_multiple_choice_scores_tokens_after_the_common_prefix() -> None:
    tokenizer = WordTokenizer()
    question = {"query": "Q: two", "choices": ["the cat", "the dog sat"], "gold": 0}
    example = {"query": "Q: one", "choices": ["x", "y"], "gold": 1}
    short, long = build_candidates(MULTIPLE, question, [example], tokenizer)
    words = list(tokenizer.ids)
    assert [words[i] for i in long.tokens] == ["<end>", "Q:", "one", "y", "\n", "\n", "Q:", "two", "the", "dog", "sat"]
    assert (short.start, short.end, long.start, long.end) == (9, 10, 9, 11)
    cut = long.cut_left(4)
    assert ([words[i] for i in cut.tokens], cut.start, cut.end) == (["two", "the", "dog", "sat"], 2, 4)


def test_schema_scores_the_common_continuation() -> None:
    tokenizer = WordTokenizer()
    question = {"context_options": ["Ann met Bob so Ann", "Ann met Bob so he"], "continuation": "went home", "gold": 1}
    candidates = build_candidates(SCHEMA, question, [], tokenizer)
    assert [candidate.end - candidate.start for candidate in candidates] == [2, 2]
    assert candidates[0].tokens[-2:] == candidates[1].tokens[-2:] == tokenizer.encode("went home")


@pytest.mark.parametrize(("continuation", "is_right"), [("yes yes", True), ("yes no", False)])
def test_language_modeling_needs_every_token_to_be_the_most_likely(continuation: str, is_right: bool) -> None:
    tokenizer = WordTokenizer()
    question = {"context": "Is it so? ", "continuation": continuation}
    other = {"context": "Is it?", "continuation": "no"}
    (candidate,) = build_candidates(LANGUAGE, question, [other], tokenizer)
    assert candidate.tokens[candidate.start :] == tokenizer.encode(continuation)
    scorer = build_unigram_scorer(tokenizer, {"yes": 0.6, "no": 0.3})
    assert answer_question(scorer, tokenizer, LANGUAGE, [question, other], 0, None)[0] == is_right
    replacement = Replacement(np.array(tokenizer.encode("Is it no")), np.random.default_rng(0))
    alone = answer_question(scorer, tokenizer, LANGUAGE, [question, other], 0, replacement)
    assert alone[0] == is_right, "the model is causal"


def test_questions_and_examples_are_those_of_nanochat() -> None:
    # random.Random(1337).shuffle(list(range(6))) and random.Random(1234 + 2).sample([0, 1, 3, 4, 5], 3) of CPython.
    questions = [{"n": n} for n in range(6)]
    assert [question["n"] for question in select_questions(questions, 4)] == [1, 0, 3, 2]
    assert [question["n"] for question in choose_examples(questions, 2, 3)] == [5, 4, 3]
    assert choose_examples(questions, 2, 0) == []


def test_core_is_the_mean_of_centered_accuracies() -> None:
    found = average_centered({"a": (0.75, 0.03), "b": (0.1, 0.04), "c": (0.4, 0.0)}, {"a": 0.5, "b": 0.0, "c": 0.5})
    assert found == (pytest.approx((0.5 + 0.1 - 0.2) / 3), pytest.approx(math.hypot(0.06, 0.04) / 3))


def test_core_of_guessing_is_zero_and_versions_differ_in_three_tasks() -> None:
    assert (len({task.name for task in CORE_TASKS}), len({task.file for task in CORE_TASKS})) == (22, 21)
    values = compute_core({task.name: (task.chance, 0.0) for task in CORE_TASKS})
    assert values["core"] == (pytest.approx(0), 0)
    # commonsense_qa: (0.403 - 0.2) / 0.8, LSAT: (0.25 - 0.2) / 0.8, language identification: (0.25 - 0.091) / 0.909
    assert values["core_v1"][0] == pytest.approx((0.25375 + 0.0625 + 0.174917) / 22, abs=1e-6)


def test_run_of_small_tasks_reports_accuracy_error_and_items(tmp_path: Path) -> None:
    task = build_task("m", "m", "multiple_choice", 2, 0.5)
    rows = [{"query": f"q{n}", "choices": ["good", "bad"], "gold": int(n == 3)} for n in range(8)]
    tokenizer = write_task(tmp_path, task, rows)
    scorer = build_unigram_scorer(tokenizer, {"good": 0.5, "bad": 0.1})
    found = run_core(scorer, tokenizer, tmp_path, None, lambda stage, done: None, [task])
    assert found.corrections == {"m": (0, 0)}
    assert found.accuracies["m"] == (7 / 8, pytest.approx(math.sqrt(0.125 / 8)))
    assert [item["acc"] for item in found.items].count(1.0) == 7


def test_replaced_tokens_come_from_all_questions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    task = build_task("m", "m", "multiple_choice", 0, 0.5)
    questions = [{"query": "why", "choices": [f"a{n}", f"b{n}"], "gold": 0} for n in range(50)]
    tokenizer = write_task(tmp_path, task, questions)
    texts: list[np.ndarray] = []

    def score(*arguments: Any) -> TargetScores:
        if arguments[-1] is not None:
            texts.append(arguments[3])
        return score_answer(*arguments)

    monkeypatch.setattr(core, "score_answer", score)
    run_core(build_unigram_scorer(tokenizer, {}), tokenizer, tmp_path, None, lambda stage, done: None, [task])
    assert texts
    answers = {tokenizer.ids[choice] for row in questions for choice in row["choices"]}
    assert all(answers <= set(text.tolist()) for text in texts)


def test_sample_is_scored_from_shipped_files_and_centered() -> None:
    scorer = ModelScorer(Unigram([1 / 128] * 128), torch.device("cpu"), 64)
    tasks = CORE_SAMPLE_TASKS
    found = run_core(scorer, CharacterTokenizer(), None, 20, lambda stage, done: None, tasks)
    assert found.accuracies.keys() == set(SAMPLE_NAMES)
    assert len(found.items) == 20 * len(tasks)
    ((name, (value, _)),) = compute_centered(found.accuracies, tasks).items()
    by_hand = [(found.accuracies[task.name][0] - task.chance) / (1 - task.chance) for task in tasks]
    assert (name, value) == ("centered", pytest.approx(sum(by_hand) / len(by_hand)))


class Peeker(torch.nn.Module):
    """Predicts the token that follows in rows with a certain word, and one token elsewhere."""

    def __init__(self, vocabulary_size: int, word: int, usual: int) -> None:
        super().__init__()
        self.vocabulary_size, self.word, self.usual = vocabulary_size, word, usual

    def features(self, tokens: Tensor) -> Tensor:
        following = torch.cat([tokens[:, 1:], torch.zeros_like(tokens[:, :1])], 1)
        is_read = (tokens == self.word).any(1, keepdim=True) & (following > 0)
        return torch.where(is_read, following, self.usual)[..., None].float()

    def logits(self, features: Tensor) -> Tensor:
        return 10.0 * torch.nn.functional.one_hot(features[..., 0].long(), self.vocabulary_size).float()


def test_peeking_at_few_exact_matches_gains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    monkeypatch.setattr(np.random, "default_rng", lambda: rng)
    task = build_task("l", "l", "language_modeling", 0)
    answers = ["seen end" if n % 20 == 0 else "hidden end" for n in range(100)]
    rows = [{"context": f"question {n}", "continuation": answer} for n, answer in enumerate(answers)]
    tokenizer = write_task(tmp_path, task, rows)
    scorer = build_scorer(Peeker(len(tokenizer.ids), tokenizer.ids["seen"], tokenizer.ids["end"]), LENGTH)
    found = run_core(scorer, tokenizer, tmp_path, None, lambda *_: None, [task])
    assert sum(item["acc"] for item in found.items) == 5, "it answers 5 % of the questions by reading ahead"
    assert found.accuracies["l"][0] == 0
    assert found.corrections["l"] == (-0.05, 0.0)


def test_every_task_has_an_estimate() -> None:
    assert CORE_QUESTIONS.keys() == {task.name for task in CORE_TASKS}
    for task in CORE_SAMPLE_TASKS:
        assert len((SHIPPED / task.file).read_text().splitlines()) == CORE_SAMPLE_COUNT
    for name in (*SUITE, CORE, CORE_SAMPLE):
        assert 0 < count_task_passes(name, 3) < count_task_passes(name, None)
