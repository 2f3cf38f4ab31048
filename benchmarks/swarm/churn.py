"""Thirty-two hours of machines that come and go, on a virtual clock, with the real router and the real rebalancer.

    python -m benchmarks.swarm.churn [--hours 32] [--seed 1] [--out FILE.json] [--picture FILE.svg]

What is simulated: peers of four speeds arrive and leave (more by day than by night; now and then a third of all at
once), load their stage's state before they work, and take tasks one after another. Micro-batches travel through the
stages; each caller has a router of its own and learns speeds from the tasks that come back. Who dies takes its tasks
along, and what is below it is done again. Four ways are compared on the same trace:

    with       newcomers go where they are wanted most; every five minutes one peer may move, and loads its new stage
    without    newcomers go where they are wanted most, and stay there
    static     each stays where it is best over its whole life, found in hindsight, knowing who will come and go when
    ideal      whenever somebody comes or goes all are where they should be, at once, for nothing, by their true speeds

`even` is how near a way comes to the bound of all assignments: all speeds together over all costs together.

Left out: the ends of steps, which cost the same each way, and the network's time.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
import sys
from argparse import ArgumentParser
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.swarm.churn_best import COSTS, evenly, hindsight, slowest
from benchmarks.swarm.churn_trace import HOUR, Visit, trace
from trainer.swarm.rebalance import REBALANCE_SECONDS, choose_stage, propose_move
from trainer.swarm.router import NoPeersError, Router

LOADING = 60.0
"""Seconds to load a stage's state, before a peer works there."""
NOISE = 0.1
"""Standard deviation of the logarithm of how long a task takes."""
QUEUED = 3
"""Micro-batches kept under way for each peer."""
Way = Literal["with", "without", "static", "ideal"]
WAYS: tuple[Way, ...] = ("with", "without", "static", "ideal")


@dataclass
class Peer:
    name: str
    speed: float
    stage: int
    router: Router
    """To the next stage."""
    ready: bool = False
    """Has it loaded its stage?"""
    free_at: float = 0.0
    """When its lane is through with what it was given."""


@dataclass(eq=False)
class MicroBatch:
    path: list[Peer] = field(default_factory=list)
    """Who holds it, from the first stage on; the last one works on it."""
    attempt: int = 0
    """Rises when somebody on the path is lost: what was under way does not count."""


