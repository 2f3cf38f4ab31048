"""Prompts of CORE's questions, and the tokens of each that are scored. As in DCLM and nanochat."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.scoring.core_tasks import CoreTask

if TYPE_CHECKING:
    from trainer.data.tokenizer import Tokenizer

ORDER_SEED, EXAMPLE_SEED = 1337, 1234
"""nanochat's, so that a limit selects the same questions and each question has the same examples."""

Question = Mapping[str, Any]


@dataclass(frozen=True)
class Candidate:
    """A text with the span of its tokens that is scored."""

    tokens: list[int]
    start: int
    end: int

    def cut_left(self, length: int) -> Candidate:
        """Return the last `length` tokens; at least one before the span stays."""
        cut = max(len(self.tokens) - length, 0)
        return Candidate(self.tokens[cut:], max(self.start - cut, 1), self.end - cut)


def select_questions(questions: Sequence[Question], limit: int | None) -> list[Question]:
    """Return the first `limit` questions of a random order that is always the same."""
    shuffled = list(questions)
    random.Random(ORDER_SEED).shuffle(shuffled)
    return shuffled[:limit]


def choose_examples(questions: Sequence[Question], number: int, shots: int) -> list[Question]:
    """Return the examples that stand before a question."""
    others = [i for i in range(len(questions)) if i != number]
    chosen = random.Random(EXAMPLE_SEED + number).sample(others, min(shots, len(others))) if shots else []
    return [questions[i] for i in chosen]


def render_example(task: CoreTask, example: Question) -> str:
    """Return an example with its right answer."""
    if task.kind == "multiple_choice":
        question, answer = example["query"], example["choices"][example["gold"]]
    elif task.kind == "schema":
        question, answer = example["context_options"][example["gold"]], example["continuation"]
    else:
        question, answer = example["context"].strip(), example["continuation"]
    return f"{question}{task.delimiter}{answer}\n\n"


def build_candidates(
    task: CoreTask, question: Question, examples: Sequence[Question], tokenizer: Tokenizer
) -> list[Candidate]:
    """Return a text for each choice, or one for a language modeling task."""
    before = "".join(render_example(task, example) for example in examples)
    if task.kind == "multiple_choice":
        prompts = [f"{before}{question['query']}{task.delimiter}{choice}" for choice in question["choices"]]
        rows = encode(prompts, tokenizer)
        start = count_common(rows)
        return [Candidate(row, start, len(row)) for row in rows]
    if task.kind == "schema":
        options = question["context_options"]
        prompts = [f"{before}{option}{task.delimiter}{question['continuation']}" for option in options]
        rows = encode(prompts, tokenizer)
        common = count_common([row[::-1] for row in rows])
        return [Candidate(row, len(row) - common, len(row)) for row in rows]
    prompt = f"{before}{question['context'].strip()}{task.delimiter}"
    rows = encode([prompt.strip(), f"{prompt}{question['continuation']}"], tokenizer)
    return [Candidate(rows[1], count_common(rows), len(rows[1]))]


def encode(prompts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    return [[tokenizer.end_of_text, *tokenizer.encode(prompt)] for prompt in prompts]


def count_common(rows: Sequence[Sequence[int]]) -> int:
    """Return the length of the longest common prefix."""
    return next((i for i, tokens in enumerate(zip(*rows, strict=False)) if len(set(tokens)) > 1), min(map(len, rows)))
