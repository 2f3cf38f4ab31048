"""Passes of a score: the estimate against counted passes and files."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from tests.support.paths import DATA
from tests.support.scored_runs import CharacterTokenizer, build_gpt, build_scorer, make_texts, score_tokens
from trainer.scoring.benchmark_tasks import CORE, CORE_SAMPLE, SHIPPED, SUITE
from trainer.scoring.core import run_core
from trainer.scoring.core_tasks import CORE_SAMPLE_TASKS, CORE_TASKS
from trainer.scoring.model_scorer import ModelScorer
from trainer.scoring.passes import (
    CORE_QUESTIONS,
    CORE_SAMPLE_COUNT,
    LM_EVAL_TASKS,
    count_suite_passes,
    count_task_passes,
    count_text_passes,
)

NIGHT = ("blimp", "lambada_openai", "hellaswag", "piqa", "arc_easy", "winogrande", "core")


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the rows of all passes."""
    rows: list[int] = []
    compute = ModelScorer.compute_logits

    def count(scorer, row, *arguments):
        rows.append(len(row))
        return compute(scorer, row, *arguments)

    monkeypatch.setattr(ModelScorer, "compute_logits", count)
    return rows


def test_limit_of_500_questions_spares_most_passes_of_the_night() -> None:
    exact_matches = LM_EVAL_TASKS["lambada_openai"].count_passes(None, 5153) - 5153
    assert count_suite_passes(NIGHT[:-1], None) - exact_matches == pytest.approx(85_035, rel=0.06), "asked once"
    assert count_suite_passes(NIGHT, 500) < count_suite_passes(NIGHT, None) / 5


@pytest.mark.parametrize("task", LM_EVAL_TASKS)
def test_tasks_have_as_many_questions_as_their_files(task: str) -> None:
    (part,) = SUITE[task]
    if not (DATA / "eval" / part.file).is_file():
        pytest.skip(f"no {part.file} in {DATA / 'eval'}: set DAILYTRAIN_DATA")
    with gzip.open(DATA / "eval" / part.file) as file:
        assert sum(1 for _ in file) == LM_EVAL_TASKS[task].count


def test_every_task_has_an_estimate() -> None:
    assert CORE_QUESTIONS.keys() == {task.name for task in CORE_TASKS}
    for task in CORE_SAMPLE_TASKS:
        assert len((SHIPPED / task.file).read_text().splitlines()) == CORE_SAMPLE_COUNT
    for name in (*SUITE, CORE, CORE_SAMPLE):
        assert 0 < count_task_passes(name, 3) < count_task_passes(name, None)


def test_passes_of_a_small_core_are_about_those_counted(passes: list[int]) -> None:
    scorer = build_scorer(build_gpt(vocabulary=128))
    run_core(scorer, CharacterTokenizer(), None, 20, lambda stage, done: None, CORE_SAMPLE_TASKS)
    # A character a token: answers have four to five times the tokens of GPT-2's tokenizer.
    first = count_task_passes(CORE_SAMPLE, 20)
    assert first < len(passes) < 5 * first


def test_passes_of_text_are_at_most_those_estimated(passes: list[int]) -> None:
    scorer = build_scorer(build_gpt())
    texts = make_texts(40)
    tokens = sum(len(text.tokens) for text in texts)
    score_tokens(scorer, texts)
    assert len(texts) < len(passes) < count_text_passes(tokens, scorer.sequence_length)
    assert np.unique(passes).tolist() == [scorer.sequence_length]
