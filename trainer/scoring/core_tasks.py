"""The 22 tasks of CORE (DCLM, Li et al. 2024, arXiv 2406.11794), as DCLM's `mmlu_and_lowvar.yaml` configures them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from trainer.scoring.benchmark_sources import CORE_FOLDER

ANSWER = "\nAnswer: "
CENTERED = "centered"
"""Name of the mean over a part of the tasks, which cannot be compared with CORE."""

Kind = Literal["multiple_choice", "schema", "language_modeling"]


@dataclass(frozen=True)
class CoreTask:
    """A task: how its questions are asked, and the accuracy of guessing."""

    name: str
    file: str  # in the folder of evaluation data
    kind: Kind
    shots: int  # examples before each question
    chance: float  # since September 2025 ("v2")
    first_chance: float  # before ("v1"); lower for a few tasks
    delimiter: str = " "  # between a question and its answer


def build_task(
    name: str,
    file: str,
    kind: Kind,
    shots: int,
    chance: float = 0.0,
    *,
    first_chance: float | None = None,
    delimiter: str = " ",
) -> CoreTask:
    first = chance if first_chance is None else first_chance
    return CoreTask(name, f"{CORE_FOLDER}/{file}.jsonl", kind, shots, chance, first, delimiter)


CORE_TASKS = (
    build_task("hellaswag_zeroshot", "language_understanding/hellaswag", "multiple_choice", 0, 0.25),
    build_task("jeopardy", "world_knowledge/jeopardy_all", "language_modeling", 10, delimiter=ANSWER),
    build_task("bigbench_qa_wikidata", "world_knowledge/bigbench_qa_wikidata", "language_modeling", 10),
    build_task("arc_easy", "world_knowledge/arc_easy", "multiple_choice", 10, 0.25, delimiter=ANSWER),
    build_task("arc_challenge", "world_knowledge/arc_challenge", "multiple_choice", 10, 0.25, delimiter=ANSWER),
    build_task("copa", "commonsense_reasoning/copa", "multiple_choice", 0, 0.5),
    build_task(
        "commonsense_qa", "commonsense_reasoning/commonsense_qa", "multiple_choice", 10, 0.403, first_chance=0.2
    ),
    build_task("piqa", "commonsense_reasoning/piqa", "multiple_choice", 10, 0.5, delimiter=ANSWER),
    build_task("openbook_qa", "commonsense_reasoning/openbook_qa", "multiple_choice", 0, 0.25),
    build_task("lambada_openai", "language_understanding/lambada_openai", "language_modeling", 0),
    build_task("hellaswag", "language_understanding/hellaswag", "multiple_choice", 10, 0.25),
    build_task("winograd", "language_understanding/winograd_wsc", "schema", 0, 0.5),
    build_task("winogrande", "language_understanding/winogrande", "schema", 0, 0.5),
    build_task("bigbench_dyck_languages", "symbolic_problem_solving/bigbench_dyck_languages", "language_modeling", 10),
    build_task(
        "agi_eval_lsat_ar",
        "symbolic_problem_solving/agi_eval_lsat_ar",
        "multiple_choice",
        3,
        0.25,
        first_chance=0.2,
    ),
    build_task("bigbench_cs_algorithms", "symbolic_problem_solving/bigbench_cs_algorithms", "language_modeling", 10),
    build_task("bigbench_operators", "symbolic_problem_solving/bigbench_operators", "language_modeling", 10),
    build_task(
        "bigbench_repeat_copy_logic", "symbolic_problem_solving/bigbench_repeat_copy_logic", "language_modeling", 10
    ),
    build_task("squad", "reading_comprehension/squad", "language_modeling", 10),
    build_task("coqa", "reading_comprehension/coqa", "language_modeling", 0),
    build_task("boolq", "reading_comprehension/boolq", "multiple_choice", 10, 0.62, delimiter=ANSWER),
    build_task(
        "bigbench_language_identification",
        "language_understanding/bigbench_language_identification",
        "multiple_choice",
        10,
        0.25,
        first_chance=0.091,
    ),
)

SAMPLE_FOLDER = "core_sample"
SAMPLE_NAMES = ("copa", "openbook_qa", "piqa", "winogrande")
CORE_SAMPLE_TASKS = tuple(
    replace(task, file=f"{SAMPLE_FOLDER}/{task.name}.jsonl") for task in CORE_TASKS if task.name in SAMPLE_NAMES
)
"""Four of them, with the first 60 questions of each in this repository: for machines without a network."""
