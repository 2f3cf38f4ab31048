"""The checks of rephrased texts, on real texts, after introductions were removed."""

from __future__ import annotations

import hashlib
import itertools
import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import waits
from tests.support.genesis import passages, texts
from tests.support.paths import DATA, REPOSITORY
from tests.support.rephrasings import GOOD, SOURCE
from trainer import protocol
from trainer.data.corpora import open_corpus
from trainer.rephrase.checks import (
    DEFAULT_THRESHOLDS,
    MAX_LOOPED,
    REASONS,
    AnalyzedText,
    check_envelope,
    check_output,
    clean_output,
    compute_duplicate_key,
    measure_output,
    merge_thresholds,
    talk,
    wording,
)
from trainer.rephrase.checks.talk import is_talk
from trainer.rephrase.checks.text import measure_repetition
from trainer.rephrase.chunks import split_into_chunks
from trainer.rephrase.prompts import STYLES, build_prompt, get_instructions

GERMAN = (
    "Als Naturforscher an Bord der Beagle fielen mir bestimmte Tatsachen über die Verbreitung der Bewohner Südamerikas"
    " und über die geologischen Beziehungen der heutigen zu den früheren Bewohnern dieses Erdteils auf. Diese Tatsachen"
    " schienen mir einiges Licht auf die Entstehung der Arten zu werfen, dieses Geheimnis der Geheimnisse. Nach meiner"
    " Rückkehr im Jahr 1837 sammelte ich geduldig alles, was damit zu tun haben konnte, und schrieb 1844 eine Skizze."
)


def reasons(style: str, output: str, **more: object) -> tuple[str, ...]:
    return check_output(SOURCE, style, output, **more).reasons  # type: ignore[arg-type]


@pytest.mark.parametrize("style", STYLES)
def test_good_rephrasing_is_accepted_in_each_style(style: str) -> None:
    found = check_output(SOURCE, style, GOOD[style], language="en")
    assert found.reasons == ()
    assert found.accepted
    assert found.text == GOOD[style]


@pytest.mark.parametrize(
    ("source", "style", "output"), [("king_james", "medium", "world"), ("basic", "hard", "king_james")]
)
def test_human_paraphrases_are_rejected_below_two_percent(source: str, style: str, output: str) -> None:
    """Measured: 0.2 to 0.5 %. MRPC, which the start values come from, is not among our data."""
    found = [check_output(one[source], style, one[output], language="en") for one in passages()]
    assert sum(not one.accepted for one in found) < 0.02 * len(found)


@pytest.mark.parametrize("style", ["easy", "medium", "hard"])
def test_rephrasings_of_other_passages_are_mostly_rejected(style: str) -> None:
    """A volunteer that submits another volunteer's results; results of another book would be easier to detect."""
    order = list(passages())
    random.Random(1).shuffle(order)
    mismatched = list(itertools.pairwise(order))
    accepted = [
        check_output(one["king_james"], style, other["basic"], language="en").accepted for one, other in mismatched
    ]
    assert sum(accepted) < {"medium": 0.04, "easy": 0.3, "hard": 0.3}[style] * len(mismatched)


@pytest.mark.parametrize("output", ["", "  \n ", "...", "\u200b", "***"])
def test_output_without_text_is_empty(output: str) -> None:
    assert reasons("medium", output) == ("empty",)


@pytest.mark.parametrize(
    ("output", "is_refusal"),
    [
        ("I’m sorry, but I cannot rephrase this text as it contains copyrighted material.", True),
        ("As an AI language model, I do not have personal experiences on board of ships.", True),
        ("Please provide the text that you would like me to paraphrase.", True),
        ("I'm sorry for your loss, said the captain.", False),
    ],
)
def test_refusal_is_rejected(output: str, is_refusal: bool) -> None:
    if is_refusal:
        assert reasons("medium", output) == ("refusal",)
    else:
        assert "refusal" not in check_output(output, "medium", output).reasons


