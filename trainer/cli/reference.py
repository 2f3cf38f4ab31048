"""Generate the reference of all commands and flags: `python -m trainer.cli.reference > docs/reference/cli.md`."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from unittest import mock

from trainer.cli.main import COMMANDS, Command, CommandGroup, load_function

HEADER = """# Commands

Every command explains itself with `--help`. This page is generated from the parsers by `make docs-cli`.

"""
FLAGS_HEADER = """## Flags

- `--out` names the file or folder that a command writes, `--home` the folder where it keeps files between calls.
- `--device` is `auto`, `cpu` or `cuda`; `CUDA_VISIBLE_DEVICES` chooses among several GPUs.
- `--label` marks a node for matching jobs, `--name` is only displayed.
- `--tokens` is a list of token ids, `--max-tokens` limits the length of generated text, `--keep` counts checkpoints.
- `train` also takes every field of its configuration, see [configuration](configuration.md).

|flag|value|meaning|commands|
|---|---|---|---|
"""


def main() -> int:
    sys.stdout.write(build_page())
    return 0


def build_page() -> str:
    commands = dict(iterate_commands(COMMANDS))
    rows = "".join(f"|`dailytrain {name}`|{command.help}|\n" for name, command in commands.items())
    return f"{HEADER}|command|what it does|\n|---|---|\n{rows}\n{FLAGS_HEADER}{build_flag_rows(commands)}"


def iterate_commands(commands: Mapping[str, Command | CommandGroup], prefix: str = "") -> Iterator[tuple[str, Command]]:
    for name, command in commands.items():
        if isinstance(command, CommandGroup):
            yield from iterate_commands(command.commands, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def build_flag_rows(commands: Mapping[str, Command]) -> str:
    """Return a row for each flag and meaning, in alphabetical order."""
    users: dict[tuple[str, str, str], list[str]] = {}
    for name, command in commands.items():
        for action in list_flags(find_parser(command)):
            users.setdefault((describe_flag(action), describe_value(action), describe_meaning(action)), []).append(name)
    return "".join(f"|{'|'.join((*key, ', '.join(users[key])))}|\n" for key in sorted(users))


def find_parser(command: Command) -> argparse.ArgumentParser:
    """Return the parser whose help the command prints, so that commands need no function for it."""
    parsers: list[argparse.ArgumentParser] = []

    def capture(parser: argparse.ArgumentParser, *_: object) -> None:
        parsers.append(parser)

    with mock.patch.object(argparse.ArgumentParser, "print_help", capture), suppress(SystemExit):
        load_function(command)(["--help"])
    return parsers[0]


def list_flags(parser: argparse.ArgumentParser, *, with_fields: bool = False) -> list[argparse.Action]:
    """Return all flags but --help and hidden ones, and fields of a configuration (`--train.batch`) if wanted."""
    flags: list[argparse.Action] = []

    class FlagRecorder(parser.formatter_class):
        def add_argument(self, action: argparse.Action) -> None:
            names = action.option_strings
            is_shown = names and names[0] != "-h" and action.help != argparse.SUPPRESS
            if is_shown and action.default != argparse.SUPPRESS and (with_fields or "." not in names[-1]):
                flags.append(action)

    parser.formatter_class = FlagRecorder
    parser.format_help()
    return flags


def describe_flag(action: argparse.Action) -> str:
    return ", ".join(f"`{flag}`" for flag in action.option_strings)


def describe_value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.choices is not None:
        return " or ".join(f"`{choice}`" for choice in action.choices)
    return f"`{action.metavar or action.dest.upper()}`"


def describe_meaning(action: argparse.Action) -> str:
    """Return the help without defaults, some of which depend on the machine."""
    text = re.sub(r"\s*\([^()]*%\(default\)s[^()]*\)|%\(default\)s", "", action.help or "")
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|").replace("%%", "%")


if __name__ == "__main__":
    raise SystemExit(main())
