"""Transfer of a stage's weights and optimizer state between peers, one tensor per frame."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from torch import Tensor

from trainer.swarm import messages
from trainer.swarm.frames import RpcFrame
from trainer.swarm.transport import Transport

MAX_TENSOR_BYTES = 2**34


async def fetch_state(
    transport: Transport, peer: str, request: messages.StateRequest, timeout: float
) -> dict[str, Tensor]:
    """Read a stage's state from a peer; `timeout` is per tensor. Raise `CallError`, or ValueError for a bad frame."""
    state: dict[str, Tensor] = {}
    async for frame in transport.stream(peer, "state", messages.to_frame(request), timeout, MAX_TENSOR_BYTES):
        (state[messages.parse_message(messages.StateTensor, frame).name],) = frame.tensors
    return state


async def send_state(state: Mapping[str, Tensor]) -> AsyncIterator[RpcFrame]:
    for name, tensor in state.items():
        yield messages.to_frame(messages.StateTensor(name=name), tensor)
