"""Is this a rephrasing of that text, in this style? Pure: the volunteer asks before it hands in, the site asks again.

In this order, the cheap before the dear:

    envelope     it is what was asked for (`envelope`)
    wording      not empty, not a refusal, no echo of the prompt, not cut off
    shape        as long as its style allows; questions and answers alternate
    language     the source's
    meaning      it speaks of the same things
    copying      it is not the source
    repetition   it does not go round in circles
    duplicates   nobody has handed in the same

An output is cleaned of introductions first (`clean`). Not covered: whether what it says is true to its source. A
skilled liar passes; that is what packets with known answers and a second volunteer are for.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from trainer.rephrase.checks import likeness, wording
from trainer.rephrase.checks.cleaning import clean_output
from trainer.rephrase.checks.envelope import check_envelope
from trainer.rephrase.checks.text import AnalyzedText, analyze_source
from trainer.rephrase.checks.thresholds import DEFAULT_THRESHOLDS, Thresholds, merge_thresholds
from trainer.rephrase.languages import UNKNOWN

__all__ = [
    "DEFAULT_THRESHOLDS",
    "REASONS",
    "AnalyzedText",
    "CheckResult",
    "Thresholds",
    "check_envelope",
    "check_output",
    "clean_output",
    "compute_duplicate_key",
    "merge_thresholds",
]

REASONS: dict[str, str] = {
    # Of the envelope.
    "not_held": "It is not one of the packets that this volunteer has.",
    "wrong_prompt_version": "It was written for another version of the prompts.",
    "wrong_model": "It was written by another model, or another revision of it.",
    "wrong_sampling": "The model was asked with other parameters.",
    "missing": "An output that was asked for is missing.",
    "unasked": "An output is there that nobody asked for, or twice.",
    "wrong_source": "Its source is not the one that was given out: the hashes differ.",
    "wrong_hash": "The output is not the one that its hash was made of.",
    "not_text": "It holds characters that no text holds.",
    "too_big": "It is larger than any rephrasing could be.",
    "prompt_too_long": "Prompt and answer do not fit into the model.",
    "declined": "The back end would not answer.",
    # Of the text.
    "empty": "Nothing was written.",
    "refusal": "The model refused.",
    "echo": "It repeats the prompt.",
    "cut_off": "It ends in the middle of a sentence.",
    "too_short": "It is too short for its source.",
    "too_wordy": "It is too long for its source.",
    "not_pairs": "It is not two or more questions, each with its answer.",
    "language": "It is in another language than its source.",
    "meaning": "It speaks of something else.",
    "copied": "It is the source, all but unchanged.",
    "repetitive": "It says the same again and again.",
    "duplicate": "The same has been handed in before.",
}
"""Every reason there is, with a sentence for people."""

MIN_NGRAMS = 40
"""Word 4-grams; a chunk has some two hundred."""
MIN_COPY_RATIO = 0.95


@dataclass(frozen=True)
class CheckResult:
    accepted: bool
    reasons: tuple[str, ...] = ()
    """Keys of `REASONS`, in the order of the checks."""
    text: str = ""
    """The output, cleaned."""
    measures: Mapping[str, float] = field(default_factory=dict)
    """What was measured, by name. Empty where a look at the wording was enough."""
    key: str = ""
    """Of a text that was measured: its `duplicate_key`."""


def check_output(
    source: str,
    style: str,
    output: str,
    *,
    ended: str = "stop",
    language: str = "",
    thresholds: Mapping[str, Thresholds] = DEFAULT_THRESHOLDS,
    known: Container[str] = (),
) -> CheckResult:
    """Look at one output, as it came or cleaned already. Raise ValueError for a style that there is not.

    `ended`: "length" where the model was cut off; `language`: of the campaign, or "" for that of the source; `known`:
    keys (`duplicate_key`) of what was taken before.
    """
    if style not in thresholds:
        raise ValueError(f"There is no style {style!r}; there are {', '.join(thresholds)}.")
    given, text = analyze_source(source), AnalyzedText(clean_output(output, source))
    if reason := wording.find_wording_problem(given, style, text, ended):
        return CheckResult(False, (reason,), text.raw)
    bounds = thresholds[style]
    measures = _measure(given, text)
    reasons = [reason for reason, failed in find_violations(measures, bounds).items() if failed]
    if style == "qa" and not wording.has_question_answer_pairs(text.raw):
        reasons.insert(0, "not_pairs")
    if is_other_language(given, text, language):
        reasons.append("language")
    if text.key in known:
        reasons.append("duplicate")
    order = list(REASONS)
    return CheckResult(not reasons, tuple(sorted(reasons, key=order.index)), text.raw, measures, text.key)


def measure_output(source: str, text: str) -> dict[str, float]:
    return _measure(analyze_source(source), AnalyzedText(text))


def _measure(source: AnalyzedText, text: AnalyzedText) -> dict[str, float]:
    return {
        "ratio": text.tokens / max(1, source.tokens),
        "meaning": likeness.measure_meaning(source, text),
        "subject": likeness.measure_subject(source, text),
        "copied": likeness.measure_copied(source, text),
        "runs": likeness.count_ngrams(text),
        "repetition": likeness.measure_repetition(text.raw),
    }


def find_violations(measures: Mapping[str, float], bounds: Thresholds) -> dict[str, bool]:
    """Return which reasons hold against a text with these measures."""
    return {
        "too_short": measures["ratio"] < bounds.shortest,
        "too_wordy": measures["ratio"] > bounds.longest,
        "meaning": measures["meaning"] < bounds.meaning or measures["subject"] < bounds.subject,
        "copied": is_copied(measures, bounds),
        "repetitive": measures["repetition"] <= bounds.repetition,
    }


def is_copied(measures: Mapping[str, float], bounds: Thresholds) -> bool:
    """Of a sentence or two, one new word is a tenth, and people leave away an end: there only all of it is a copy."""
    if measures["runs"] < MIN_NGRAMS:
        return measures["copied"] == 1 and measures["ratio"] >= MIN_COPY_RATIO
    return measures["copied"] >= bounds.copied


def is_other_language(source: AnalyzedText, text: AnalyzedText, language: str) -> bool:
    """Is the output surely in a language that is neither the campaign's nor what its source is taken for?

    What seems right at a glance is; all of a text is read only before it is refused.
    """
    if text.seems and text.seems == (language or source.seems):
        return False
    return text.language not in (UNKNOWN, language, source.language)


def compute_duplicate_key(text: str) -> str:
    """Return what is the same for texts that differ in case, spaces and punctuation only: 64 bits, as hex."""
    return AnalyzedText(text).key
