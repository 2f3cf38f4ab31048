"""Parsing of the front matter in a pull request's description."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaderboard.integrations.github import front_matter
from leaderboard.integrations.github.front_matter import FrontMatter
from tests.support.paths import REPOSITORY

TRACKS = {"small": "Small", "day": "A day on one H100"}
FIELDS = {"track": "small", "hypothesis": "It helps.", "expected_effect": "3 %", "contact": "@ada"}
BLOCK = "---\n" + "\n".join(f"{name}: {value}" for name, value in FIELDS.items()) + "\n---\n\nWhat changes.\n"
TEMPLATE = REPOSITORY / ".github" / "pull_request_template.md"


def parse_body(body: str) -> FrontMatter:
    parsed = front_matter.parse_front_matter(body, TRACKS)
    assert parsed is not None
    return parsed


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
def test_front_matter_in_other_notation_gives_same_fields(body: str) -> None:
    assert parse_body(body) == FrontMatter(**FIELDS)


def test_front_matter_with_several_faults_lists_all() -> None:
    parsed = parse_body("---\ntrack: smal\nhypotesis: It helps.\ncontact:\n---")
    assert parsed.problems == (
        "There is no field `hypotesis`: is `hypothesis` meant?",
        "There is no track “smal”: it is one of `small`, `day`.",
        "`hypothesis` is missing: say in a sentence what you expect to see, and why.",
        "`expected_effect` is missing: say how much, for instance “3 % less compute”, “no change” or “not known”.",
        "`contact` is missing: say how to reach you, for instance “@ada”.",
    )


def test_front_matter_of_unchanged_template_is_none() -> None:
    assert front_matter.parse_front_matter(TEMPLATE.read_text(), TRACKS) is None
    assert front_matter.parse_front_matter(TEMPLATE.read_text().replace("\n", "\r\n"), TRACKS) is None


@pytest.mark.parametrize(
    "config",
    [
        'config: {"model": {"depth": 4}, "recipe": {"clip": 0.5}}',
        "config:\n  model:\n    depth: 4\n  recipe:\n    clip: 0.5",
        "config:\n  model.depth: 4\n  recipe.clip: 0.5  # less",
        "config: model.depth = 4\n  recipe.clip = 0.5",
    ],
)
def test_front_matter_config_in_any_notation_is_parsed(config: str) -> None:
    assert parse_body(BLOCK.replace("contact:", f"{config}\ncontact:")).config == {
        "model": {"depth": 4},
        "recipe": {"clip": 0.5},
    }


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ('config: {"model": {"depth": 1e999}}', "NaN and infinite numbers are not allowed"),
        ('config:\n  model.name: "a\\u0000b"', "null bytes and lone surrogates are not allowed"),
        ("config: {broken", "it begins like JSON and is none"),
        ("config: deep", "“deep” is not “name: value”"),
        ("config:\n  depth: 4", "depth belongs to no section; write model.depth, recipe.depth or train.depth"),
        ("config:\n  model.depth: 4\n  model.depth: 5", "model.depth is set twice"),
    ],
)
def test_front_matter_with_invalid_config_gives_problem(config: str, problem: str) -> None:
    assert parse_body(BLOCK.replace("contact:", f"{config}\ncontact:")).problems == (
        f"`config` cannot be read: {problem}.",
    )


@given(st.text(max_size=400))
def test_front_matter_of_any_text_is_parsed_without_error(text: str) -> None:
    front_matter.parse_front_matter(text, TRACKS)
    front_matter.parse_front_matter(f"---\ntrack: {text}\nconfig: {text}\n---\n{text}", TRACKS)


LINES = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="<>\"'“”‘’"), min_size=1, max_size=20)


@given(st.lists(LINES, min_size=1, max_size=6), st.sampled_from(["\n", "\r\n"]), st.sampled_from(['"{}"', "{}"]))
def test_front_matter_value_round_trips(words: list[str], end: str, quoted: str) -> None:
    hypothesis = "x " + " ".join(words)
    body = BLOCK.replace("It helps.", quoted.format(hypothesis)).replace("\n", end)
    assert parse_body(body) == FrontMatter(**{**FIELDS, "hypothesis": hypothesis})
