"""`dailytrain swarm sample SWARM --prompt TEXT`: generate text with the model that a running swarm trains."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from pydantic import ValidationError

from trainer.cli import Parser
from trainer.cli.sample import add_sampling_flags, build_sampler
from trainer.errors import UserError
from trainer.inference.sampling import PROMPTS
from trainer.swarm import messages
from trainer.swarm.sample_main import drop_control_characters, find_addresses, sample_swarm

FLAGS = {
    "prompt": "--prompt",
    "tokens": "--max-tokens",
    "temperature": "--temperature",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "seed": "--seed",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the prompt and its continuation as it comes. Raise `UserError` if the swarm gives none."""
    options = build_parser().parse_args(argv)
    build_sampler(options)  # raises UserError for impossible values
    try:
        request = messages.SampleRequest(
            prompt=options.prompt,
            tokens=options.max_tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            seed=options.seed,
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{FLAGS[str(first['loc'][0])]}: {first['msg']}") from error
    asyncio.run(print_text(find_addresses(options.swarm), request))
    return 0


def build_parser() -> Parser:
    parser = Parser(prog="dailytrain swarm sample", description="Generate text with a running swarm.")
    parser.add_argument("swarm", help="folder of a running swarm, or its coordinator's address")
    parser.add_argument("--prompt", default=PROMPTS[0], help="text to continue (%(default)s)")
    add_sampling_flags(parser, max_tokens=100)
    return parser


async def print_text(addresses: Sequence[str], request: messages.SampleRequest) -> None:
    """Print the text; on standard error, the steps of the run whose weights wrote it."""
    steps: set[int] = set()
    has_started = False
    try:
        async for piece in sample_swarm(addresses, request):
            text = drop_control_characters(piece.text)
            sys.stdout.write(text if has_started else request.prompt + text)
            sys.stdout.flush()
            has_started = True
            steps.add(piece.step)
    finally:
        if has_started:
            sys.stdout.write("\n")
    step_range = str(min(steps)) if len(steps) == 1 else f"{min(steps)} to {max(steps)}"
    sys.stderr.write(f"{piece.tokens} tokens, weights of step {step_range}\n")
