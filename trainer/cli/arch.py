"""`dailytrain arch list`: list the architectures."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import torch

from trainer.cli import Parser
from trainer.models import ARCHITECTURES, load_architecture

DEPTH, VOCABULARY_SIZE, SEQUENCE_LENGTH = 4, 8192, 256
"""Parameters are counted at this size, a CPU's default."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="dailytrain arch", description="List the architectures.")
    parser.add_argument("action", choices=["list"])
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    rows = [describe_architecture(name) for name in ARCHITECTURES]
    lines = [f"{row['name']:10} {row['parameters']:>12,}  {row['description']}" for row in rows]
    sys.stdout.write((json.dumps(rows) if options.json else "\n".join(lines)) + "\n")
    return 0


def describe_architecture(name: str) -> dict[str, Any]:
    """Describe an architecture by the first sentence of its file and its size at `DEPTH`."""
    module = load_architecture(name)
    with torch.device("meta"):
        model = module.Model(module.Config.sized(DEPTH, VOCABULARY_SIZE, SEQUENCE_LENGTH))
    return {
        "name": name,
        "description": (module.__doc__ or "").strip().partition("\n")[0].rstrip("."),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
