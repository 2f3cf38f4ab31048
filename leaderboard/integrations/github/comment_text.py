"""What the site writes into a pull request: one comment that is rewritten, and short answers. Markdown from rows.

What a stranger wrote is escaped (`plain`): it mentions nobody, links nothing and breaks no table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import datetime

from django.conf import settings

from leaderboard.formatting import MISSING, share
from leaderboard.integrations.github import entry_status, front_matter
from leaderboard.integrations.github.command_parser import USAGES
from leaderboard.integrations.github.entry_status import Comparison, EntryStatus
from leaderboard.models import Effect, Entry, PullRequest, Run, Track
from leaderboard.rankings import explanations
from leaderboard.submissions import run_estimates

BLOCK = "---\n\ntrack: {track}\nhypothesis:\nexpected_effect:\ncontact:\n\n---"
ANSWER = "<!-- dailytrain:answer:"
"""How every answer begins."""
SHOWN_RUNS = 20
SHOWN_COMMANDS = 8
JOINER = "\u2060"
"""Between a sign and what it would refer to: invisible, and no reference any more."""
SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~&$])")


def get_comment_mark(pull: PullRequest) -> str:
    """Return by what the one comment is found again, should its id be lost."""
    return f"<!-- dailytrain:pull:{pull.pk} -->"


def get_answer_mark(comment: int | str) -> str:
    return f"{ANSWER}{comment} -->"


def escape_markdown(text: str) -> str:
    """Return text as Markdown that shows just this, on one line."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split(" "))
    return re.sub(r"([@#])(?=\w)", rf"\1{JOINER}", SPECIAL.sub(r"\\\1", line)).strip()


# --- the one comment -------------------------------------------------------------------------------------------------


def build_comment(pull: PullRequest, commands: Sequence[Effect], now: datetime) -> str:
    """Return the comment as it should be now; empty where there is nothing to say yet."""
    entries = list(pull.entries.filter(sha=pull.head_sha).select_related("track__season", "smoke_job").order_by("pk"))
    entries.sort(key=lambda entry: entry.pk != pull.entry_id)
    parts = list(build_parts(pull, entries, now))
    if not parts:
        return ""
    return (
        "\n\n".join(
            [
                get_comment_mark(pull),
                *parts,
                *describe_commands(commands),
                build_details("What can be written here", build_usage_table()),
            ]
        )
        + "\n"
    )


def build_parts(pull: PullRequest, entries: Sequence[Entry], now: datetime) -> Iterable[str]:
    if pull.problems:
        yield from describe_problems(pull)
    elif pull.draft and not entries and pull.fields.get("track"):
        yield "**This is a draft: it is entered as soon as it is marked as ready for review.**"
        yield "The block at the top is complete."
    several = len(entries) > 1
    for entry in entries:
        if several:
            yield f"### {escape_markdown(entry.track.name)}"
        yield from describe_entry(entry, now)
    if pull.state != PullRequest.State.OPEN and not entries and pull.entries.exists():
        yield "**The pull request is closed.**"


def describe_problems(pull: PullRequest) -> Iterable[str]:
    """Say exactly what is missing, with something to copy where the whole block is."""
    if pull.problems == [front_matter.NO_BLOCK]:
        yield "**To have this trained, one thing is missing: the block that says what to train.**"
        track = Track.objects.default()
        block = BLOCK.format(track=track.slug if track else "")
        yield f"Edit the description, put this at its top and fill it in:\n\n```\n{block}\n```"
        yield f"For a change that needs no run, write `track: {front_matter.NO_RUN}`."
        return
    count = len(pull.problems)
    yield f"**{'One thing is' if count == 1 else f'{count} things are'} in the way of a run:**"
    yield "\n".join(f"- {problem}" for problem in map(escape_except_code, pull.problems))
    yield "Edit the description, or push: this comment is looked after and goes on by itself."


