"""Removing introductions from outputs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import waits
from tests.support.genesis import passages
from tests.support.paths import REPOSITORY
from tests.support.rephrasings import GOOD, SOURCE
from trainer.rephrase.checks import check_output, clean_output
from trainer.rephrase.checks.cleaning import MAX_INTRODUCTION_CHARS

pytestmark = pytest.mark.processes

TEXT = GOOD["medium"]


@pytest.mark.parametrize(
    "introduction",
    [
        "Here's a paraphrase of the text:\n\n",
        "Sure! Here's the rephrased text:\n\n",
        "Sure, here is a version that a toddler would understand:\n\n",
        "Paraphrased text: ",
        "**Rewritten passage:**\n\n",
        "The following is a rephrased version of the passage.\n\n",
        "Of course!\n\n",
        "Here is the text converted into a question and answer format:\n\n",
        "Here’s a simplified version of the text\n\n",
        "Sure! Let me simplify this for you:\n\n",
        "### Paraphrased Text\n\n",
        "Sure!\n\nHere is the rewritten text:\n\n---\n\n",
        "<think>\nThe user wants a paraphrase.\n\nDone.\n</think>\n\n",
        "The user wants a paraphrase. I write it.\n</think>\n\nSure! Here's the rephrased text:\n\n",
        "[THINK]Let me see.[/THINK]",
        "◁think▷Let me see.◁/think▷",
        "<|channel|>analysis<|message|>We rewrite.<|end|><|start|>assistant<|channel|>final<|message|>",
        "analysisWe need to rewrite it.assistantfinal",
        "<|im_start|>assistant\n",
        "<｜Assistant｜>",
    ],
)
def test_introduction_is_removed(introduction: str) -> None:
    assert clean_output(introduction + TEXT, SOURCE) == TEXT


@pytest.mark.parametrize(
    "closing",
    [
        "\n\nI hope this helps!",
        "\n\n---\n\nLet me know if you would like a shorter version.",
        "\n\n(Note: I have kept the original meaning and simplified the sentences.)",
        "\n\n*This version keeps all facts of the text.*\n\nWould you like me to change the tone?",
        "\n\n**Key changes:**\n\n* Replaced rare words.\n* Split the first sentence.",
        "\n\n(78 words)",
        "<|im_end|>\n<|im_start|>user\nAnd now another text",
        "</s>",
        "<end_of_turn>",
        " [/INST] Sure, here is more",
        "<|end|>",
    ],
)
def test_closing_is_removed(closing: str) -> None:
    assert clean_output(TEXT + closing, SOURCE) == TEXT


@pytest.mark.parametrize(
    "output", ["<think>\nI should keep the facts and", "<think></think>", "<|channel|>analysis<|message|>We"]
)
def test_reasoning_without_answer_leaves_nothing(output: str) -> None:
    assert clean_output(output, SOURCE) == ""
    assert check_output(SOURCE, "medium", output).reasons == ("empty",)


@pytest.mark.parametrize("text", [f'"{TEXT}"', f"```text\n{TEXT}\n```", f"“{TEXT}”", f"\n\n{TEXT}  \n"])
def test_surrounding_quotes_and_space_are_removed(text: str) -> None:
    assert clean_output(text, SOURCE) == TEXT


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        GOOD["qa"],
        "Here the ship lay: in the bay of the island, without wind.",
        "Sure of his way, he went on: nobody followed him.",
        "“Come here,” he said. “I will,” she answered.",
        "Recipe: take two eggs and some flour.",
        "This is the story of a ship.\n\nIt begins in Plymouth.",
        "I will never forget the conversation that we had.\n\nIt was late.",
        "She closed the book.\n\nI hope this letter finds you well.",
        "He wrote a note.\n\nNote that the ship was old.",
        "They sailed on.\n\nThe end.",
    ],
)
def test_text_without_introduction_is_unchanged(text: str) -> None:
    assert clean_output(text, SOURCE) == text


def test_introduction_or_mark_that_the_source_has_stays() -> None:
    source = "Here is the new version of the text: it was printed twice."
    output = "Here is the rewritten version of the text: it went to press two times."
    assert clean_output(output, source) == output
    marked = "The model writes <think> before it reasons and <|im_end|> at its end."
    assert clean_output(marked, marked) == marked
    for passage in passages():
        assert clean_output(passage["world"], passage["basic"]).strip('"') == passage["world"].strip('"')


def test_long_line_with_words_of_introductions_is_cleaned_in_linear_time() -> None:
    """Quadratic time would reach the limit: hours instead of milliseconds."""
    program = (
        "from trainer.rephrase.checks import clean_output\n"
        "for end in ('', ':', '\\n\\nA ship.'):\n"
        "    text = 'Here is ' + 'version ' * 500_000 + 'x' + end\n"
        "    assert clean_output(text) == text\n"
        "for part in ('<think>', 'I will ', '\\n\\n', 'analysis', '<|', 'Note: ', 'changes:\\n', '\\n***'):\n"
        "    clean_output(part * 500_000 + 'x')\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, timeout=waits.WAIT_SECONDS, check=True)


@pytest.mark.parametrize("space", [" ", "\n"])
def test_introduction_over_the_limit_stays(space: str) -> None:
    end = "version of the text:"
    for extra, expected in ((0, "A ship."), (1, None)):
        filling = "x" * (MAX_INTRODUCTION_CHARS + extra - len(f"Here is  {end}{space}"))
        output = f"Here is {filling} {end}{space}A ship."
        assert clean_output(output, SOURCE) == (expected or output)
