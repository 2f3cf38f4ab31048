"""`dailytrain import --format rwkv X.pth --out RUN`: make a run of weights that were trained elsewhere."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from trainer.checkpoint.formats import FORMATS
from trainer.cli.parser import Parser
from trainer.errors import ExitCode, UserError, print_error


def main(argv: Sequence[str] | None = None) -> int:
    """Write the run's folder; return 2, with one line on standard error, for a file that cannot be used."""
    options = parse_arguments(argv)
    try:
        importlib.import_module(FORMATS[options.format]).import_run(
            options.file, options.out, options.sequence_length, options.tokenizer
        )
    except UserError as error:
        return print_error("dailytrain import", error, ExitCode.USER_ERROR)
    return 0


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="dailytrain import", description="Make a run of weights from elsewhere.")
    parser.add_argument("file", type=Path, help="the weights")
    parser.add_argument("--format", choices=sorted(FORMATS), required=True, help="what wrote them")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write: the run")
    parser.add_argument("--sequence-length", type=int, default=1024, help="tokens in a row when scored (%(default)s)")
    parser.add_argument("--tokenizer", type=Path, help="its tokenizer.json; without: it answers token ids only")
    options = parser.parse_args(argv)
    if options.sequence_length < 1:
        parser.error("--sequence-length must be at least 1")
    return options
