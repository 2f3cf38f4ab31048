"""Asking the peers of a stage, one of them for each micro-batch, until one has answered."""

from __future__ import annotations

import asyncio
import logging
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterable

from trainer.swarm import wire
from trainer.swarm.frames import CallFailed, Frame, Malformed, Refused
from trainer.swarm.router import NoPeers, Router
from trainer.swarm.transport import Transport, short

BAN = 30.0
"""Seconds that a peer which failed is left alone."""
LIED = 3600.0
"""The same for one that answered what no sound peer would."""
PAUSE = 0.2
"""Seconds before the banned are asked again, where there is nobody else."""
TWICE = 2
"""Failures of every peer after which the trouble is somebody else's: the coordinator's, who finds out who is gone."""
NOT_ITS_FAULT = ("stale", "frozen", "below", "stranger")
"""What a sound peer refuses with: whoever asked is too late, or the trouble is further down."""

log = logging.getLogger(__name__)


class Below:
    """The peers of one stage, as this caller sees them."""

    def __init__(self, transport: Transport, most_bytes: int = 2**31) -> None:
        self.transport, self.most_bytes = transport, most_bytes
        self.blamed: dict[str, str] = {}
        """Who answered what no sound peer would, and what."""
        self.router = Router(seed=zlib.crc32(transport.peer.encode()))

    def now_are(self, peers: Iterable[str]) -> None:
        """Take over who belongs; what is known of those that stay is kept."""
        peers = set(peers)
        for gone in set(self.router.peers) - peers:
            self.router.drop(gone)
        for peer in sorted(peers):
            self.router.add(peer)

    async def run(
        self,
        request: Frame,
        depth: int,
        patience: float,
        cost: float,
        odd: Callable[[str, Frame], str] = lambda peer, answer: "",
        only: str | None = None,
    ) -> tuple[Frame, wire.Ran]:
        """Have a micro-batch computed by one peer and those behind it, `depth` stages in all.

        Returns its answer, and who computed it. A peer gets `patience` seconds for each stage; one that fails is
        banned, and another asked, until all have failed twice, or as much time is over as the caller has. Raises
        Refused.

        `odd` says what is strange about a peer's answer, and raises Malformed for one that cannot be: that peer is
        blamed, and another asked. A strange answer counts only if all peers give such; who gave one is blamed as soon
        as another has given a sound one, and asked again if none did. `only`: ask this one, if it is here.
        """
        strange: dict[str, str] = {}
        try:
            return await self.tried(request, depth, patience, cost, odd, only, strange)
        finally:
            for peer in strange.keys() - self.blamed.keys():
                self.router.free(peer, now())

    async def tried(
        self,
        request: Frame,
        depth: int,
        patience: float,
        cost: float,
        odd: Callable[[str, Frame], str],
        only: str | None,
        strange: dict[str, str],
    ) -> tuple[Frame, wire.Ran]:
        """Do what `run` says; note in `strange` who gave a strange answer, and what it was."""
        loop = asyncio.get_running_loop()
        started, failures = loop.time(), Counter[str]()
        while (left := started + patience * (depth + 0.9) - loop.time()) > 0:
            peer = only if only in self.router.peers and not failures[only] else await self.chosen(cost)
            asked = loop.time()
            try:
                answer, ran, why = await self.asked(peer, request, min(patience * depth, left), odd)
            except CallFailed as error:
                if isinstance(error, Refused) and error.code == "below":
                    raise
                failures[peer] += 1
            else:
                if not why:
                    self.router.observe(peer, cost, loop.time() - asked - ran.below)
                    for liar, what in strange.items():
                        self.blame(liar, what)
                    return answer, ran
                strange[peer] = why
                self.ban(peer, why)
                failures[peer] += TWICE
                if set(strange) == set(self.router.peers):  # all say so: it is the model, or this caller
                    return answer, ran
            if all(failures[peer] >= TWICE for peer in self.router.peers):
                break
        raise Refused("below", "no peer of the next stage answered")

    async def asked(
        self, peer: str, request: Frame, seconds: float, odd: Callable[[str, Frame], str]
    ) -> tuple[Frame, wire.Ran, str]:
        """Return a peer's answer, and what is strange about it; ban who fails. Raises CallFailed."""
        try:
            answer = await self.transport.call(peer, "run", request, seconds, self.most_bytes)
            ran = wire.read(wire.Ran, answer)
            if ran.path[:1] != (peer,):
                raise Malformed("an answer that says another peer gave it")
            return answer, ran, odd(peer, answer)
        except Malformed as error:
            self.blame(peer, str(error))
            raise
        except CallFailed as error:
            if isinstance(error, Refused) and error.code in NOT_ITS_FAULT:
                raise Refused("below", str(error)) from error
            self.ban(peer, str(error))
            raise

    def others(self, besides: str) -> list[str]:
        """Return who else may be asked, in any order."""
        others = list(self.router.peers.keys() - self.router.banned(now()).keys() - {besides})
        random.shuffle(others)
        return others

    async def chosen(self, cost: float) -> str:
        """Return who is asked. Where all are banned they are asked again, after a pause: there is nobody else."""
        try:
            return self.router.pick(cost, now())
        except NoPeers as error:
            if error.until is None:
                raise Refused("below", "the next stage has no peers") from error
        await asyncio.sleep(PAUSE)
        banned = self.router.banned(now()).keys()
        for peer in banned - self.blamed.keys() or banned:
            self.router.free(peer, now())
        try:
            return self.router.pick(cost, now())
        except NoPeers:
            raise Refused("below", "the next stage has no peers") from None

    def blame(self, peer: str, why: str) -> None:
        self.blamed[peer] = why[:200]
        self.ban(peer, why, LIED)

    def ban(self, peer: str, why: str, seconds: float = BAN) -> None:
        log.info("%s is banned for %.0f s: %s", short(peer), seconds, why)
        self.router.ban(peer, now(), seconds)


def now() -> float:
    return asyncio.get_running_loop().time()
