"""`dailytrain sample RUN --prompt TEXT`: have a trained model write."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.arguments import Parser
from trainer.checkpoint import load_model, read_run
from trainer.data.tokenizer import Tokenizer
from trainer.sampling import PROMPTS, continuation


def main(argv: Sequence[str] | None = None) -> int:
    """Print the prompt and what follows; return 2, with one line on standard error, for a run that cannot be used."""
    options = arguments(argv)
    try:
        model = load_model(options.run, options.checkpoint, options.device)
        tokenizer = Tokenizer.load(options.run / "tokenizer.json")
        context = int(read_run(options.run)["model"]["sequence_length"])
    except ValueError as error:
        sys.stderr.write(f"dailytrain sample: {' '.join(str(error).split())}\n")
        return 2
    text = continuation(
        model,
        tokenizer,
        options.prompt,
        tokens=options.tokens,
        temperature=options.temperature,
        seed=options.seed,
        context=context,
    )
    sys.stdout.write(f"{options.prompt}{text}\n")
    return 0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="dailytrain sample", description="Have a run's model write.")
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--prompt", default=PROMPTS[0], help="what it goes on from (%(default)r)")
    parser.add_argument("--tokens", type=int, default=100, help="at most so many (%(default)s)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest each time (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed writes the same text (%(default)s)")
    parser.add_argument("--checkpoint", type=Path, help="folder of one checkpoint; without: the latest")
    parser.add_argument("--device", default="cpu", help="where to compute, as torch names it (%(default)s)")
    options = parser.parse_args(argv)
    if options.tokens < 0 or options.temperature < 0:
        parser.error("--tokens and --temperature cannot be negative")
    return options
