"""What can be said in a comment of a pull request, read: one command a line, each beginning with a slash."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leaderboard.models.seasons import MOST_SEEDS

MOST = 5
"""Commands of one comment that are obeyed."""
LONGEST_LINE = 200
MOST_HOURS = 24 * 31
MOST_IMPACT = 1000


@dataclass(frozen=True)
class Said:
    """One command, understood."""

    does: str
    """One of `leaderboard.integrations.github.slash_commands.DEEDS`."""
    word: str = ""
    number: float = 0.0
    line: str = ""
    """As it was written."""


@dataclass(frozen=True)
class Misread:
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


class NotUnderstood(ValueError):
    """What follows the command is not what it takes."""


def read(text: str) -> list[Said | Misread]:
    """Return what a comment asks, in its order. Quotations and code ask nothing, nor do other programs' commands."""
    found = [one for line in spoken(text) if (one := read_line(line))]
    return found[:MOST]


def spoken(text: str) -> list[str]:
    """Return the lines that their writer says himself: what he quotes, and code, is somebody else's."""
    lines, fence = list[str](), ""
    for line in re.sub(r"<!--.*?(-->|\Z)", "", text, flags=re.DOTALL).splitlines():
        if mark := re.match(r"\s{0,3}(`{3,}|~{3,})", line):
            fence = "" if fence and mark[1].startswith(fence) else fence or mark[1]
        elif not fence and not line.startswith(("    ", "\t", ">")):
            lines.append(line)
    return lines


def read_line(line: str) -> Said | Misread | None:
    """Return what a line asks; None where it is no command of ours."""
    name, *words = line.strip().split() or [""]
    command = COMMANDS.get(name.lower())
    if command is None:
        return None
    line = " ".join([name.lower(), *words])[:LONGEST_LINE]
    try:
        said = command(words)
    except NotUnderstood as error:
        return Misread(line, str(error))
    return Said(said.does, said.word, said.number, line)


# --- each ------------------------------------------------------------------------------------------------------------


def train(words: Sequence[str]) -> Said:
    match [word.lower() for word in words]:
        case ["smoke"]:
            return Said("smoke")
        case ["seeds", count]:
            return Said("seeds", number=whole(count, 1, MOST_SEEDS, "The number of seeds"))
        case ["seeds"]:
            raise NotUnderstood("Say how many seeds: `/train seeds 2`.")
        case [hours] if re.fullmatch(r"\d+(\.\d+)?h", hours):
            return Said("hours", number=in_hours(hours))
        case [track] if re.fullmatch(r"[\w-]{1,50}", track):
            return Said("track", track)
    raise NotUnderstood("It takes one of `smoke`, a track, hours such as `2h`, or `seeds 2`.")


def in_hours(text: str) -> float:
    hours = float(text[:-1]) if len(text) < 20 else 0.0
    if not 0 < hours <= MOST_HOURS:
        raise NotUnderstood(f"Hours are more than 0 and at most {MOST_HOURS}.")
    return hours


def whole(text: str, least: int, most: int, what: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise NotUnderstood(f"{what} is a whole number from {least} to {most}.")
    return int(text)


def priority(words: Sequence[str]) -> Said:
    if len(words) != 1:
        raise NotUnderstood("It takes one number: `/priority 5`.")
    return Said("priority", number=whole(words[0], -MOST_IMPACT, MOST_IMPACT, "The impact"))


def approve(words: Sequence[str]) -> Said:
    match [word.lower().strip("`") for word in words]:
        case []:
            return Said("approve")
        case [sha] if re.fullmatch(r"[0-9a-f]{7,40}", sha):
            return Said("approve", sha)
    raise NotUnderstood("It takes nothing, or the commit: 7 to 40 hexadecimal digits.")


def alone(does: str) -> Callable[[Sequence[str]], Said]:
    """Return what reads a command that takes nothing."""

    def read_alone(words: Sequence[str]) -> Said:
        if words:
            raise NotUnderstood("It stands alone on its line.")
        return Said(does)

    return read_alone


COMMANDS: dict[str, Callable[[Sequence[str]], Said]] = {
    "/train": train,
    "/cancel": alone("cancel"),
    "/rerun": alone("rerun"),
    "/priority": priority,
    "/approve": approve,
    "/help": alone("help"),
}
