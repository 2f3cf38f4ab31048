"""A client that samples text from a running swarm, through its coordinator."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from trainer.errors import UserError
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
