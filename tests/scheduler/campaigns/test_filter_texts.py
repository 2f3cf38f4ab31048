"""The texts that `benchmarks.rephrase.filters` compares filters on."""

from __future__ import annotations

import random

from benchmarks.rephrase.filter_texts import build_loop, build_outputs, cut_paragraphs, shuffle

PASSAGE = " ".join(f"word{number}" for number in range(100))


def test_loop_replaces_the_last_share_by_the_words_before_it() -> None:
    words = build_loop(PASSAGE, 5, 0.5).split()
    assert words[:50] == PASSAGE.split()[:50]
    assert words[50:] == PASSAGE.split()[45:50] * 10


def test_outputs_have_prose_and_all_loops_of_equal_number() -> None:
    outputs = build_outputs([PASSAGE, f"{PASSAGE} end"])
    assert list(outputs)[:2] == ["prose", "25% loop of 1 word"]
    assert {len(texts) for texts in outputs.values()} == {2}
    assert len(outputs) == 10


def test_passages_are_whole_paragraphs_of_the_minimum_length() -> None:
    text = "\n\n".join("a" * 900 for _ in range(7))
    assert [len(passage) for passage in cut_paragraphs(text)] == [2704, 2704]


def test_shuffle_keeps_all_parts() -> None:
    assert sorted(shuffle(PASSAGE.split(), random.Random(1), " ").split()) == sorted(PASSAGE.split())
