"""`dailytrain export RUN --format rwkv --out X.pth`: hand a run's weights to another program."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from trainer.checkpoint.formats import FORMATS
from trainer.cli.parser import Parser
from trainer.errors import ExitCode, UserError, print_error


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file; return 2, with one line on standard error, for a run that does not fit into the format."""
    parser = Parser(prog="dailytrain export", description="Write a run's weights in another format.")
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--format", choices=sorted(FORMATS), required=True, help="what the other program reads")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write")
    parser.add_argument("--checkpoint", type=Path, help="folder of one checkpoint; without: the latest")
    options = parser.parse_args(argv)
    try:
        importlib.import_module(FORMATS[options.format]).export_run(options.run, options.out, options.checkpoint)
    except UserError as error:
        return print_error("dailytrain export", error, ExitCode.USER_ERROR)
    return 0
