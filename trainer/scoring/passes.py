"""Number of forward passes of a score. Without torch, since the site computes time limits from it.

Every pass is one row of the training length. Rows are not batched: a graph could read the other rows of its batch, and
a row of a GPU's track fills the GPU alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from trainer.scoring.benchmark_tasks import CORE, CORE_SAMPLE, PARADIGMS, SAMPLE_PARADIGMS
from trainer.scoring.core_tasks import CORE_TASKS, SAMPLE_NAMES
from trainer.scoring.look_ahead import DRAWS

DOCUMENT_TOKENS = 1000  # of web text: FineWeb-Edu's sample of 10 billion tokens has 9.7 million documents
REPEATED_DRAWS = 64  # drawn positions that are computed with a second replacement of the later tokens
UNTRAINED_WINDOWS = 64  # windows on which the untrained model is scored
TRAINING_WINDOWS = 64  # windows that the graph of training computes `TRAINING_DRAWS` times
TRAINING_DRAWS = 8  # even
TF32_WINDOWS = 32  # windows that a GPU computes twice, to compare TF32 with fp32
CHECKED_ITEMS = 32  # questions of each task of lm-eval that are answered again without later tokens
CHECKED_CORE_ITEMS = 4  # of each task of CORE
RIGHT_SHARE = 0.5  # of CORE's exact-match answers, assumed; those that are right are all answered again
EXACT_MATCH = "lambada_openai"  # the task of lm-eval whose answers are all answered again


class Questions(NamedTuple):
    """A benchmark task, or each of its equal parts."""

    count: int
    candidates: float  # texts of a question that are scored, each in a pass
    tokens: float  # of an answer, in GPT-2's tokenizer: measured for lm-eval's tasks, assumed for CORE's

    def count_passes(self, limit: int | None, checked: int) -> float:
        asked = min(self.count, limit or self.count)
        return self.candidates * (asked + min(checked, asked) * self.tokens)


LM_EVAL_TASKS = {
    "lambada_openai": Questions(5153, 1, 2),
    "hellaswag": Questions(10_042, 4, 14),
    "piqa": Questions(1838, 2, 24),
    "arc_easy": Questions(2376, 4, 5),
    "arc_challenge": Questions(1172, 4, 7),
    "winogrande": Questions(1267, 2, 6),
    "openbookqa": Questions(500, 4, 4),
    "boolq": Questions(3270, 2, 1),
    "copa": Questions(100, 2, 7),
    "sciq": Questions(1000, 4, 3),
}
PARADIGM, SAMPLE_PARADIGM = Questions(1000, 2, 8), Questions(150, 2, 8)

CORE_QUESTIONS = {
    "hellaswag_zeroshot": Questions(10_042, 4, 14),
    "jeopardy": Questions(2117, 1, 3),
    "bigbench_qa_wikidata": Questions(20_321, 1, 3),
    "arc_easy": Questions(2376, 4, 5),
    "arc_challenge": Questions(1172, 4, 7),
    "copa": Questions(100, 2, 7),
    "commonsense_qa": Questions(1221, 5, 2),
    "piqa": Questions(1838, 2, 24),
    "openbook_qa": Questions(500, 4, 4),
    "lambada_openai": Questions(5153, 1, 2),
    "hellaswag": Questions(10_042, 4, 14),
    "winograd": Questions(273, 2, 6),
    "winogrande": Questions(1267, 2, 6),
    "bigbench_dyck_languages": Questions(1000, 1, 4),
    "agi_eval_lsat_ar": Questions(230, 5, 10),
    "bigbench_cs_algorithms": Questions(1320, 1, 2),
    "bigbench_operators": Questions(210, 1, 3),
    "bigbench_repeat_copy_logic": Questions(32, 1, 20),
    "squad": Questions(10_570, 1, 4),
    "coqa": Questions(7983, 1, 4),
    "boolq": Questions(3270, 2, 1),
    "bigbench_language_identification": Questions(10_000, 11, 2),
}
"""The questions in LLM Foundry's files."""
CORE_SAMPLE_COUNT = 60  # most questions of a task of the sample


def count_text_passes(tokens: int, sequence_length: int) -> float:
    """Return the passes for held-out text of so many tokens, its checks and the untrained model."""
    windows = tokens / sequence_length + tokens / DOCUMENT_TOKENS
    return windows + DRAWS + REPEATED_DRAWS + UNTRAINED_WINDOWS + TRAINING_DRAWS * TRAINING_WINDOWS + 2 * TF32_WINDOWS


def count_suite_passes(tasks: Iterable[str], limit: int | None) -> float:
    """Return the passes for benchmark tasks with at most `limit` questions of each part."""
    return sum(count_task_passes(task, limit) for task in tasks)


def count_task_passes(task: str, limit: int | None) -> float:
    if task in (CORE, CORE_SAMPLE):
        names = SAMPLE_NAMES if task == CORE_SAMPLE else CORE_QUESTIONS
        size = CORE_SAMPLE_COUNT if task == CORE_SAMPLE else None
        asked = min((value for value in (limit, size) if value), default=None)
        return sum(count_core_passes(name, asked) for name in names)
    if task in LM_EVAL_TASKS:
        questions = LM_EVAL_TASKS[task]
        return questions.count_passes(limit, questions.count if task == EXACT_MATCH else CHECKED_ITEMS)
    part, parts = {"blimp": (PARADIGM, PARADIGMS), "blimp_sample": (SAMPLE_PARADIGM, SAMPLE_PARADIGMS)}[task]
    return len(parts) * part.count_passes(limit, max(2, CHECKED_ITEMS // len(parts)))


def count_core_passes(name: str, limit: int | None) -> float:
    questions, (kind,) = CORE_QUESTIONS[name], (task.kind for task in CORE_TASKS if task.name == name)
    asked = min(questions.count, limit or questions.count)
    right = math.ceil(RIGHT_SHARE * asked)
    return questions.count_passes(limit, right if kind == "language_modeling" else CHECKED_CORE_ITEMS)
