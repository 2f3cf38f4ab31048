"""Sources of the benchmark files, each at a pinned revision. Standard library only, since the site reads it.

The revisions of the Hub's datasets and the commit below were read from public repositories that pin the same ones. What
a source gives at its revision has not been downloaded from the real Hub or from GitHub with this code yet.
"""

from __future__ import annotations

from dataclasses import dataclass

FOUNDRY, FOUNDRY_COMMIT = "mosaicml/llm-foundry", "8c8dd48f72168c5d51e2f7b151595892a8fba43d"


@dataclass(frozen=True)
class HubSplit:
    """A split of a dataset on the Hugging Face Hub: lm-eval's own, at a revision."""

    repository: str
    configuration: str | None
    split: str
    revision: str

    def __str__(self) -> str:
        return f"the Hub's {self.repository} at {self.revision[:8]}"


@dataclass(frozen=True)
class GitFile:
    """A file of a public repository on GitHub."""

    repository: str
    commit: str
    path: str
    blob: str  # git's id of the content, which every download is compared with

    def __str__(self) -> str:
        return f"github.com/{self.repository} at {self.commit[:8]}"


Source = HubSplit | GitFile

AI2_ARC = ("allenai/ai2_arc", "210d026faf9955653af8916fad021475a3f00453")
SUPER_GLUE = ("aps/super_glue", "3de24cf8022e94f4ee4b9d55a6f539891524d646")
BLIMP = ("nyu-mll/blimp", "877fba0801ffb7cbd8c39c1ff314a46f053f6036")

HUB_SOURCES = {
    "lambada_openai/test.jsonl.gz": HubSplit(
        "EleutherAI/lambada_openai", "default", "test", "900124bf3b8235c6daf21033af9948b3f07346c4"
    ),
    "hellaswag/validation.jsonl.gz": HubSplit(
        "Rowan/hellaswag", None, "validation", "218ec52e09a7e7462a5400043bb9a69a41d06b76"
    ),
    "piqa/validation.jsonl.gz": HubSplit("baber/piqa", None, "validation", "142f6d7367fd9877f0fb3b5734ea6a545f54cdd1"),
    "arc_easy/test.jsonl.gz": HubSplit(AI2_ARC[0], "ARC-Easy", "test", AI2_ARC[1]),
    "arc_challenge/test.jsonl.gz": HubSplit(AI2_ARC[0], "ARC-Challenge", "test", AI2_ARC[1]),
    "winogrande/validation.jsonl.gz": HubSplit(
        "allenai/winogrande", "winogrande_xl", "validation", "01e74176c63542e6b0bcb004dcdea22d94fb67b5"
    ),
    "openbookqa/test.jsonl.gz": HubSplit(
        "allenai/openbookqa", "main", "test", "388097ea7776314e93a529163e0fea805b8a6454"
    ),
    "boolq/validation.jsonl.gz": HubSplit(SUPER_GLUE[0], "boolq", "validation", SUPER_GLUE[1]),
    "copa/validation.jsonl.gz": HubSplit(SUPER_GLUE[0], "copa", "validation", SUPER_GLUE[1]),
    "sciq/validation.jsonl.gz": HubSplit(
        "allenai/sciq", None, "validation", "2c94ad3e1aafab77146f384e23536f97a4849815"
    ),
}

CORE_FOLDER = "core"
CORE_BLOBS = {
    "commonsense_reasoning/commonsense_qa": "f1cc16a88b05ab0934aab2ec2d02a6869e6e5520",
    "commonsense_reasoning/copa": "b22f96e08ae9d0e97e1ae58f67b6425c77ef200a",
    "commonsense_reasoning/openbook_qa": "a8aff255a64cbc72a85252acf00df25a315686c2",
    "commonsense_reasoning/piqa": "a9992adfdefde366fe7ccff871f5aa62449a09cf",
    "language_understanding/bigbench_language_identification": "1f132fbbb12a67ce267b7b92b458175632c265f3",
    "language_understanding/hellaswag": "448321079fdc140bd8566b16b24eda9ceacd3501",
    "language_understanding/lambada_openai": "4da02dd53b9e7385871d06ab855471d77b2f7dda",
    "language_understanding/winograd_wsc": "762fe030ac6938ecba438c47a04057247c6ab891",
    "language_understanding/winogrande": "316e87ae4659f0c402b0f00551fdec83ab0a0986",
    "reading_comprehension/boolq": "f42083a58713d00ef4600118cfdf79618c269190",
    "reading_comprehension/coqa": "028bd4e51326cc43f8394987ae47fbb271aeba9d",
    "reading_comprehension/squad": "dc733b8f58ec666c53fd946198c434b819a00680",
    "symbolic_problem_solving/agi_eval_lsat_ar": "d663b427ba310d3f877f09a6830198ca7c856189",
    "symbolic_problem_solving/bigbench_cs_algorithms": "7ecee0f270f3de8b6558da14ae02181f3d950a40",
    "symbolic_problem_solving/bigbench_dyck_languages": "27a4ac2b3b18716add92f4ecd62475c4f8d77768",
    "symbolic_problem_solving/bigbench_operators": "a982dc4f962725c9dc4abb07d3cc333c99959290",
    "symbolic_problem_solving/bigbench_repeat_copy_logic": "86621f10e7124ed6f3a61fb91493c1256c008f60",
    "world_knowledge/arc_challenge": "ce66b8dcfb4bac892a404a0dda8b4e8ed0f84b89",
    "world_knowledge/arc_easy": "b5fd1bf87a24246a6be67230b721541688f5c349",
    "world_knowledge/bigbench_qa_wikidata": "5e1be72797ba082fd4f6efa42f7d759d2d23339a",
    "world_knowledge/jeopardy_all": "2f771918dbc8b68550df204171b14d2648b5d494",
}
"""Files of CORE in LLM Foundry, from where DCLM takes them, and git's ids of their contents at `FOUNDRY_COMMIT`."""


def find_source(path: str) -> Source | None:
    """Return the source of a file of evaluation data; None for files that ship with this repository."""
    folder, _, name = path.partition("/")
    if folder == "blimp":
        return HubSplit(BLIMP[0], name.removesuffix(".jsonl.gz"), "train", BLIMP[1])
    if folder == CORE_FOLDER:
        stem = name.removesuffix(".jsonl")
        place = f"scripts/eval/local_data/{stem}.jsonl"
        return GitFile(FOUNDRY, FOUNDRY_COMMIT, place, CORE_BLOBS[stem]) if stem in CORE_BLOBS else None
    return HUB_SOURCES.get(path)
