"""Parse slash commands in comments of pull requests, one a line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from leaderboard.models.field_checks import MOST_SEEDS

NAMES = ("/train", "/cancel", "/rerun", "/priority", "/approve", "/hold", "/lift", "/help")
MAX_COMMANDS = 5  # of one comment
MAX_LINE_LENGTH = 200
MAX_HOURS = 24 * 31
MAX_IMPACT = 1000


@dataclass(frozen=True)
class Command:
    action: str  # key of `slash_commands.HANDLERS`
    word: str = ""
    number: float = 0.0
    line: str = ""  # as written


@dataclass(frozen=True)
class InvalidCommand:
    line: str
    why: str


class Usage(NamedTuple):
    how: str
    does: str
    who: str


USAGES = (
    Usage("/train smoke", "repeats the smoke test", "author, maintainers"),
    Usage("/train TRACK", "enters the commit for another track, too", "author, maintainers"),
    Usage("/train HOURSh", "a run with that part of the track's budget: `/train 0.5h`", "maintainers"),
    Usage("/train seeds N", "N more runs with fresh seeds", "maintainers"),
    Usage("/cancel", "stops what waits or runs", "author, maintainers"),
    Usage("/rerun", "lets a run that broke go on, or runs again with a fresh seed", "author, maintainers"),
    Usage("/priority N", "sets the impact: within its queue, higher goes first", "maintainers"),
    Usage("/approve", "approves exactly the commit that was there when the comment was written", "maintainers"),
    Usage("/approve SHA", "approves that commit, if it is still the newest", "maintainers"),
    Usage("/hold", "keeps policies from approving the entry or moving it up", "maintainers"),
    Usage("/lift", "enters and approves it on the next track of the chain", "maintainers"),
    Usage("/help", "answers with this list", "everyone"),
)


class CommandError(ValueError):
    """The command's arguments are invalid."""


def parse_comment(text: str) -> list[Command | InvalidCommand]:
    """Return the commands of a comment in order, except those in quotations and code."""
    commands = (parse_line(line) for line in extract_unquoted_lines(text))
    return [command for command in commands if command is not None][:MAX_COMMANDS]


def extract_unquoted_lines(text: str) -> list[str]:
    """Return the lines outside of quotations, code and HTML comments."""
    lines, fence = list[str](), ""
    for line in re.sub(r"<!--.*?(-->|\Z)", "", text, flags=re.DOTALL).splitlines():
        if mark := re.match(r"\s{0,3}(`{3,}|~{3,})", line):
            fence = "" if fence and mark[1].startswith(fence) else fence or mark[1]
        elif not fence and not line.startswith(("    ", "\t", ">")):
            lines.append(line)
    return lines


def parse_line(line: str) -> Command | InvalidCommand | None:
    name, *words = line.split() or [""]
    if name.lower() not in NAMES:
        return None
    line = " ".join([name.lower(), *words])[:MAX_LINE_LENGTH]
    try:
        return replace(parse_words(line.lower().split()), line=line)
    except CommandError as error:
        return InvalidCommand(line, str(error))


def parse_words(words: Sequence[str]) -> Command:
    match words:
        case ["/train", "smoke"]:
            return Command("smoke")
        case ["/train", "seeds", count]:
            return Command("seeds", number=parse_integer(count, 1, MOST_SEEDS, "The number of seeds"))
        case ["/train", "seeds"]:
            raise CommandError("Say how many seeds: `/train seeds 2`.")
        case ["/train", hours] if re.fullmatch(r"\d+(\.\d+)?h", hours):
            return Command("hours", number=parse_hours(hours))
        case ["/train", track] if re.fullmatch(r"[\w-]{1,50}", track):
            return Command("track", track)
        case ["/train", *_]:
            raise CommandError("It takes one of `smoke`, a track, hours such as `2h`, or `seeds 2`.")
        case ["/priority", impact]:
            return Command("priority", number=parse_integer(impact, -MAX_IMPACT, MAX_IMPACT, "The impact"))
        case ["/priority", *_]:
            raise CommandError("It takes one number: `/priority 5`.")
        case ["/approve", sha] if re.fullmatch(r"[0-9a-f]{7,40}", sha.strip("`")):
            return Command("approve", sha.strip("`"))
        case ["/approve", _, *_]:
            raise CommandError("It takes nothing, or the commit: 7 to 40 hexadecimal digits.")
        case [name]:
            return Command(name.removeprefix("/"))
    raise CommandError("It takes no arguments.")


def parse_hours(text: str) -> float:
    hours = float(text[:-1]) if len(text) < 20 else 0.0
    if not 0 < hours <= MAX_HOURS:
        raise CommandError(f"Hours are more than 0 and at most {MAX_HOURS}.")
    return hours


def parse_integer(text: str, least: int, most: int, what: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise CommandError(f"{what} is a whole number from {least} to {most}.")
    return int(text)
