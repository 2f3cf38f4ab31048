"""`dailytrain graph DIR`: print what a traced architecture contains and costs, and draw it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.cli import Parser
from trainer.errors import ExitCode, UserError
from trainer.graph.reading import read_traced
from trainer.graph.summary import describe_traced, print_summary


def main(argv: Sequence[str] | None = None) -> int:
    """Print tables, or JSON. Raise `UserError` for files that are not a traced architecture."""
    parser = Parser(prog="dailytrain graph", description="Print what a traced architecture contains and costs.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="what `dailytrain trace` wrote")
    parser.add_argument("--drawing", type=Path, metavar="FILE", help="also draw the modules and their costs, as SVG")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    if options.drawing is not None and not options.drawing.absolute().parent.is_dir():
        raise UserError(f"--drawing: there is no folder {options.drawing.parent}")
    content = describe_traced(read_traced(options.folder))
    if options.drawing is not None:
        from trainer.graph.drawing import draw_modules

        draw_modules(content, options.drawing)
    if options.json:
        sys.stdout.write(json.dumps(content) + "\n")
    else:
        print_summary(content)
    return ExitCode.OK