@pytest.mark.parametrize("style", STYLES)
def test_repeated_prompt_is_echo(style: str) -> None:
    assert reasons(style, build_prompt(style, SOURCE)) == ("echo",)
    assert reasons(style, f"{get_instructions(style)[1]} {GOOD[style]}") == ("echo",)


@pytest.mark.parametrize(
    ("style", "text", "is_sound"),
    [
        *((style, GOOD[style], True) for style in STYLES),
        ("math", GOOD["math"].replace("Solution:", "Then:"), False),
        ("table", GOOD["table"].replace("|---|---|\n", ""), False),
        ("table", GOOD["table"].replace("| 1844 |", "| 1844 | or so |"), False),
        ("table", "| a | b |\n|---|---|\n| x \\| y | 1 |\n| z | 2 |", True),
        ("tutorial", GOOD["tutorial"].replace("\n3.", "\n4."), False),
        ("tutorial", "1. Heat the oven to\n350.\n\n2. At\n12:30 take it out after\n3.5 minutes.", True),
        ("tutorial", "Step 1: Read.\n**Step 2**: Write.", True),
        ("qa", GOOD["qa"].replace("Question:", "**Question 1:**").replace("Answer:", "**Answer:**"), True),
        *((style, GOOD["medium"], False) for style in ("qa", "faq", "math", "table", "tutorial")),
    ],
)
def test_output_must_have_the_form_of_its_style(style: str, text: str, is_sound: bool) -> None:
    assert (wording.find_form_violation(style, text) == "") == is_sound


def test_repeated_source_is_copied() -> None:
    for style in ("easy", "medium", "hard"):
        assert "copied" in reasons(style, SOURCE)
        assert "copied" in reasons(style, SOURCE.replace("struck", "amazed").upper())
    assert "copied" in check_output("The cat sat on the mat today.", "medium", "The cat sat on the mat, today!").reasons


def test_text_without_sentence_end_is_cut_off_unless_its_source_has_none() -> None:
    assert reasons("medium", GOOD["medium"][:-30]) == ("cut_off",)
    assert reasons("medium", GOOD["medium"], ended="length") == ("cut_off",)
    assert reasons("medium", GOOD["medium"] + '"') == ()
    assert "cut_off" not in check_output("A heading about the ship", "medium", "A title on the vessel").reasons


def test_length_limits_depend_on_style() -> None:
    first = GOOD["medium"].split(". ")[0] + "."
    assert "too_short" in reasons("medium", first)
    assert "too_wordy" in reasons("hard", f"{GOOD['hard']} {GOOD['medium']} {GOOD['easy']}")
    assert "too_wordy" not in reasons("easy", f"{GOOD['easy']} {GOOD['hard']}")


@pytest.mark.parametrize(
    "output",
    [
        GOOD["medium"],
        GOOD["qa"].split("\n\n")[0],
        GOOD["qa"].replace("Question: On", "Answer: On"),
        f"Here we go.\n{GOOD['qa']}",
        "Question: Who?\nAnswer:\nQuestion: What?\nAnswer: He was on a ship.",
    ],
)
def test_qa_needs_two_alternating_pairs(output: str) -> None:
    assert "not_pairs" in reasons("qa", output)


def test_other_language_or_subject_is_rejected() -> None:
    assert "language" in reasons("medium", GERMAN, language="en")
    assert "language" in reasons("medium", GERMAN)
    assert "language" not in check_output(GERMAN, "medium", GERMAN).reasons
    assert "language" not in check_output("Yes, Marta.", "medium", "Oui, Marta.", language="en").reasons, "too short"
    assert "meaning" in reasons("medium", texts(3)[2])


