"""Text of pull requests: the site's comment, slash commands and the front matter of descriptions."""

from __future__ import annotations

import re

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from leaderboard.integrations.github import command_parser, comment_text, comments, entry_status, front_matter
from leaderboard.integrations.github.command_parser import Command, InvalidCommand
from leaderboard.integrations.github.front_matter import FrontMatter
from leaderboard.models import Confirmation, Entry, OutboxMessage, PullRequest, Run
from leaderboard.templatetags.markdown import escape_except_code
from scheduler.markdown import WORD_JOINER, escape_markdown
from tests.support import boards, scene
from tests.support.paths import REPOSITORY


@pytest.fixture
def pull(db: None) -> PullRequest:
    """A pull request whose entry is better than the baseline of a full ladder."""
    _, entries = boards.create_board()
    pull = PullRequest.objects.create(
        repository="trains/daily", number=7, head_sha=entries["Better"].sha, entry=entries["Better"]
    )
    Entry.objects.filter(pk=entries["Better"].pk).update(pull_request=pull)
    return pull


def build_comment_text(pull: PullRequest, *commands: OutboxMessage) -> str:
    return comment_text.build_comment(pull, commands, timezone.now()).replace("\u00a0", " ")


def test_comment_of_result_compares_with_record(pull: PullRequest) -> None:
    record = Entry.objects.get(title="Worse")
    Run.objects.filter(entry=record).update(trust=Run.Trust.RECORD)
    text = build_comment_text(pull)
    match = re.search(r"\| the record, Worse \| (\d\.\d{3}) \| (\d\.\d{3}) to (\d\.\d{3}) \|", text)
    assert match, text
    ratio, low, high = map(float, match.groups())
    assert low < ratio < high
    assert ratio == pytest.approx(1.2 / 0.7, rel=0.2)


def test_finished_run_updates_other_comments_only_if_they_are_compared_with_it(pull: PullRequest) -> None:
    entry, baseline = Entry.objects.get(title="Worse"), Entry.objects.get(title="main, 3 March")
    finished = Run.objects.filter(entry=entry)
    assert comments.find_affected_pulls({run.pk for run in finished}) == set()
    assert comments.find_affected_pulls({run.pk for run in baseline.runs.all()}) == {pull.pk}
    finished.update(trust=Run.Trust.RECORD)
    assert comments.find_affected_pulls({run.pk for run in finished}) == {pull.pk}


def test_disputed_record_updates_the_comments_that_were_compared_with_it(pull: PullRequest) -> None:
    record = Entry.objects.get(title="Worse")
    Confirmation.objects.create(entry=record, season=record.track.season, outcome=Confirmation.Outcome.RECORD)
    record.runs.update(trust=Run.Trust.DISPUTED)
    assert comments.find_affected_pulls({run.pk for run in record.runs.all()}) == {pull.pk}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see `a\n\n# b` and @mara", "see `a # b` and @\u2060mara"),
        ("an odd ` in <b>", "an odd \\` in \\<b\\>"),
        ("`@mara` `` ", "`@\u2060mara`  "),
    ],
)
def test_escaping_keeps_code_spans_on_one_line(text: str, expected: str) -> None:
    assert escape_except_code(text) == expected


@pytest.mark.parametrize(
    ("fields", "title", "conclusion"),
    [
        ({"state": "queued"}, "Waits for a node", None),
        ({"state": "training", "node_name": "cellar", "fraction": 0.57}, "Training, 50 % of the way", None),
        ({"state": "paused", "reason": "Its heartbeat stopped."}, "Delayed", None),
        ({"state": "scoring"}, "Being scored", None),
        ({"state": "cancelled", "reason": "ada cancelled it."}, "Cancelled", "cancelled"),
        ({"state": "failed", "cause": "model", "reason": "Its loss is no number."}, "Failed", "failure"),
        ({"state": "failed", "cause": "infrastructure", "reason": "Lost."}, "Failed on our side", "neutral"),
        ({"state": "finished", "budget": "1.25e12flops", "bits_per_byte": 2.5}, "Arrived", "success"),
    ],
)
def test_check_of_each_run_state_has_title_and_conclusion(
    db: None, fields: dict[str, str], title: str, conclusion: str | None
) -> None:
    entry = scene.create_entry(boards.create_ladder_track()[0], "Idea", sha="c" * 40)
    scene.create_run(entry, **fields)
    state = entry_status.get_entry_status(entry, timezone.now())
    assert (state.title, state.conclusion) == (title, conclusion)
    assert state.line.endswith(".")
    assert state.todo


@pytest.mark.parametrize(
    "text", ["a | b", "<img src=x>", "**bold**", "[a](javascript:x)", "`code`", "@mara", "#1", "~~x~~"]
)
def test_escaped_markdown_keeps_text_and_drops_markup(text: str) -> None:
    escaped = escape_markdown(text)
    assert not re.search(r"(?<!\\)[|<>*\[\]`~]", escaped)
    assert not re.search(r"[@#]\w", escaped)
    assert escaped.replace("\\", "").replace(WORD_JOINER, "") == text


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/train smoke", Command("smoke")),
        ("/train day", Command("track", "day")),
        ("/train 0.5h", Command("hours", number=0.5)),
        ("/train seeds 2", Command("seeds", number=2)),
        ("/cancel", Command("cancel")),
        ("/priority -3", Command("priority", number=-3)),
        ("/approve `1A2B3C4`", Command("approve", "1a2b3c4")),
        ("/help", Command("help")),
    ],
)
def test_comment_with_valid_command_is_parsed(line: str, expected: Command) -> None:
    (command,) = command_parser.parse_comment(f"Thank you.\r\n\r\n{line}\r\n")
    assert isinstance(command, Command)
    assert (command.action, command.word, command.number) == (expected.action, expected.word, expected.number)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("/train", "It takes one of `smoke`, a track, hours such as `2h`, or `seeds 2`."),
        ("/train 0h", "Hours are more than 0 and at most 744."),
        ("/train seeds 99", "The number of seeds is a whole number from 1 to 20."),
        ("/train seeds ²", "The number of seeds is a whole number from 1 to 20."),
        ("/cancel it", "It takes no arguments."),
        ("/priority high", "The impact is a whole number from -1000 to 1000."),
        ("/approve all", "It takes nothing, or the commit: 7 to 40 hexadecimal digits."),
    ],
)
def test_comment_with_invalid_command_gives_reason(line: str, reason: str) -> None:
    (command,) = command_parser.parse_comment(line)
    assert command == InvalidCommand(line, reason)


QUOTED = (
    "> /cancel",
    "```\n/cancel\n```",
    "~~~~\n```\n/cancel\n~~~~",
    "    /cancel",
    "<!-- /cancel -->",
    "<!--\n/cancel",
)


@pytest.mark.parametrize("text", [*QUOTED, "", "Please /cancel it", "/lgtm", "/etc/passwd", "/"])
def test_comment_with_quoted_or_foreign_command_gives_none(text: str) -> None:
    assert command_parser.parse_comment(text) == []


@given(st.text(max_size=300))
def test_comment_with_any_text_is_parsed_without_error(text: str) -> None:
    command_parser.parse_comment(text)
    for name in command_parser.NAMES:
        assert len(command_parser.parse_comment(f"{name} {text}")) <= command_parser.MAX_COMMANDS


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
