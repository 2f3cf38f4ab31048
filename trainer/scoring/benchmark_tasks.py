"""The tasks of the benchmark suite, and their files. Standard library only: the site reads it.

A season stores the files of its tracks' tasks, and scorers download them by hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import UserError
from trainer.scoring.core_tasks import CORE_SAMPLE_TASKS, CORE_TASKS, CoreTask

SHIPPED = Path(__file__).with_name("benchmark_data")
"""Files that are part of this repository, each folder with its license."""


class UnknownBenchmarkError(UserError):
    """A task that is not in the suite."""


@dataclass(frozen=True)
class BenchmarkTask:
    """One lm-eval task, read from a local file."""

    task: str  # lm-eval's name
    split: str  # lm-eval's name of the split to score
    file: str  # relative to the folder of evaluation data
    missing_splits: tuple[str, ...] = ()  # splits that lm-eval would read and that have no file


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

SAMPLE_PARADIGMS = (
    "anaphor_number_agreement",
    "determiner_noun_agreement_1",
    "irregular_past_participle_verbs",
    "regular_plural_subject_verb_agreement_1",
)
"""BLiMP tasks whose first 150 pairs are in `SHIPPED`."""


def build_validation_task(task: str) -> tuple[BenchmarkTask, ...]:
    return (BenchmarkTask(task, "validation", f"{task}/validation.jsonl.gz", missing_splits=("training_split",)),)


def build_test_task(task: str, file: str = "test") -> tuple[BenchmarkTask, ...]:
    return (
        BenchmarkTask(task, "test", f"{task}/{file}.jsonl.gz", missing_splits=("training_split", "validation_split")),
    )


SUITE: dict[str, tuple[BenchmarkTask, ...]] = {
    # BLiMP's only split is called train.
    "blimp": tuple(BenchmarkTask(f"blimp_{name}", "train", f"blimp/{name}.jsonl.gz") for name in PARADIGMS),
    "blimp_sample": tuple(
        BenchmarkTask(f"blimp_{name}", "train", f"blimp_sample/{name}.jsonl") for name in SAMPLE_PARADIGMS
    ),
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


CORE, CORE_SAMPLE = "core", "core_sample"
CORES: dict[str, tuple[CoreTask, ...]] = {CORE: CORE_TASKS, CORE_SAMPLE: CORE_SAMPLE_TASKS}
NAMES = (*SUITE, *CORES)
"""Names of all tasks: lm-eval's, and CORE and its sample as one each (`trainer.scoring.core`)."""


def check_names(names: Sequence[str]) -> None:
    """Raise `UnknownBenchmarkError` for a task that is not in the suite."""
    for name in names:
        if name not in NAMES:
            raise UnknownBenchmarkError(f"There is no task {name!r} in the suite; known: {', '.join(NAMES)}.")


def list_files(name: str) -> list[str]:
    """Return the relative paths of a task's files."""
    return sorted({task.file for task in CORES.get(name) or SUITE[name]})


def find_file(path: str, folder: Path | None) -> Path | None:
    """Return a task's file in the folder of evaluation data, else the shipped one; None if there is neither."""
    candidates = (root / path for root in (folder, SHIPPED) if root is not None)
    return next((file for file in candidates if file.is_file()), None)


def split_by_available_data(names: Sequence[str], folder: Path | None) -> tuple[list[str], list[str]]:
    """Return (tasks with all their files, the other tasks). Raise `UnknownBenchmarkError`."""
    check_names(names)
    available = [name for name in names if all(find_file(path, folder) for path in list_files(name))]
    return available, [name for name in names if name not in available]
