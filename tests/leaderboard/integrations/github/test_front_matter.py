"""The block at the top of a pull request's description, as people and GitHub's editor leave it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaderboard.integrations.github import front_matter
from leaderboard.integrations.github.front_matter import FrontMatter
from tests.support.paths import REPOSITORY

TRACKS = {"small": "Small", "day": "A day on one H100"}
WORDS = {"track": "small", "hypothesis": "It helps.", "expected_effect": "3 %", "contact": "@ada"}
BLOCK = "---\n" + "\n".join(f"{name}: {value}" for name, value in WORDS.items()) + "\n---\n\nWhat changes.\n"
TEMPLATE = REPOSITORY / ".github" / "pull_request_template.md"


def read(body: str) -> FrontMatter:
    asked = front_matter.parse_front_matter(body, TRACKS)
    assert asked is not None
    return asked


def test_a_block_is_read() -> None:
    assert read(BLOCK) == FrontMatter(**WORDS)


@pytest.mark.parametrize(
    "body",
    [
        BLOCK.replace("\n", "\r\n"),
        "\ufeff\r\n\r\n" + BLOCK,
        "<!-- read me\n---\ntrack: day\n---\n-->\n" + BLOCK,
        BLOCK.replace("It helps.", "It helps. <!-- why? -->"),
        BLOCK.replace("track: small", "track:\u00a0 Small   # the small one"),
        BLOCK.replace("track: small", "**Track**: `small`"),
        BLOCK.replace("expected_effect", "Expected effect"),
        BLOCK.replace("track:", "- track:").replace("contact:", "- contact:"),
        BLOCK.replace("It helps.", '"It helps."').replace("@ada", "'@ada'"),
        BLOCK.replace("It helps.", "“It helps.”"),
        BLOCK.replace("It helps.", ">-\n  It\n  helps."),
        BLOCK.replace("It helps.", "It\nhelps."),
        BLOCK.replace("---\ntrack", "```yaml\ntrack").replace("@ada\n---", "@ada\n```"),
        BLOCK.replace("---\n\nWhat changes.\n", "\n\nWhat changes."),
        "Some words first.\n\n" + BLOCK,
        BLOCK.replace("---\ntrack", "---\n\n# a note\ntrack").replace("@ada\n", "@ada\n\n"),
    ],
)
def test_it_is_taken_as_it_is_meant(body: str) -> None:
    assert read(body) == FrontMatter(**WORDS)


def test_a_sentence_needs_no_quoting() -> None:
    said = 'So: it\'s 2 x "as good" - #1, see https://example.org/a: b'
    assert read(BLOCK.replace("It helps.", said)).hypothesis == said


def test_everything_that_is_missing_is_said_at_once() -> None:
    asked = read("---\ntrack: smal\nhypotesis: It helps.\ncontact:\n---")
    assert asked.problems == (
        "There is no field `hypotesis`: is `hypothesis` meant?",
        "There is no track “smal”: it is one of `small`, `day`.",
        "`hypothesis` is missing: say in a sentence what you expect to see, and why.",
        "`expected_effect` is missing: say how much, for instance “3 % less compute”, “no change” or “not known”.",
        "`contact` is missing: say how to reach you, for instance “@ada”.",
    )


def test_a_field_that_comes_twice_is_said() -> None:
    assert read(BLOCK.replace("contact:", "track: day\ncontact:")).problems == ("`track` comes twice: leave one.",)


def test_none_asks_for_no_run_and_for_nothing_else() -> None:
    assert read("---\ntrack: None\nhypothesis:\n---").wants_no_run


def test_a_template_left_as_it_was_asks_for_nothing() -> None:
    assert front_matter.parse_front_matter(TEMPLATE.read_text(), TRACKS) is None
    assert front_matter.parse_front_matter(TEMPLATE.read_text().replace("\n", "\r\n"), TRACKS) is None


def test_a_template_filled_in_is_read() -> None:
    body = TEMPLATE.read_text()
    for name, value in WORDS.items():
        body = body.replace(f"\n{name}:\n", f"\n{name}: {value}\n")
    assert read(body) == FrontMatter(**WORDS)


@pytest.mark.parametrize("body", [None, "", "A change of the docs.", "---\nJust a rule.\n---", "```\nx: 1\n```"])
def test_a_description_without_a_block_asks_for_nothing(body: str | None) -> None:
    assert front_matter.parse_front_matter(body, TRACKS) is None


@pytest.mark.parametrize(
    "config",
    [
        'config: {"model": {"depth": 4}, "recipe": {"clip": 0.5}}',
        "config:\n  model:\n    depth: 4\n  recipe:\n    clip: 0.5",
        "config:\n  model.depth: 4\n  recipe.clip: 0.5  # less",
        "config: model.depth = 4\n  recipe.clip = 0.5",
    ],
)
def test_a_configuration_is_written_as_one_likes(config: str) -> None:
    assert read(BLOCK.replace("contact:", f"{config}\ncontact:")).config == {
        "model": {"depth": 4},
        "recipe": {"clip": 0.5},
    }


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("config: {broken", "it begins like JSON and is none"),
        ("config: deep", "“deep” is not “name: value”"),
        ("config:\n  depth: 4", "depth belongs to no section; write model.depth, recipe.depth or train.depth"),
        ("config:\n  model.depth: 4\n  model.depth: 5", "model.depth is set twice"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_said(config: str, problem: str) -> None:
    assert read(BLOCK.replace("contact:", f"{config}\ncontact:")).problems == (f"`config` cannot be read: {problem}.",)


@given(st.text(max_size=400))
def test_any_text_is_read_without_an_accident(text: str) -> None:
    front_matter.parse_front_matter(text, TRACKS)
    front_matter.parse_front_matter(f"---\ntrack: {text}\nconfig: {text}\n---\n{text}", TRACKS)


LINES = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="<>\"'“”‘’"), min_size=1, max_size=20)


@given(st.lists(LINES, min_size=1, max_size=6), st.sampled_from(["\n", "\r\n"]), st.sampled_from(['"{}"', "{}"]))
def test_a_sentence_comes_out_as_it_went_in(words: list[str], end: str, quoted: str) -> None:
    said = "x " + " ".join(words)
    body = BLOCK.replace("It helps.", quoted.format(said)).replace("\n", end)
    assert read(body) == FrontMatter(**{**WORDS, "hypothesis": said})
