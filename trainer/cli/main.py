"""`dailytrain`: the tree of all commands.

A command's module is imported only when the command is chosen, and parses its own arguments. So `dailytrain node`
starts at once and without torch.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from trainer.accounting.cores import limit_spinning
from trainer.cli import Parser
from trainer.errors import ExitCode, ModelError, UserError, print_error


class Command(NamedTuple):
    """A command of `dailytrain`."""

    entry_point: str  # MODULE:FUNCTION, called with the arguments; returns the exit code
    help: str
    extra: str = "training"  # what to install, as in `pip install 'dailytrain[training]'`, if a package is missing
    package: str = ""  # a package that must be installed although the module imports it late


class CommandGroup(NamedTuple):
    """Commands with a common first word."""

    help: str
    commands: Mapping[str, Command]


COMMANDS: dict[str, Command | CommandGroup] = {
    "prepare": Command("trainer.cli.prepare:main", "prepare a dataset from a corpus, or find it in the cache"),
    "train": Command("trainer.train:main", "train an architecture within a budget"),
    "presets": Command("trainer.cli.presets:main", "list the presets of train"),
    "smoke": Command("trainer.cli.smoke:main", "find most mistakes of an architecture on the CPU"),
    "try": Command("trainer.cli.try_idea:main", "measure ideas against a small ladder of the baseline"),
    "submit": Command("trainer.cli.submit:main", "propose the current commit: a pull request's text, or a run by API"),
    "score": Command("trainer.cli.score:main", "score a run on held-out text"),
    "draw": Command("trainer.cli.draw:main", "draw the test text of a season by its secret"),
    "benchmarks": Command("trainer.cli.benchmarks:main", "download the evaluation data of benchmarks"),
    "sample": Command("trainer.cli.sample:main", "generate text with a run's model"),
    "chat": Command("trainer.cli.chat:main", "chat with a run's model"),
    "bench": Command("trainer.cli.bench:main", "measure tokens/s, MFU and the parts of a step on this machine"),
    "export": Command("trainer.cli.export:main", "write a run's weights in another format"),
    "import": Command("trainer.cli.import_weights:main", "create a run from weights trained elsewhere"),
    "compare": Command("trainer.cli.compare:main", "compare two scored runs item by item"),
    "multiplier": Command("trainer.cli.multiplier:main", "compare entries with a baseline, from plain results"),
    "trace": Command("trainer.cli.trace:main", "export an architecture as graphs of tensor operators"),
    "graph": Command("trainer.cli.graph:main", "print what a traced architecture contains and costs"),
    "arch": Command("trainer.cli.arch:main", "list the architectures"),
    "mcp": Command("trainer.cli.mcp_server:main", "serve the commands and a site to a coding agent", "mcp"),
    "node": Command("trainer.cli.node:main", "lend this machine to a site"),
    "swarm": CommandGroup(
        "train one model together with other people's machines",
        {
            "join": Command("trainer.cli.swarm:main", "take a part of one run"),
            "local": Command(
                "trainer.cli.swarm_local:main", "train with processes on this machine, with faults", "swarm", "hivemind"
            ),
            "sample": Command(
                "trainer.cli.swarm_sample:main", "generate text with a running swarm", "swarm", "hivemind"
            ),
        },
    ),
    "rephrase": CommandGroup(
        "rephrase texts for a site's datasets",
        {
            "join": Command("trainer.cli.rephrase_join:main", "rephrase texts for a site's campaigns", "rephrase"),
            "check": Command(
                "trainer.cli.rephrase_check:main", "check texts and their rephrasings", "rephrase", "py3langid"
            ),
            "calibrate": Command(
                "trainer.cli.rephrase_calibrate:main",
                "propose thresholds of the checks from a good sample",
                "rephrase",
                "py3langid",
            ),
        },
    ),
}


class CommandParser(Parser):
    """Parse one level of the tree. All arguments of a command are left to its module."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        if command := self.get_default("command"):
            return argparse.Namespace(command=command, prog=self.prog, argv=list(args)), []
        return super().parse_known_args(args, namespace)


def build_parser() -> CommandParser:
    parser = CommandParser(prog="dailytrain", description="Train, score and compare small language models.")
    parser.add_argument("-V", "--version", action="version", version=find_version())
    add_commands(parser, COMMANDS)
    return parser


def find_version() -> str:
    try:
        return version("dailytrain")
    except PackageNotFoundError:  # run from the repository without installing it
        return "not installed"


def add_commands(parser: argparse.ArgumentParser, commands: Mapping[str, Command | CommandGroup]) -> None:
    parser.epilog = f"{parser.prog} COMMAND --help explains a command."
    parser.set_defaults(print_help=parser.print_help)
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands")
    for name, command in commands.items():
        if isinstance(command, CommandGroup):
            add_commands(subparsers.add_parser(name, help=command.help, description=command.help), command.commands)
        else:
            subparsers.add_parser(name, help=command.help, add_help=False).set_defaults(command=command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    limit_spinning(os.environ)  # before a command's module loads torch
    options = build_parser().parse_args(argv)
    if not hasattr(options, "command"):
        options.print_help()
        return ExitCode.OK
    return run_command(options.command, options.prog, options.argv)


def run_command(command: Command, prog: str, argv: Sequence[str]) -> int:
    """Import the command's module and call it. Report a missing package, bad input, a model's error or Ctrl-C in one
    line."""
    try:
        if command.package and importlib.util.find_spec(command.package) is None:
            raise ModuleNotFoundError(name=command.package)
        function = load_function(command)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "trainer":
            raise
        message = f"needs the package {package}: pip install 'dailytrain[{command.extra}]'"
        return print_error(prog, message, ExitCode.USER_ERROR)
    try:
        return int(function(argv))
    except UserError as error:
        return print_error(prog, error, ExitCode.USER_ERROR)
    except ModelError as error:
        return print_error(prog, error, ExitCode.MODEL_ERROR)
    except KeyboardInterrupt:
        return print_error(prog, "interrupted", ExitCode.INTERRUPTED)


def load_function(command: Command) -> Callable[[Sequence[str]], int]:
    module, _, function = command.entry_point.partition(":")
    return getattr(importlib.import_module(module), function)
