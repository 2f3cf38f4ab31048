"""Markdown of the bot's comment and answers in a pull request, from `templates/github`. Untrusted text is escaped."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.template.loader import render_to_string

from leaderboard.contributors import propose_ancestor
from leaderboard.formatting import MISSING
from leaderboard.integrations.github import entry_status, front_matter
from leaderboard.integrations.github.command_parser import USAGES
from leaderboard.integrations.github.entry_status import Comparison, EntryStatus
from leaderboard.models import Entry, OutboxMessage, PullRequest, Track
from leaderboard.rankings import explanations
from leaderboard.submissions import run_estimates
from leaderboard.templatetags.markdown import escape_except_code

ANSWER = "<!-- dailytrain:answer:"  # the start of every answer
SHOWN_RUNS = 20
SHOWN_COMMANDS = 8


def get_comment_mark(pull: PullRequest) -> str:
    """Return the mark that finds the comment if its id is lost."""
    return f"<!-- dailytrain:pull:{pull.pk} -->"


def get_answer_mark(comment: int | str) -> str:
    return f"{ANSWER}{comment} -->"


def build_comment(pull: PullRequest, commands: Sequence[OutboxMessage], now: datetime) -> str:
    """Return the current text of the comment; empty if there is nothing to report yet."""
    entries = list(pull.entries.filter(sha=pull.head_sha).select_related("track__season", "smoke_job").order_by("pk"))
    entries.sort(key=lambda entry: entry.pk != pull.entry_id)
    is_draft = pull.draft and not entries and bool(pull.fields.get("track"))
    is_closed = pull.state != PullRequest.State.OPEN and not entries and pull.entries.exists()
    if not (pull.problems or entries or is_draft or is_closed):
        return ""
    results = [(command.payload["login"], command.result.get("answers", [])) for command in commands]
    answers = [(login, line, answer) for login, lines in results for line, answer in lines]
    context = {
        "mark": get_comment_mark(pull),
        "pull": pull,
        "lacks_block": pull.problems == [front_matter.NO_BLOCK],
        "default_track": Track.objects.for_pull_requests(),
        "is_draft": is_draft,
        "is_closed": is_closed,
        "entries": [get_entry_context(entry, now) for entry in entries],
        "answers": answers[-SHOWN_COMMANDS:],
        "usages": USAGES,
    }
    return render_markdown("comment.md", context)


def describe_entry(entry: Entry, now: datetime) -> str:
    """Return the status of one entry."""
    return render_markdown("comment.md#entry", {"shown": get_entry_context(entry, now)})


def build_answer(comment: int | str, login: str, answers: Sequence[tuple[str, str]], *, with_help: bool) -> str:
    mention = login if re.fullmatch(r"[\w-]+", login) else ""
    usages = USAGES if with_help else ()
    mark = get_answer_mark(comment)
    return render_markdown("answer.md", {"mark": mark, "mention": mention, "answers": answers, "usages": usages})


def render_markdown(name: str, context: dict[str, Any]) -> str:
    text = render_to_string(f"github/{name}", {**context, "site_url": settings.SITE_URL})
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def get_entry_context(entry: Entry, now: datetime) -> dict[str, Any]:
    runs = list(entry.runs.select_related("track").order_by("pk"))
    is_copy = entry.obstacle == Entry.Obstacle.DUPLICATE
    judged = (entry.duplicate_of if is_copy else None) or entry
    judged_runs = judged.runs.select_related("track") if is_copy else runs
    has_result = any(entry_status.has_result(run) for run in judged_runs)
    comparison = entry_status.compare_entry(judged) if has_result else None
    estimate = run_estimates.estimate_run(entry) if run_estimates.is_before_start(entry) else None
    return {
        "entry": entry,
        "status": entry_status.get_entry_status(entry, now),
        "proposed_ancestor": propose_ancestor(entry),
        "multipliers": list_multipliers(comparison) if comparison else [],
        "estimate": estimate.describe(now) if estimate else "",
        "runs": runs,
        "last_runs": runs[-SHOWN_RUNS:],
        "last_run": runs[-1] if runs else None,
    }


def list_multipliers(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return what the entry is compared with, the compute multiplier and its interval."""
    estimate = comparison.row.estimate
    if estimate is None or estimate.cm is None:
        return []
    interval = explanations.format_interval_ends(estimate) or MISSING
    rows = [("the baseline", explanations.format_multiplier(estimate), interval)]
    if comparison.record is not None:
        rows.append((f"the record, {comparison.record.entry.title}", *compare_with_record(comparison)))
    return rows


def compare_with_record(found: Comparison) -> tuple[str, str]:
    """Return the ratio of two multipliers and its interval.

    The interval treats both as independent; they share the baseline, so it is rather too wide.
    """
    entry, record = found.row.estimate, found.record.estimate if found.record else None
    if entry is None or record is None or not entry.cm or not record.cm:
        return MISSING, MISSING
    ratio = entry.cm / record.cm
    if entry.low is None or entry.high is None or record.low is None or record.high is None:
        return f"{ratio:.3f}", MISSING
    half = math.hypot(math.log(entry.high / entry.low), math.log(record.high / record.low)) / 2
    tied = ", not distinguishable" if math.exp(-half) <= 1 / ratio <= math.exp(half) else ""
    return f"{ratio:.3f}", f"{ratio * math.exp(-half):.3f} to {ratio * math.exp(half):.3f}{tied}"


def build_url(path: str) -> str:
    return f"{settings.SITE_URL}{path}"


def get_check_name(entry: Entry) -> str:
    return f"Daily Train / {entry.track.slug}"


def build_check_summary(state: EntryStatus) -> str:
    todo = f"\n\nNext: {escape_except_code(state.todo)}" if state.todo else ""
    return f"{escape_except_code(state.line)}{todo}"
