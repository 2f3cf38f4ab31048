"""`dailytrain export RUN --format rwkv --out X.pth`: write a run's weights in another program's format."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from trainer.checkpoint.formats import FORMATS
from trainer.cli import Parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file or folder. Raise `UserError` for a run that does not fit the format."""
    parser = Parser(prog="dailytrain export", description="Write a run's weights in another format.")
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--format", choices=sorted(FORMATS), required=True, help="the other program's format")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write")
    parser.add_argument("--checkpoint", type=Path, help="folder of one checkpoint (the latest)")
    options = parser.parse_args(argv)
    importlib.import_module(FORMATS[options.format]).export_run(options.run, options.out, options.checkpoint)
    return 0
