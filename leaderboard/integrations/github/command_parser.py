"""What can be said in a comment of a pull request, read: one command a line, each beginning with a slash."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leaderboard.models.seasons import MOST_SEEDS

MAX_COMMANDS = 5
"""Commands of one comment that are obeyed."""
MAX_LINE_LENGTH = 200
MAX_HOURS = 24 * 31
MAX_IMPACT = 1000


@dataclass(frozen=True)
class Command:
    """One command, understood."""

    does: str
    """One of `leaderboard.integrations.github.slash_commands.HANDLERS`."""
    word: str = ""
    number: float = 0.0
    line: str = ""
    """As it was written."""


@dataclass(frozen=True)
class InvalidCommand:
    """One that is ours and cannot be obeyed; `why` ends in a full stop."""

    line: str
    why: str


@dataclass(frozen=True)
class Usage:
    how: str
    does: str
    who: str


USAGES = (
    Usage("/train smoke", "repeats the smoke run", "author, maintainers"),
    Usage("/train TRACK", "enters the commit for another track, too", "author, maintainers"),
    Usage("/train HOURSh", "a run with that part of the track's budget: `/train 0.5h`", "maintainers"),
    Usage("/train seeds N", "N more runs with fresh seeds", "maintainers"),
    Usage("/cancel", "stops what waits or runs", "author, maintainers"),
    Usage("/rerun", "lets a run that broke go on, or runs again with a fresh seed", "author, maintainers"),
    Usage("/priority N", "sets the impact: within its queue, higher goes first", "maintainers"),
    Usage("/approve", "approves exactly the commit that was there when the comment was written", "maintainers"),
    Usage("/approve SHA", "approves that commit, if it is still the newest", "maintainers"),
    Usage("/help", "answers with this list", "everybody"),
)


class CommandError(ValueError):
    """What follows the command is not what it takes."""


def parse_comment(text: str) -> list[Command | InvalidCommand]:
    """Return what a comment asks, in its order. Quotations and code ask nothing, nor do other programs' commands."""
    found = [one for line in extract_own_lines(text) if (one := parse_line(line))]
    return found[:MAX_COMMANDS]


def extract_own_lines(text: str) -> list[str]:
    """Return the lines that their writer says himself: what he quotes, and code, is somebody else's."""
    lines, fence = list[str](), ""
    for line in re.sub(r"<!--.*?(-->|\Z)", "", text, flags=re.DOTALL).splitlines():
        if mark := re.match(r"\s{0,3}(`{3,}|~{3,})", line):
            fence = "" if fence and mark[1].startswith(fence) else fence or mark[1]
        elif not fence and not line.startswith(("    ", "\t", ">")):
            lines.append(line)
    return lines


def parse_line(line: str) -> Command | InvalidCommand | None:
    """Return what a line asks; None where it is no command of ours."""
    name, *words = line.strip().split() or [""]
    command = PARSERS.get(name.lower())
    if command is None:
        return None
    line = " ".join([name.lower(), *words])[:MAX_LINE_LENGTH]
    try:
        said = command(words)
    except CommandError as error:
        return InvalidCommand(line, str(error))
    return Command(said.does, said.word, said.number, line)


# --- each ------------------------------------------------------------------------------------------------------------


def parse_train(words: Sequence[str]) -> Command:
    match [word.lower() for word in words]:
        case ["smoke"]:
            return Command("smoke")
        case ["seeds", count]:
            return Command("seeds", number=parse_integer(count, 1, MOST_SEEDS, "The number of seeds"))
        case ["seeds"]:
            raise CommandError("Say how many seeds: `/train seeds 2`.")
        case [hours] if re.fullmatch(r"\d+(\.\d+)?h", hours):
            return Command("hours", number=parse_hours(hours))
        case [track] if re.fullmatch(r"[\w-]{1,50}", track):
            return Command("track", track)
    raise CommandError("It takes one of `smoke`, a track, hours such as `2h`, or `seeds 2`.")


def parse_hours(text: str) -> float:
    hours = float(text[:-1]) if len(text) < 20 else 0.0
    if not 0 < hours <= MAX_HOURS:
        raise CommandError(f"Hours are more than 0 and at most {MAX_HOURS}.")
    return hours


def parse_integer(text: str, least: int, most: int, what: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise CommandError(f"{what} is a whole number from {least} to {most}.")
    return int(text)


def parse_priority(words: Sequence[str]) -> Command:
    if len(words) != 1:
        raise CommandError("It takes one number: `/priority 5`.")
    return Command("priority", number=parse_integer(words[0], -MAX_IMPACT, MAX_IMPACT, "The impact"))


def parse_approve(words: Sequence[str]) -> Command:
    match [word.lower().strip("`") for word in words]:
        case []:
            return Command("approve")
        case [sha] if re.fullmatch(r"[0-9a-f]{7,40}", sha):
            return Command("approve", sha)
    raise CommandError("It takes nothing, or the commit: 7 to 40 hexadecimal digits.")


def build_bare_parser(does: str) -> Callable[[Sequence[str]], Command]:
    """Return what reads a command that takes nothing."""

    def read_alone(words: Sequence[str]) -> Command:
        if words:
            raise CommandError("It stands alone on its line.")
        return Command(does)

    return read_alone


PARSERS: dict[str, Callable[[Sequence[str]], Command]] = {
    "/train": parse_train,
    "/cancel": build_bare_parser("cancel"),
    "/rerun": build_bare_parser("rerun"),
    "/priority": parse_priority,
    "/approve": parse_approve,
    "/help": build_bare_parser("help"),
}