def test_repetitive_text_is_rejected() -> None:
    assert "repetitive" in reasons("easy", "The ship went to South America. " * 18)
    words = SOURCE.split()
    half = len(words) // 2
    looped = " ".join([*words[:half], *words[half - 12 : half] * (half // 12), "and so on."])
    assert measure_repetition(looped) > DEFAULT_THRESHOLDS["easy"].repetition
    assert "repetitive" in reasons("easy", looped)
    assert "repetitive" not in reasons("easy", SOURCE)


def test_text_may_repeat_what_its_source_repeats() -> None:
    refrain = "row row row your boat gently down the stream merrily merrily we go "
    assert AnalyzedText(refrain * 4).loop_share > MAX_LOOPED
    assert measure_output(refrain * 4, refrain * 4)["looped"] == 0


def test_duplicate_ignores_spaces_and_case() -> None:
    known = {compute_duplicate_key(GOOD["medium"])}
    assert reasons("medium", GOOD["medium"].upper().replace(" ", "  "), accepted_keys=known) == ("duplicate",)
    assert reasons("easy", GOOD["easy"], accepted_keys=known) == ()


def test_thresholds_change_for_one_style_only() -> None:
    strict = merge_thresholds({"medium": {"meaning": 0.99}})
    assert reasons("medium", GOOD["medium"], thresholds=strict) == ("meaning",)
    assert reasons("easy", GOOD["easy"], thresholds=strict) == ()
    assert merge_thresholds(None) == dict(DEFAULT_THRESHOLDS)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"poem": {}}, "no style 'poem'"),
        ({"easy": {"length": 1}}, "no threshold 'length'"),
        ({"easy": {"meaning": 7}}, "between 0 and 1"),
        ({"easy": {"shortest": 9}}, "below longest"),
    ],
)
def test_invalid_thresholds_raise_error(changes: dict[str, dict[str, float]], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        merge_thresholds(changes)


@given(source=st.text(max_size=300), output=st.text(max_size=300), style=st.sampled_from(STYLES))
def test_arbitrary_text_gets_known_reasons(source: str, output: str, style: str) -> None:
    found = check_output(source, style, output)
    assert found.accepted == (not found.reasons)
    assert set(found.reasons) <= set(REASONS)
    again = check_output(source, style, found.text)
    assert (again.text, again.accepted) == (found.text, found.accepted)


ORDER = protocol.RephraseOrder(campaign="c", model="m", revision="r", styles=("easy", "qa"), prompt_version=1)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


CHUNKS = (protocol.Chunk(index=3, text=SOURCE, sha256=sha256(SOURCE), styles=("easy", "qa")),)


def output(style: protocol.Style, **changes: Any) -> protocol.RephraseOutput:
    text = changes.pop("text", GOOD[style])
    fields = {"chunk": 3, "style": style, "source_sha256": sha256(SOURCE), "text": text, "sha256": sha256(text)}
    return protocol.RephraseOutput(**{**fields, **changes})


def result(*outputs: protocol.RephraseOutput, **changes: Any) -> protocol.RephrasedPacket:
    fields = {"packet": 1, "prompt_version": 1, "model": "m", "revision": "r", "sampling": ORDER.sampling}
    return protocol.RephrasedPacket(**{**fields, "outputs": outputs or (output("easy"), output("qa")), **changes})


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (result(prompt_version=2), "wrong_prompt_version"),
        (result(model="n"), "wrong_model"),
        (result(revision=""), "wrong_model"),
        (result(sampling=protocol.Sampling(temperature=0)), "wrong_sampling"),
        (result(output("easy")), "missing"),
        (result(output("easy"), output("qa"), output("hard")), "unasked"),
        (result(output("easy"), output("qa"), output("qa")), "unasked"),
        (result(output("easy", chunk=4), output("qa")), "unasked"),
        (result(output("easy", source_sha256="0" * 64), output("qa")), "wrong_source"),
        (result(output("easy", sha256="0" * 64), output("qa")), "wrong_hash"),
        (result(output("easy", text="A\x00b."), output("qa")), "not_text"),
        (result(output("easy", text="word " * 19_000), output("qa")), "too_big"),
    ],
)
def test_mismatched_result_has_reason(wrong: protocol.RephrasedPacket, reason: str) -> None:
    assert check_envelope(result(), CHUNKS, ORDER) == ()
    nothing = output("easy", text="", ended="none", trouble="prompt_too_long")
    assert check_envelope(result(nothing, output("qa")), CHUNKS, ORDER) == ()
    assert reason in check_envelope(wrong, CHUNKS, ORDER)
    assert reason in REASONS


# --- removing introductions -------------------------------------------------------------------------------------------

