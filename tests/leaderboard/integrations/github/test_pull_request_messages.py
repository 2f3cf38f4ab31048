"""The comment's words, from rows: what is said of a verdict, of a record, of what strangers wrote."""

from __future__ import annotations

import re

import pytest
from django.utils import timezone

from leaderboard.integrations.github import comment_text, entry_status
from leaderboard.models import Entry, OutboxMessage, PullRequest, Run
from leaderboard.sanitize import WORD_JOINER, escape_markdown
from leaderboard.templatetags.markdown import escape_except_code
from tests.support import boards, scene


@pytest.fixture
def pull(db: None) -> PullRequest:
    """A pull request whose entry is better than the baseline of a full ladder."""
    _, entries = boards.board()
    found = PullRequest.objects.create(
        repository="trains/daily", number=7, head_sha=entries["Better"].sha, entry=entries["Better"]
    )
    Entry.objects.filter(pk=entries["Better"].pk).update(pull_request=found)
    return found


def said(pull: PullRequest, *commands: OutboxMessage) -> str:
    return comment_text.build_comment(pull, commands, timezone.now()).replace("\u00a0", " ")


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def test_a_verdict_is_one_line_then_what_to_do_then_the_numbers(pull: PullRequest) -> None:
    text = lines(said(pull))
    assert text[0] == f"<!-- dailytrain:pull:{pull.pk} -->"
    assert re.fullmatch(
        r"\*\*Multiplier 1\.\d{3} .* at 1\.0 × 10¹³ FLOPs: the baseline would need \d+ % more compute .*\.\*\*",
        text[1],
    )
    assert text[2].startswith("Next: ")
    assert text[3:5] == ["| against | compute multiplier | 95 % interval |", "|---|---:|---|"]
    assert re.fullmatch(r"\| the baseline \| 1\.\d{3} \| 1\.\d{3} to 1\.\d{3} \|", text[5])
    assert text[6] == "<details><summary>3 runs</summary>"
    assert any(re.match(r"\[Entry \d+\]\(http://127\.0\.0\.1:8000/entries/\d+/\) · \[run", line) for line in text)


def test_it_is_compared_with_the_record_too(pull: PullRequest) -> None:
    record = Entry.objects.get(title="Worse")
    Run.objects.filter(entry=record).update(trust=Run.Trust.RECORD)
    text = said(pull)
    found = re.search(r"\| the record, Worse \| (\d\.\d{3}) \| (\d\.\d{3}) to (\d\.\d{3}) \|", text)
    assert found, text
    ratio, low, high = map(float, found.groups())
    assert low < ratio < high
    assert ratio == pytest.approx(1.2 / 0.7, rel=0.2)


def test_the_record_itself_is_compared_with_the_baseline_alone(pull: PullRequest) -> None:
    Run.objects.filter(entry=pull.entry).update(trust=Run.Trust.RECORD)
    assert "| the record" not in said(pull)


def test_what_comments_asked_for_is_listed_with_what_came_of_it(pull: PullRequest) -> None:
    command = OutboxMessage(
        kind="github.command",
        payload={"login": "mara"},
        result={"answers": [["/train seeds 2", "2 more runs queued: 4, 5."], ["/approve `x`", "No: @all"]]},
    )
    text = said(pull, command)
    assert "- mara: `/train seeds 2`: 2 more runs queued: 4, 5." in text
    assert "- mara: `/approve x`: No: @\u2060all" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see `a\n\n# b` and @mara", "see `a # b` and @\u2060mara"),
        ("an odd ` in <b>", "an odd \\` in \\<b\\>"),
        ("`@mara` `` ", "`@\u2060mara`  "),
    ],
)
def test_code_in_a_sentence_stays_code_on_its_line(text: str, shown: str) -> None:
    assert escape_except_code(text) == shown


def test_a_pull_request_of_which_nothing_is_to_be_said_says_nothing(db: None) -> None:
    assert said(PullRequest.objects.create(repository="trains/daily", number=8, head_sha="a" * 40)) == ""


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
def test_each_state_of_a_run_has_its_words(
    db: None, fields: dict[str, str], title: str, conclusion: str | None
) -> None:
    entry = scene.entry(boards.small()[0], "Idea", sha="c" * 40)
    scene.run(entry, **fields)
    state = entry_status.get_entry_status(entry, timezone.now())
    assert (state.title, state.conclusion) == (title, conclusion)
    assert state.line.endswith(".")
    assert state.todo


@pytest.mark.parametrize(
    "text", ["a | b", "<img src=x>", "**bold**", "[a](javascript:x)", "`code`", "@mara", "#1", "~~x~~"]
)
def test_what_strangers_wrote_is_text_and_nothing_else(text: str) -> None:
    shown = escape_markdown(text)
    assert not re.search(r"(?<!\\)[|<>*\[\]`~]", shown)
    assert not re.search(r"[@#]\w", shown)
    assert shown.replace("\\", "").replace(WORD_JOINER, "") == text
