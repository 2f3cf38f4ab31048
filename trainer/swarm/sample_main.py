"""Sample text from a swarm for a visitor of the site: `python -m trainer.swarm.sample_main`, started by a node.

Output: lines `{"kind": "text", "text": ...}` in `metrics.jsonl`, a few per second, and at the end `result.json`, a
`protocol.GenerateResult`. Exit code 2 with `failure.json` if the swarm gives no text.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from trainer.errors import ExitCode, UserError, write_failure
from trainer.inference.generate import LINE_SECONDS
from trainer.protocol import GenerateResult, SwarmSampleOrder
from trainer.swarm import messages
from trainer.swarm.sample_client import sample_swarm


async def run_order(order: SwarmSampleOrder, out: Path) -> GenerateResult:
    """Write the text as it comes. Raise `SampleError`."""
    started = last_write = time.monotonic()
    fields = order.model_dump(include={"prompt", "tokens", "temperature", "seed", "label", "credential"})
    buffer, piece = "", None
    with (out / "metrics.jsonl").open("w") as file:
        async for piece in sample_swarm(order.coordinator, messages.SampleRequest(**fields)):
            buffer += piece.text
            if buffer and (piece.ended or time.monotonic() - last_write >= LINE_SECONDS):
                file.write(json.dumps({"kind": "text", "text": buffer}) + "\n")
                file.flush()
                buffer, last_write = "", time.monotonic()
    assert piece is not None  # `sample_swarm` raises for a text without an end
    return GenerateResult(tokens=piece.tokens, seconds=time.monotonic() - started, ended=piece.ended)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.swarm.sample_main", description="Sample from a swarm.")
    parser.add_argument("--order", required=True, type=Path, help="the site's order, JSON")
    parser.add_argument("--out", required=True, type=Path, help="folder to write")
    args = parser.parse_args(argv)
    order = SwarmSampleOrder.model_validate_json(args.order.read_bytes())
    try:
        result = asyncio.run(run_order(order, args.out))
    except UserError as error:
        write_failure(args.out, "order", str(error))
        print(error, file=sys.stderr)  # noqa: T201
        return ExitCode.USER_ERROR
    (args.out / "result.json").write_text(result.model_dump_json())
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
