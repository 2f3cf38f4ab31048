"""Text of the site's pull request comment, built from rows, with user input escaped."""

from __future__ import annotations

import re

import pytest
from django.utils import timezone

from leaderboard.integrations.github import comment_text, entry_status
from leaderboard.models import Entry, OutboxMessage, PullRequest, Run
from leaderboard.templatetags.markdown import escape_except_code
from scheduler.markdown import WORD_JOINER, escape_markdown
from tests.support import boards, scene


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


def test_comment_lists_commands_with_their_answers(pull: PullRequest) -> None:
    command = OutboxMessage(
        kind="github.command",
        payload={"login": "mara"},
        result={"answers": [["/train seeds 2", "2 more runs queued: 4, 5."], ["/approve `x`", "No: @all"]]},
    )
    text = build_comment_text(pull, command)
    assert "- mara: `/train seeds 2`: 2 more runs queued: 4, 5." in text
    assert "- mara: `/approve x`: No: @\u2060all" in text


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
