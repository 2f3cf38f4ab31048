"""Parsing of slash commands in pull request comments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaderboard.integrations.github import command_parser
from leaderboard.integrations.github.command_parser import Command, InvalidCommand


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/train smoke", Command("smoke")),
        ("/Train  SMOKE ", Command("smoke")),
        ("/train day", Command("track", "day")),
        ("/train 0.5h", Command("hours", number=0.5)),
        ("/train seeds 2", Command("seeds", number=2)),
        ("/cancel", Command("cancel")),
        ("/rerun", Command("rerun")),
        ("/priority -3", Command("priority", number=-3)),
        ("/approve", Command("approve")),
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
        ("/train smoke please", "It takes one of `smoke`, a track, hours such as `2h`, or `seeds 2`."),
        ("/train 0h", "Hours are more than 0 and at most 744."),
        ("/train seeds 99", "The number of seeds is a whole number from 1 to 20."),
        ("/train seeds ²", "The number of seeds is a whole number from 1 to 20."),
        ("/train seeds", "Say how many seeds: `/train seeds 2`."),
        ("/cancel it", "It takes no arguments."),
        ("/priority high", "The impact is a whole number from -1000 to 1000."),
        ("/priority", "It takes one number: `/priority 5`."),
        ("/approve all", "It takes nothing, or the commit: 7 to 40 hexadecimal digits."),
    ],
)
def test_comment_with_invalid_command_gives_reason(line: str, reason: str) -> None:
    (command,) = command_parser.parse_comment(line)
    assert command == InvalidCommand(line, reason)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Please /cancel it",
        "> /cancel",
        "```\n/cancel\n```",
        "~~~~\n```\n/cancel\n~~~~",
        "    /cancel",
        "<!-- /cancel -->",
        "<!--\n/cancel",
        "/lgtm",
        "/etc/passwd",
        "/",
    ],
)
def test_comment_with_quoted_or_foreign_command_gives_none(text: str) -> None:
    assert command_parser.parse_comment(text) == []


@given(st.text(max_size=300))
def test_comment_with_any_text_is_parsed_without_error(text: str) -> None:
    command_parser.parse_comment(text)
    for name in command_parser.NAMES:
        assert len(command_parser.parse_comment(f"{name} {text}")) <= command_parser.MAX_COMMANDS