class Churn:
    """The swarm of a trace. `done` are the moments at which micro-batches came through."""

    def __init__(self, visits: Sequence[Visit], seed: int, way: Way) -> None:
        self.chance, self.way = random.Random(seed), way
        self.now, self.number, self.moves, self.lost = 0.0, itertools.count(), 0, 0
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.peers: dict[str, Peer] = {}
        self.entrance, self.seen = Router(seed), Router(seed)
        """The coordinator's way to the first stage, and what it knows of everybody's speed."""
        self.under_way: dict[MicroBatch, None] = {}
        self.waiting: list[tuple[MicroBatch, int]] = []
        """Micro-batches that found nobody to go to."""
        self.done: list[float] = []
        self.slowest, self.bound = 0.0, 0.0
        """Micro-batches that the slowest stage could have passed so far, and that all together could have."""
        for visit in visits:
            self.at(visit.start, self.arrive, visit)
            self.at(visit.stop, self.die, visit.name)
        self.fixed = hindsight(visits) if way == "static" else {}
        if way == "with":
            self.at(REBALANCE_SECONDS, self.look)

    def at(self, when: float, what: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self.events, (when, next(self.number), what, arguments))

    def run(self, end: float) -> None:
        since = 0.0
        while self.events and self.events[0][0] < end:
            self.now, _, what, arguments = heapq.heappop(self.events)
            if what in (self.enter, self.die, self.look):
                self.weigh(self.now - since)
                since = self.now
            what(*arguments)

    def weigh(self, seconds: float) -> None:
        """Note how evenly the peers have been placed for so long, by their true speeds."""
        stages = dict.fromkeys(COSTS, 0.0)
        for peer in self.peers.values():
            stages[peer.stage] += peer.speed
        self.slowest += seconds * min(speed / COSTS[stage] for stage, speed in stages.items())
        self.bound += seconds * sum(stages.values()) / sum(COSTS.values())

    # --- who is there ---

    def speeds(self) -> dict[int, dict[str, float]]:
        """Return what the coordinator knows: who is at each stage or about to be, and how fast."""
        stages: dict[int, dict[str, float]] = {stage: {} for stage in COSTS}
        for peer in self.peers.values():
            stages[peer.stage][peer.name] = self.seen.throughput(peer.name)
        return stages

    def arrive(self, visit: Visit) -> None:
        self.seen.add(visit.name)
        stage = self.fixed.get(visit.name, choose_stage(self.speeds(), costs=COSTS))
        self.settle(visit.name, visit.speed, stage, self.now + LOADING)
        self.perfect()

    def settle(self, name: str, speed: float, stage: int, when: float) -> None:
        peer = Peer(name, speed, stage, Router(self.chance.randrange(2**32)), free_at=when)
        self.peers[name] = peer
        self.at(when, self.enter, peer)

    def enter(self, peer: Peer) -> None:
        """It has loaded its stage, if it is still there: callers learn of it, and it of those it will call."""
        if self.peers.get(peer.name) is not peer:
            return
        peer.ready = True
        for caller in self.callers(peer.stage):
            caller.add(peer.name, peer.speed if self.way == "ideal" else None)
        for other in self.peers.values():
            if other.ready and other.stage == peer.stage + 1:
                peer.router.add(other.name, other.speed if self.way == "ideal" else None)
        waiting, self.waiting = self.waiting, []
        for batch, attempt in waiting:
            self.advance(batch, attempt)
        self.fill()

    def callers(self, stage: int) -> list[Router]:
        """Return the routers that lead to a stage."""
        if stage == 0:
            return [self.entrance]
        holders = [peer for batch in self.under_way for peer in batch.path]  # some may have moved on since
        at_work = [peer for peer in self.peers.values() if peer.ready]
        return list(dict.fromkeys(peer.router for peer in (*at_work, *holders) if peer.stage == stage - 1))

    def leave(self, name: str) -> Peer | None:
        """Take a peer out of its stage; what it has been given it still does."""
        peer = self.peers.pop(name, None)
        for caller in self.callers(peer.stage) if peer is not None else ():
            caller.drop(name)
        return peer

    def die(self, name: str) -> None:
        """A peer is gone with all it holds, which goes on from the stage before it."""
        self.leave(name)
        self.seen.drop(name)
        for batch in self.under_way:
            held = next((n for n, peer in enumerate(batch.path) if peer.name == name), None)
            if held is not None:
                del batch.path[held:]
                batch.attempt += 1
                self.lost += 1
                self.at(self.now, self.advance, batch, batch.attempt)
        if self.way == "with" and min(map(len, self.speeds().values())) < 2:
            self.rebalance()
        self.perfect()

    def look(self) -> None:
        self.rebalance()
        self.at(self.now + REBALANCE_SECONDS, self.look)

    def rebalance(self) -> None:
        """Make the move that is proposed: it does what it has, then loads its new stage."""
        if (move := propose_move(self.speeds(), costs=COSTS)) is not None:
            peer = self.leave(move.peer)
            assert peer is not None
            self.moves += 1
            self.settle(peer.name, peer.speed, move.target, max(self.now, peer.free_at) + LOADING)

    def perfect(self) -> None:
        """Have everybody where they should be, if this is the ideal swarm and it makes a difference."""
        if self.way != "ideal":
            return
        speeds = {peer.name: peer.speed for peer in self.peers.values()}
        wanted, now = evenly(speeds), {peer.name: peer.stage for peer in self.peers.values()}
        if slowest(speeds, wanted) < 1.01 * slowest(speeds, now):
            return
        for name in [name for name, stage in wanted.items() if now[name] != stage]:
            peer = self.leave(name)
            assert peer is not None
            self.moves += 1
            self.settle(name, peer.speed, wanted[name], self.now if peer.ready else peer.free_at)

    # --- what they do ---

    def fill(self) -> None:
        """Keep enough micro-batches under way."""
        while len(self.under_way) < QUEUED * len(self.peers):
            batch = MicroBatch()
            self.under_way[batch] = None
            self.advance(batch, 0)

    def advance(self, batch: MicroBatch, attempt: int) -> None:
        """Give a micro-batch to a peer of its next stage."""
        if batch.attempt != attempt:
            return
        stage = len(batch.path)
        router = batch.path[-1].router if batch.path else self.entrance
        try:
            name = router.pick(COSTS[stage], self.now)
        except NoPeersError:
            self.waiting.append((batch, attempt))
            return
        peer = self.peers[name]
        seconds = COSTS[stage] / peer.speed * self.chance.lognormvariate(0, NOISE)
        peer.free_at = max(peer.free_at, self.now) + seconds
        batch.path.append(peer)
        self.at(peer.free_at, self.finish, batch, attempt, router, seconds)

    def finish(self, batch: MicroBatch, attempt: int, router: Router, seconds: float) -> None:
        if batch.attempt != attempt:
            return
        stage = len(batch.path) - 1
        for learner in (router, self.seen):
            learner.observe(batch.path[-1].name, COSTS[stage], seconds)
        if stage + 1 < len(COSTS):
            self.advance(batch, attempt)
            return
        self.done.append(self.now)
        del self.under_way[batch]
        self.fill()


# --- what it comes to -------------------------------------------------------------------------------------------------


def simulate(hours: float, seed: int) -> dict[str, Any]:
    """Return the whole story, in quarters of an hour and in one number for each way."""
    visits, end, quarter = trace(hours, seed), hours * HOUR, HOUR / 4
    edges = [quarter * n for n in range(round(end / quarter))]
    story: dict[str, Any] = {"hours": hours, "seed": seed, "visits": len(visits)}
    story["peers"] = [sum(v.start <= edge + quarter / 2 < v.stop for v in visits) for edge in edges]
    done: dict[Way, list[int]] = {}
    for way in WAYS:
        churn = Churn(visits, seed, way)
        churn.run(end)
        done[way] = [bisect_left(churn.done, edge + quarter) - bisect_left(churn.done, edge) for edge in edges]
        story[way] = {
            "even": churn.slowest / churn.bound,
            "done": done[way],
            "moves": churn.moves,
            "lost": churn.lost,
        }
    for way in WAYS:
        for measure in ("static", "ideal"):
            story[way][f"of_{measure}"] = sum(done[way]) / sum(done[measure])
    return story


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="benchmarks.swarm.churn", description="Simulate machines that come and go.")
    parser.add_argument("--hours", type=float, default=32.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the whole story there, JSON")
    parser.add_argument("--picture", type=Path, help="write the picture there, SVG")
    options = parser.parse_args(argv)
    story = simulate(options.hours, options.seed)
    if options.out:
        options.out.write_text(json.dumps(story, indent=1))
    if options.picture:
        from benchmarks.swarm.churn_picture import picture

        options.picture.write_text(picture(story))
    for way in WAYS:
        found = story[way]
        sys.stdout.write(
            f"{way:8}{found['of_static']:7.1%} of static, {found['of_ideal']:6.1%} of ideal, "
            f"{sum(found['done']):,} micro-batches, {found['even']:.1%} even, "
            f"{found['moves']} moves, {found['lost']:,} micro-batches taken up again\n"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