def escape_except_code(text: str) -> str:
    """As `plain`, for our own sentences, which name fields as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape_markdown(text)
    return "".join(format_code(part) if number % 2 else escape_with_spaces(part) for number, part in enumerate(parts))


def format_code(text: str) -> str:
    """Return text as code that stays on its line, whoever wrote it."""
    line = sanitize_code(" ".join(text.split()))
    return f"`{line}`" if line else ""


def escape_with_spaces(text: str) -> str:
    """`plain`, with the spaces at the ends that it had."""
    lead = " " if text[:1] == " " else ""
    return f"{lead}{escape_markdown(text)}{' ' if text[-1:] == ' ' and text.strip() else ''}"


def describe_entry(entry: Entry, now: datetime) -> Iterable[str]:
    """Yield what is said of one entry."""
    state = entry_status.get_entry_status(entry, now)
    yield f"**{escape_except_code(state.line)}**"
    if state.todo:
        yield f"Next: {escape_except_code(state.todo)}"
    runs = list(entry.runs.select_related("track").order_by("pk"))
    if any(entry_status.has_result(run) for run in runs) and (found := entry_status.compare_entry(entry)):
        yield from build_multiplier_table(found)
    if run_estimates.is_before_start(entry) and (before := run_estimates.estimate_run(entry)):
        yield f"Estimate: {escape_markdown(before.sentence(now))}"
    if runs:
        yield build_details(f"{len(runs)} run{'' if len(runs) == 1 else 's'}", build_run_table(runs))
    yield build_links(entry, runs)


def build_multiplier_table(found: Comparison) -> Iterable[str]:
    """Yield the multiplier against the baseline and against the record, with intervals, where there is one."""
    if found.row.estimate is None or found.row.estimate.cm is None:
        return
    rows = [("the baseline", *format_estimate(found))]
    if found.record is not None:
        rows.append((f"the record, {escape_markdown(found.record.entry.title)}", *compare_with_record(found)))
    table = [f"| {who} | {cm} | {interval} |" for who, cm, interval in rows]
    yield "\n".join(["| against | compute multiplier | 95 % interval |", "|---|---:|---|", *table])


def format_estimate(found: Comparison) -> tuple[str, str]:
    estimate = found.row.estimate
    return explanations.format_multiplier(estimate), explanations.format_interval_ends(estimate) or MISSING


def compare_with_record(found: Comparison) -> tuple[str, str]:
    """Return the ratio of two multipliers. Its interval takes the two as independent: they share the baseline, so it
    is rather too wide."""
    own, other = found.row.estimate, found.record.estimate if found.record else None
    if own is None or other is None or not own.cm or not other.cm:
        return MISSING, MISSING
    ratio = own.cm / other.cm
    if own.low is None or own.high is None or other.low is None or other.high is None:
        return f"{ratio:.3f}", MISSING
    half = math.hypot(math.log(own.high / own.low), math.log(other.high / other.low)) / 2
    tied = ", cannot be told from it" if math.exp(-half) <= 1 / ratio <= math.exp(half) else ""
    return f"{ratio:.3f}", f"{ratio * math.exp(-half):.3f} to {ratio * math.exp(half):.3f}{tied}"


def build_run_table(runs: Sequence[Run]) -> str:
    lines = ["| run | for | budget | seed | state | bits per byte | node |", "|---|---|---|---:|---|---:|---|"]
    for run in runs[-SHOWN_RUNS:]:
        bits = MISSING if run.bits_per_byte is None else f"{run.bits_per_byte:.4f}"
        bits += "" if run.bits_per_byte_stderr is None else f" ± {run.bits_per_byte_stderr:.4f}"
        state = f"{run.state}, {run.trust}" if run.state == Run.State.FINISHED else run.state
        cells = [f"[{run.pk}]({build_url(run.get_absolute_url())})", run.get_purpose_display().lower(), share(run.part)]
        lines.append("| " + " | ".join([*cells, str(run.seed), state, bits, escape_markdown(run.node_name)]) + " |")
    return "\n".join(lines)


def build_links(entry: Entry, runs: Sequence[Run]) -> str:
    found = [f"[Entry {entry.pk}]({build_url(entry.get_absolute_url())})"]
    found += [f"[run {runs[-1].pk}, its curve and samples]({build_url(runs[-1].get_absolute_url())})"] if runs else []
    return " · ".join([*found, f"[{escape_markdown(entry.track.name)}]({build_url(entry.track.get_absolute_url())})"])


def sanitize_code(line: str) -> str:
    """Return a line as it may stand between backticks."""
    return re.sub(r"([@#])(?=\w)", rf"\1{JOINER}", line.replace("`", ""))


def build_url(path: str) -> str:
    return f"{settings.SITE_URL}{path}"


def build_details(title: str, inside: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{inside}\n\n</details>"


def build_usage_table() -> str:
    rows = [f"| `{usage.how}` | {usage.does} | {usage.who} |" for usage in USAGES]
    return "\n".join(["| a line of a comment | does | who |", "|---|---|---|", *rows])


def describe_commands(commands: Sequence[Effect]) -> Iterable[str]:
    """Yield what comments asked for lately, and what came of it."""
    said = [
        f"- {escape_markdown(command.payload['login'])}: `{sanitize_code(line)}`: {escape_except_code(answer)}"
        for command in commands
        for line, answer in command.result.get("answers", [])
    ]
    if said:
        yield build_details("Asked for in comments", "\n".join(said[-SHOWN_COMMANDS:]))


# --- answers and checks ----------------------------------------------------------------------------------------------


def build_answer(comment: int | str, login: str, answers: Sequence[tuple[str, str]], *, with_help: bool) -> str:
    """Return an answer of its own to a comment that asked for what cannot be."""
    who = [f"@{login}"] if re.fullmatch(r"[\w-]+", login) else []
    lines = [f"`{sanitize_code(line)}`: {escape_except_code(said)}" for line, said in answers]
    shown = [build_details("What can be written here", build_usage_table())] if with_help else []
    return "\n\n".join([get_answer_mark(comment), *who, *lines, *shown]) + "\n"


def get_check_name(entry: Entry) -> str:
    return f"Daily Train / {entry.track.slug}"


def build_check_summary(state: EntryStatus) -> str:
    todo = f"\n\nNext: {escape_except_code(state.todo)}" if state.todo else ""
    return f"{escape_except_code(state.line)}{todo}"
