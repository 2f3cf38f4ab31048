"""`dailytrain`: one console script. A subcommand is imported when it is asked for, so that the agent starts at once."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

COMMANDS = {
    "prepare": ("trainer.cli.prepare:main", "make a dataset from a corpus, or find it in the cache"),
    "train": ("trainer.train:main", "train an architecture within a budget"),
    "presets": ("trainer.config.presets:main", "list the presets of train"),
    "smoke": ("trainer.cli.smoke:main", "find most mistakes of an architecture in a minute"),
    "try": ("trainer.cli.try_idea:main", "what an idea is worth, on a small ladder at home"),
    "score": ("trainer.cli.score:main", "score a run on held-out text"),
    "sample": ("trainer.cli.sample:main", "have a run's model write"),
    "chat": ("trainer.cli.chat:main", "talk with a run's model"),
    "logits": ("trainer.cli.logits:main", "what a run's model expects after each token"),
    "bench": ("trainer.cli.bench:main", "our systems beside other people's, on one shape"),
    "profile": ("trainer.cli.profile:main", "where the time of a training step goes"),
    "export": ("trainer.cli.export:main", "write a run's weights in another program's format"),
    "import": ("trainer.cli.import_weights:main", "make a run of weights trained elsewhere"),
    "compare": ("trainer.cli.compare:main", "compare two scored runs, item by item"),
    "multiplier": ("trainer.cli.multiplier:main", "compare entries with a baseline, from plain results"),
    "arch": ("trainer.cli.arch:main", "list the architectures"),
    "node": ("trainer.cli.node:main", "lend this machine to a site"),
    "swarm": ("trainer.cli.swarm:main", "train one model together with other people's machines"),
    "rephrase": ("trainer.cli.rephrase:main", "rephrase texts for a site's datasets, and look at the results"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code of a subcommand; 2, with one line on standard error, for one that there is not."""
    name, *rest = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        sys.stdout.write(usage())
        return 0
    if name == "--version":
        sys.stdout.write(f"{version()}\n")
        return 0
    if name not in COMMANDS:
        return complain(f"there is no command {name!r}; the commands are {', '.join(COMMANDS)}")
    module, _, function = COMMANDS[name][0].partition(":")
    try:
        command = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "trainer":
            raise
        return complain(f"{name} needs the package {error.name}: pip install 'dailytrain[training]'")
    return int(command(rest))


def usage() -> str:
    lines = [f"  {name:10} {about}" for name, (_, about) in COMMANDS.items()]
    return "\n".join(["usage: dailytrain COMMAND [OPTIONS]", "", *lines, "", "Each one explains itself: --help", ""])


def version() -> str:
    from importlib.metadata import version as installed

    return installed("dailytrain")


def complain(sentence: str) -> int:
    """Say it on standard error, in one line; return the exit code of bad input."""
    sys.stderr.write(f"dailytrain: {sentence}\n")
    return 2
