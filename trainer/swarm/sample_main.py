"""Sample text from a running swarm, through its coordinator.

Started by a node for a visitor of the site: `python -m trainer.swarm.sample_main`. Output: lines
`{"kind": "text", "text": ...}` in `metrics.jsonl`, a few per second, and at the end `result.json`, a
`protocol.GenerateResult`. Exit code 2 with `failure.json` if the swarm gives no text.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from trainer.errors import ExitCode, UserError, write_failure
from trainer.inference.generate import LINE_SECONDS
from trainer.protocol import GenerateResult, SwarmSampleOrder
from trainer.swarm import messages
from trainer.swarm.coordinator import ADDRESS_FILE
from trainer.swarm.frames import CallError, CallRefusedError
from trainer.swarm.transport import Transport

TOKEN_SECONDS = 120.0  # Timeout of a piece of text


class SampleError(UserError):
    """The swarm gives no text; the message says why and what to do."""


def find_addresses(swarm: str) -> tuple[str, ...]:
    """Return the coordinator's addresses: `swarm` is one, or the folder of a run on this machine. Raise `UserError`."""
    if swarm.startswith("/") and "/p2p/" in swarm:
        return (swarm,)
    file = Path(swarm) / ADDRESS_FILE
    try:
        return tuple(json.loads(file.read_bytes())["addresses"])
    except (OSError, ValueError, KeyError, TypeError):
        raise SampleError(
            f"there is no swarm at {swarm}: name the folder of a running swarm (with {ADDRESS_FILE}) or the address of "
            "its coordinator, such as /ip4/203.0.113.5/tcp/7000/p2p/..."
        ) from None


async def sample_swarm(
    addresses: Sequence[str], request: messages.SampleRequest
) -> AsyncIterator[messages.SampledText]:
    """Yield a text as it grows. Raise `SampleError`."""
    if not addresses:
        raise SampleError("the run has no coordinator now; try again when one leads it")
    coordinator = addresses[0].rpartition("/p2p/")[2]
    with tempfile.TemporaryDirectory(prefix="sample-") as folder:
        transport = Transport(Path(folder))
        try:
            await transport.start(listen=False)
            transport.add_addresses(coordinator, addresses)
            piece = None
            async for frame in transport.stream(coordinator, "sample", messages.to_frame(request), TOKEN_SECONDS):
                piece = messages.parse_message(messages.SampledText, frame)
                yield piece
            if piece is None or not piece.ended:
                raise SampleError("the swarm ended in the middle of the text; try again")
        except CallRefusedError as error:
            raise SampleError(drop_control_characters(describe_refusal(error))) from error
        except CallError as error:
            raise SampleError(
                f"no swarm answers at {addresses[0]}: it has ended, or cannot be reached ({error})"
            ) from error
        finally:
            await transport.close()


def drop_control_characters(text: str) -> str:
    """Return text from the network without characters that would control a terminal."""
    return "".join(character for character in text if character.isprintable() or character in "\n\t")


def describe_refusal(error: CallRefusedError) -> str:
    match error.code:
        case "no_peers" | "busy":
            return f"the swarm gives no text now: {error.message}"
        case "deadline":
            return f"the swarm has ended this text: {error.message}"
        case "not_admitted":
            return "the swarm gives no text to this machine: use the box on the run's page"
        case "unknown":
            return "this swarm is of a version that gives no text"
        case _:
            return f"the swarm gives no text, because a stage does not reply; try again in a minute ({error})"


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
