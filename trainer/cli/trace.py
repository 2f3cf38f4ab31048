"""`dailytrain trace ARCH --out DIR`: export an architecture as graphs of tensor operators.

Writes `init.json`, `train.json`, `eval.json` and `recipe.json`. A site trains and scores these files and never runs the
architecture's Python.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.cli import Parser, parse_positive_integer
from trainer.config.model_config import import_architecture
from trainer.errors import ExitCode, UserError, attribute_to_model, to_one_line
from trainer.graph.summary import describe_traced, print_summary
from trainer.graph.trace import trace_architecture
from trainer.models.base import Architecture, ArchitectureConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Print a summary of the graphs. Raise `UserError` for bad input, `ModelError` for what cannot be traced."""
    parser = build_parser()
    options = parser.parse_args(argv)
    module = import_architecture(options.arch)
    config = build_config(module, options)
    with attribute_to_model("while the architecture was traced"):
        traced = trace_architecture(module, config)
    traced.write(options.out)
    content = describe_traced(traced)
    if options.json:
        sys.stdout.write(json.dumps(content) + "\n")
    else:
        print_summary(content)
    return ExitCode.OK


def build_parser() -> Parser:
    parser = Parser(prog="dailytrain trace", description="Export an architecture as graphs of tensor operators.")
    parser.add_argument("arch", metavar="ARCH", help="a name from `dailytrain arch list`")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the four files")
    parser.add_argument("--depth", type=parse_positive_integer, default=4, metavar="N", help="blocks (%(default)s)")
    parser.add_argument(
        "--sequence-length", type=parse_positive_integer, default=256, metavar="N", help="tokens in a row (%(default)s)"
    )
    parser.add_argument(
        "--vocabulary-size", type=parse_positive_integer, default=8192, metavar="N", help="tokens (%(default)s)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a field of the architecture's Config, as in --set softcap=0; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def build_config(module: Architecture, options: Any) -> ArchitectureConfig:
    """Return the architecture's configuration at the size of the flags."""
    sized = module.Config.sized(options.depth, options.vocabulary_size, options.sequence_length)
    try:
        return dataclasses.replace(sized, **dict(parse_assignment(text) for text in options.set))  # type: ignore[type-var]
    except (TypeError, ValueError) as error:
        raise UserError(to_one_line(error)) from error


def parse_assignment(text: str) -> tuple[str, Any]:
    """Return name and value of `name=value`; a value that is not JSON is text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"--set takes NAME=VALUE, not {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
