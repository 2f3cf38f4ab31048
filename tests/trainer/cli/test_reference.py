"""docs/reference/cli.md, and flags that mean the same in all commands."""

from __future__ import annotations

from pathlib import Path

from trainer.cli import reference
from trainer.cli.main import COMMANDS

PAGE = Path(__file__).parents[3] / "docs/reference/cli.md"


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text() == reference.build_page(), "run `make docs-cli`"


def test_shared_flags_take_the_same_values_in_all_commands() -> None:
    meanings: dict[str, set[str]] = {}
    for _, command in reference.iterate_commands(COMMANDS):
        for action in reference.list_flags(reference.find_parser(command)):
            value = reference.describe_value(action).strip("`{}").replace("` or `", ",")
            meanings.setdefault(action.option_strings[-1], set()).add(value)
    assert "--folder" not in meanings
    assert meanings["--device"] == {"auto,cpu,cuda"}
    assert all(
        len(meanings[flag]) == 1
        for flag in ("--device", "--batch", "--label", "--json", "--home", "--tokens", "--keep")
    )