TEXT = GOOD["medium"]


@pytest.mark.parametrize(
    "introduction",
    [
        "Here's a paraphrase of the text:\n\n",
        "Sure!\n\nHere is the rewritten text:\n\n---\n\n",
        "<think>\nThe user wants a paraphrase.\n\nDone.\n</think>\n\n",
        "The user wants a paraphrase. I write it.\n</think>\n\nSure! Here's the rephrased text:\n\n",
        "[thinking]Hm.[/thinking]",
        "◁think▷Let me see.◁/think▷",
        "<|channel|>analysis<|message|>We rewrite.<|end|><|start|>assistant<|channel|>final<|message|>",
        "<|im_start|>assistant\n",
        "<|channel|>analysis<|message|>We.<|end|><|start|>assistant<|channel|>final <|constrain|>text<|message|>",
        "< thinking >Hm.</ thinking >",
        "&lt;think&gt;Hm.&lt;/think&gt;",
        "<|begin_of_thought|>Hm.<|end_of_thought|>",
        "<|channel>thought\nHm.<channel|>",
        "Here is my thought process:\nHm.\n\nHere is my response:\n",
        "**Thinking:** Hm.\n\n**Answer:** ",
        "Sure, I can do that! Here you go:\n\n",
        "Here is the text in simpler words.\n",
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
        "<|im_end|>\n<|im_start|>user\nAnd now another text",
        " [/INST] Sure, here is more",
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


@pytest.mark.parametrize(
    "text",
    [
        f'"{TEXT}"',
        f"«{TEXT}»",
        f"> {TEXT}",
        f"\\boxed{{{TEXT}}}",
        f"$\\boxed{{\\text{{{TEXT}}}}}$",
        f"<answer>{TEXT}</answer>",
        f"```text\n{TEXT}\n```",
        f"“{TEXT}”",
        f"'{TEXT}'",
        f"「{TEXT}」",
        f'{{"text": "{TEXT}"}}',
        f"\n\n{TEXT}  \n",
    ],
)
def test_surrounding_quotes_and_space_are_removed(text: str) -> None:
    assert clean_output(text, SOURCE) == TEXT


@pytest.mark.parametrize(
    "opening",
    [
        "The user wants an encyclopedic text. I need to keep every fact.\n\n",
        "Okay, so I need to rewrite this passage.\n\n",
        "We need to produce a paraphrase in clear English. ",
        "**Thinking Process:**\n\n1. Read it.\n\n",
        "To rewrite the text, I changed the words.\n",
        "The passage describes this: ",
        "Final answer: ",
        "**Rewritten version (encyclopedic):** ",
        "Here's an encyclopedic take on it:\n",
        "Voici une version simplifiée du texte :\n\n",
        "Natürlich! Hier ist die Fassung:\n",
        "Den omskrevne teksten på vanlig norsk språk følger nedenfor:\n\n",
        "以下是改写后的文本：\n\n",
        '"""',
        "Sure, the ship. ",
        "Absolutely! ",
        "Here you go! ",
        "In simpler words: ",
        "Try this:\n",
        "They want me to rewrite it. ",
        "Claro. ",
        "Natürlich! ",
        "<answer>",
        "### Response\n",
        "Human: Hm.\nAI: ",
        f"{TEXT}\n\nFinal version:\n",
        f"{TEXT}\n\nWait, I should check the facts.\n",
    ],
)
def test_talk_that_may_belong_to_the_text_is_refused_and_not_cut(opening: str) -> None:
    found = check_output(SOURCE, "medium", opening + TEXT)
    assert found.reasons == ("talk",)
    assert "talk" not in check_output(opening + SOURCE, "medium", opening + TEXT).reasons


@pytest.mark.parametrize(
    "closing",
    [
        "This keeps the meaning of the original text.",
        "(I replaced the rare words.)",
        "Let me know if you'd like any changes!",
        "I hope you like it!",
        "Ich hoffe, das hilft!",
    ],
)
def test_closing_in_the_last_line_is_refused_and_in_its_own_line_removed(closing: str) -> None:
    assert check_output(SOURCE, "medium", f"{TEXT} {closing}").reasons == ("talk",)
    assert clean_output(f"{TEXT}\n\n{closing}", SOURCE) == TEXT


def test_honest_texts_are_rarely_taken_for_talk() -> None:
    if not (DATA / "text").is_dir():
        pytest.skip("there is no real text (DAILYTRAIN_DATA)")
    books = open_corpus(
        f"files:{DATA}/text/gutenberg/validation.jsonl.xz,{DATA}/text/tinyshakespeare,{DATA}/text/wikitext-2"
    )
    chunks = [chunk for book in books for chunk in split_into_chunks(book.text)][::9]
    refused = [chunk for chunk in chunks if is_talk(clean_output(chunk), "")]
    assert len(chunks) > 500
    assert len(refused) <= 0.002 * len(chunks)
    assert not any(is_talk(clean_output(chunk), chunk) for chunk in refused)


@pytest.mark.parametrize(
    ("style", "output"),
    [
        ("math", "Problem: What is 3 times 5?\n\nSolution: Three fives are 15.\nThe answer is $\\boxed{15}$."),
        ("tutorial", "1. Fill the tank.\n2. Wait.\n\nCheck the level: it is high."),
        ("medium", "The task was hard, and the crew was tired."),
        ("medium", "First, the user needs a key to open the box."),
        ("medium", "The instruction is fetched from memory by the processor."),
        ("medium", "Let us read a page of the old book."),
        ("medium", "Let me count the ways in which I love thee."),
        ("medium", "```sh\nmake\n```\n\nThis builds the program."),
        ("medium", "> All men are equal.\n\nSo begins the letter."),
        ("medium", "Here is an example:\n\n    x = 1\n\nIt sets a name."),
        ("medium", "We create a table with three columns."),
        ("medium", "The following settings apply to all runs:\n\n- depth\n- width"),
        ("medium", "Converting strings to numbers: use int."),
    ],
)
def test_honest_output_is_no_talk(style: str, output: str) -> None:
    assert not is_talk(clean_output(output), "", style)


def test_patterns_of_talk_see_a_bounded_part(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Recorder:
        def match(self, text: str) -> None:
            seen.append(len(text))

        fullmatch = match

    monkeypatch.setattr(talk, "TALKS", (Recorder(),))
    monkeypatch.setattr(talk, "LINE", Recorder())
    monkeypatch.setattr(talk, "CLOSING", Recorder())
    assert not is_talk("a-" * 100_000, "")
    assert len(seen) == 6
    assert max(seen) <= talk.MAX_END_CHARS


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        GOOD["qa"],
        "Here the ship lay: in the bay of the island, without wind.",
        "“Come here,” he said. “I will,” she answered.",
        "This is a new version of Python:\n\nIt has a coloured shell.",
        "Below is a translation tool the team released:\n\nIt knows ten languages.",
        "This is the story of a ship.\n\nIt begins in Plymouth.",
        "She closed the book.\n\nI hope this letter finds you well.",
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


def test_long_outputs_are_checked_in_linear_time() -> None:
    """Quadratic time would reach the limit: hours instead of seconds."""
    program = (
        "from trainer.rephrase.checks import check_output, clean_output, wording\n"
        "for end in ('', ':', '\\n\\nA ship.'):\n"
        "    text = 'Here is ' + 'version ' * 200_000 + 'x' + end\n"
        "    assert clean_output(text) == text\n"
        "for part in ('<think>', 'I will ', '\\n\\n', 'analysis', 'thinking:\\n', '<|', 'Note: ', 'changes:\\n',"
        " '\\n***', 'a-', '- ', 'I ', '{\"', '| ', *'-_*#> \\n\\ta1.:|\"\\'<>[](){}`\\\\$~“«「é中'):\n"
        "    text = part * 100_000 + 'x A ship.'\n"
        "    check_output('A ship.', 'medium', text)\n"
        "    for style in wording.FORMS:\n"
        "        wording.find_form_violation(style, text)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, timeout=waits.WAIT_SECONDS, check=True)
