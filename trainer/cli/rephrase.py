"""`dailytrain rephrase join | check | calibrate`: the volunteer's side of the dataset swarm."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence

COMMANDS = {
    "join": ("trainer.cli.rephrase_join:main", "rephrase texts for a site's campaigns"),
    "check": ("trainer.cli.rephrase_check:main", "what the checks say about texts and their rephrasings"),
    "calibrate": ("trainer.cli.rephrase_calibrate:main", "propose the checks' thresholds from a good sample"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code of one of them; 2, with a line on standard error, for one that there is not."""
    name, *rest = list(sys.argv[2:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        sys.stdout.write(usage())
        return 0
    if name not in COMMANDS:
        sys.stderr.write(f"dailytrain rephrase: there is no {name!r}; there are {', '.join(COMMANDS)}\n")
        return 2
    if importlib.util.find_spec("py3langid") is None:
        sys.stderr.write("dailytrain rephrase: it needs the package py3langid: pip install 'dailytrain[rephrase]'\n")
        return 2
    module, _, function = COMMANDS[name][0].partition(":")
    return int(getattr(importlib.import_module(module), function)(rest))


def usage() -> str:
    lines = [f"  {name:10} {about}" for name, (_, about) in COMMANDS.items()]
    return "\n".join(
        ["usage: dailytrain rephrase COMMAND [OPTIONS]", "", *lines, "", "Each one explains itself: --help", ""]
    )
