"""`dailytrain import --format rwkv X.pth --out RUN`: create a run from weights trained elsewhere."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from trainer.checkpoint.formats import FORMATS
from trainer.cli import Parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write the run's folder. Raise `UserError` for a file that cannot be used."""
    parser = Parser(prog="dailytrain import", description="Create a run from weights trained elsewhere.")
    parser.add_argument("file", type=Path, help="the weights")
    parser.add_argument("--format", choices=sorted(FORMATS), required=True, help="the other program's format")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write: the run")
    parser.add_argument("--sequence-length", type=int, default=1024, help="tokens in a row when scored (%(default)s)")
    parser.add_argument("--tokenizer", type=Path, help="its tokenizer.json (none: the run knows token ids only)")
    options = parser.parse_args(argv)
    if options.sequence_length < 1:
        parser.error("--sequence-length must be at least 1")
    read = importlib.import_module(FORMATS[options.format]).import_run
    read(options.file, options.out, options.sequence_length, options.tokenizer)
    return 0
