"""`dailytrain presets`: list the presets of `dailytrain train --preset NAME`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from trainer.cli import Parser
from trainer.config.presets import RUN_PRESETS


def main(argv: Sequence[str] | None = None) -> int:
    """Print one sentence for each preset, or with --json all of their values."""
    parser = Parser(prog="dailytrain presets", description="List the presets of `dailytrain train --preset NAME`.")
    parser.add_argument("--json", action="store_true", help="print JSON, with every value")
    if parser.parse_args(argv).json:
        rows = [{"name": name, "about": preset.description, **preset.values} for name, preset in RUN_PRESETS.items()]
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return 0
    width = max(map(len, RUN_PRESETS))
    for name, preset in RUN_PRESETS.items():
        sys.stdout.write(f"{name:{width}}  {preset.description}\n")
    return 0
