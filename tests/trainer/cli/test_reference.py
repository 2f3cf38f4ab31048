"""docs/reference/cli.md, and flags that mean the same in all commands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from trainer.cli import reference
from trainer.cli.main import COMMANDS, Command

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
    assert all(len(meanings[flag]) == 1 for flag in ("--device", "--label", "--json", "--home", "--keep"))


def test_commands_in_docs_have_only_known_flags() -> None:
    """Fields of a configuration (`--model.depth`) are checked by the page of the configuration."""
    commands = dict(reference.iterate_commands(COMMANDS))
    flags = {name: list_option_strings(name, commands) for name in commands}
    unknown: list[str] = []
    for page in [*PAGE.parents[1].rglob("*.md"), *PAGE.parents[2].glob("*.md")]:
        text = page.read_text().replace("\\\n", " ")
        for line in re.findall(r"^(?:\.venv/bin/)?dailytrain ([a-z].*)$", text, re.M):
            name = next((name for name in flags if line.split("#")[0].startswith(name)), "")
            used = re.findall(r"(?<!\S)--([\w-]+)(?=[\s=]|$)", line.split("#")[0])
            unknown += [f"{page.name}: {line}" for flag in used if f"--{flag}" not in flags.get(name, ())]
            assert name, f"{page.name}: {line}"
    assert unknown == []


def list_option_strings(name: str, commands: Mapping[str, Command]) -> set[str]:
    options = {"train"} if name == "smoke" else set()  # it passes further flags on
    found = {
        option
        for each in {name, *options}
        for action in reference.list_flags(reference.find_parser(commands[each]))
        for option in action.option_strings
    }
    return found | {option.replace("_", "-") for option in found} | {"--help"}
