"""A client for one stage: it sends each micro-batch to one peer of the stage, retries with others, reads its state."""

from __future__ import annotations

import asyncio
import logging
import random
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

from torch import Tensor

from trainer.swarm import messages
from trainer.swarm.frames import CallError, CallRefusedError, MalformedFrameError, RpcFrame
from trainer.swarm.router import NoPeersError, Router
from trainer.swarm.transport import Transport, get_loop_time, shorten

BAN_SECONDS = 30.0  # A peer that failed gets no calls for this long
BLAME_SECONDS = 3600.0  # The same for a peer whose reply was invalid
UNBAN_DELAY = 0.2  # Seconds before banned peers are called again, if there are no others
MAX_FAILURES = 2
"""If every peer has failed this often the client gives up. The coordinator then finds out which peers are gone."""
CALLER_ERRORS = ("stale", "frozen", "later_stage", "not_member", "no_cache", "no_memory")
"""Refusal codes of healthy peers: the caller is outdated, a stage further down failed, or a text does not fit."""
DIVERGED = "diverged"
"""Refusal code of a peer whose own output is not finite, or for whose output all peers of the next stage say this."""

MAX_HIDDEN_BYTES = 2**31  # Limit of a message with hidden states

log = logging.getLogger(__name__)

ReplyCheck = Callable[[str, RpcFrame], str]
"""(peer, reply) -> why the reply is suspicious, or "". Raises `MalformedFrameError` for an invalid one."""


class StageClient:
    """The peers of one stage, as this caller sees them."""

    def __init__(self, transport: Transport, on_ban: Callable[[str, str], None] = lambda peer, reason: None) -> None:
        """`on_ban` is called with each banned peer and the reason."""
        self.transport, self.on_ban = transport, on_ban
        self.blamed: dict[str, str] = {}  # Peers whose reply was invalid, and why
        self.router = Router(seed=zlib.crc32(transport.peer.encode()))

    def set_peers(self, peers: Iterable[str]) -> None:
        """Replace the list of peers. Statistics of those that stay are kept."""
        peers = set(peers)
        for peer in self.router.peers.keys() - peers:
            self.router.drop(peer)
        for peer in sorted(peers):
            self.router.add(peer)

    async def call_stage(
        self,
        request: RpcFrame,
        depth: int,
        timeout: float,
        cost: float,
        check: ReplyCheck = lambda peer, reply: "",
        pinned: str | None = None,
    ) -> tuple[RpcFrame, messages.StageReply]:
        """Compute a micro-batch on one peer and the stages after it. Return its reply and the path it took.

        `depth` is the number of stages from here on; a peer gets `timeout` seconds for each. A peer that fails is
        banned and another one is called, until all have failed `MAX_FAILURES` times or the caller's own time is over.
        Raise `CallRefusedError` with the code "later_stage" then, or `DIVERGED` once all have refused with that code.

        A peer whose reply fails `check` as invalid is blamed. A suspicious reply is accepted only if all peers send
        one. Peers that sent one are blamed once another peer sends a valid reply; otherwise their ban ends.
        `pinned`: call this peer first, if it belongs to the stage.
        """
        suspicious, diverged = dict[str, str](), set[str]()
        deadline, failures = get_loop_time() + timeout * (depth + 0.9), Counter[str]()
        try:
            while (left := deadline - get_loop_time()) > 0:
                peer = pinned if pinned in self.router.peers and not failures[pinned] else await self.choose_peer(cost)
                started = get_loop_time()
                try:
                    reply, result, reason = await self.call_peer(peer, request, min(timeout * depth, left), check)
                except CallError as error:
                    code = error.code if isinstance(error, CallRefusedError) else ""
                    if code == DIVERGED:
                        diverged.add(peer)
                    if code == "later_stage" or (code == DIVERGED and diverged >= self.router.peers.keys()):
                        raise
                    failures[peer] += MAX_FAILURES if code == DIVERGED else 1
                else:
                    if not reason:
                        self.router.observe(peer, cost, get_loop_time() - started - result.later_seconds)
                        for other, suspicion in suspicious.items():
                            self.blame(other, suspicion)
                        return reply, result
                    suspicious[peer] = reason
                    self.ban(peer, reason)
                    failures[peer] += MAX_FAILURES
                    if suspicious.keys() == self.router.peers.keys():  # the model or this caller is the cause
                        return reply, result
                if all(failures[peer] >= MAX_FAILURES for peer in self.router.peers):
                    break
        finally:
            for peer in suspicious.keys() - self.blamed.keys():
                self.router.unban(peer, get_loop_time())
        raise CallRefusedError("later_stage", "no peer of the next stage replied")

    async def call_peer(
        self, peer: str, request: RpcFrame, seconds: float, check: ReplyCheck
    ) -> tuple[RpcFrame, messages.StageReply, str]:
        """Return a peer's reply and why it is suspicious, if so. Ban the peer and raise `CallError` if it fails."""
        try:
            reply = await self.transport.call(peer, "run", request, seconds, MAX_HIDDEN_BYTES)
            result = messages.parse_message(messages.StageReply, reply)
            if result.path[:1] != (peer,):
                raise MalformedFrameError("the reply names another peer as its author")
            return reply, result, check(peer, reply)
        except MalformedFrameError as error:
            self.blame(peer, str(error))
            raise
        except CallError as error:
            if isinstance(error, CallRefusedError) and error.code in CALLER_ERRORS:
                raise CallRefusedError("later_stage", str(error)) from error
            self.ban(peer, str(error))
            raise

    def list_other_peers(self, excluded: str) -> list[str]:
        """Return the available peers but one, in random order."""
        others = list(self.router.peers.keys() - self.router.get_bans(get_loop_time()).keys() - {excluded})
        random.shuffle(others)
        return others

    async def choose_peer(self, cost: float) -> str:
        """Return the peer to call next. If all are banned, lift the bans after a pause, of blamed peers last."""
        try:
            return self.router.pick(cost, get_loop_time())
        except NoPeersError as error:
            if error.until is None:
                raise CallRefusedError("later_stage", "the next stage has no peers") from error
        await asyncio.sleep(UNBAN_DELAY)
        banned = self.router.get_bans(get_loop_time()).keys()
        for peer in banned - self.blamed.keys() or banned:
            self.router.unban(peer, get_loop_time())
        try:
            return self.router.pick(cost, get_loop_time())
        except NoPeersError:
            raise CallRefusedError("later_stage", "the next stage has no peers") from None

    def blame(self, peer: str, reason: str) -> None:
        self.blamed[peer] = reason[:200]
        self.ban(peer, reason, BLAME_SECONDS)

    def ban(self, peer: str, reason: str, seconds: float = BAN_SECONDS) -> None:
        log.info("%s is banned for %.0f s: %s", shorten(peer), seconds, reason)
        self.router.ban(peer, get_loop_time(), seconds)
        self.on_ban(peer, reason)


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
