"""Simulate 32 hours of peers that join and leave, on a virtual clock, with the real router and the real rebalancer.

    python -m benchmarks.swarm.simulation [--hours 32] [--seed 1] [--out FILE.json] [--picture FILE.svg]

Peers of four speeds join and leave (more by day than by night; sometimes a third leaves at once), load their stage's
state before they work, and process tasks one after another. Micro-batches travel through the stages; each caller has
its own router and learns speeds from finished tasks. A peer that leaves loses its tasks, and later stages repeat
theirs. Four policies are compared on the same trace:

    with       newcomers join the stage that needs them most; every five minutes one peer may move
    without    newcomers join the stage that needs them most, and stay there
    static     each peer stays at the stage that is best over its whole life, computed with knowledge of the future
    ideal      after each change all peers move to their best stages at once, free of charge, by their true speeds

`even` is the ratio to the bound of all assignments: the sum of all speeds divided by the sum of all costs.

Not simulated: the ends of steps, which cost the same with each policy, and the network's latency.
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

from benchmarks.swarm.churn_best import COSTS, compute_slowest_rate, find_best_fixed_stages, place_evenly
from benchmarks.swarm.churn_trace import HOUR, Visit, generate_visits
from trainer.swarm.rebalance import REBALANCE_SECONDS, choose_stage, propose_move
from trainer.swarm.router import NoPeersError, Router

LOADING = 60.0  # Seconds to load a stage's state before a peer works there
NOISE = 0.1  # Standard deviation of the logarithm of a task's duration
QUEUED = 3  # Micro-batches in flight for each peer
Policy = Literal["with", "without", "static", "ideal"]
POLICIES: tuple[Policy, ...] = ("with", "without", "static", "ideal")


@dataclass
class Peer:
    name: str
    speed: float
    stage: int
    router: Router  # To the next stage
    is_ready: bool = False  # Whether it has loaded its stage
    free_at: float = 0.0  # When it has finished its queue


@dataclass(eq=False)
class MicroBatch:
    path: list[Peer] = field(default_factory=list)
    """The peers that hold it, from the first stage on; the last one works on it."""
    attempt: int = 0  # Increases when a peer of the path is lost: earlier tasks no longer count


class ChurnSimulation:
    """Simulation of one policy on a trace."""

    def __init__(self, visits: Sequence[Visit], seed: int, policy: Policy) -> None:
        self.rng, self.policy = random.Random(seed), policy
        self.now, self.number, self.moves, self.lost = 0.0, itertools.count(), 0, 0
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.peers: dict[str, Peer] = {}
        self.first_stage, self.estimates = Router(seed), Router(seed)
        """The coordinator's router to the first stage, and its estimates of all speeds."""
        self.in_flight: dict[MicroBatch, None] = {}
        self.waiting: list[tuple[MicroBatch, int]] = []
        """Micro-batches whose next stage has no peers."""
        self.finished_at: list[float] = []
        self.slowest, self.bound = 0.0, 0.0
        """Micro-batches that the slowest stage could have finished so far, and the bound of all assignments."""
        for visit in visits:
            self.schedule(visit.start, self.on_arrival, visit)
            self.schedule(visit.stop, self.on_departure, visit.name)
        self.fixed = find_best_fixed_stages(visits) if policy == "static" else {}
        if policy == "with":
            self.schedule(REBALANCE_SECONDS, self.rebalance_periodically)

    def schedule(self, when: float, action: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self.events, (when, next(self.number), action, arguments))

    def run(self, end: float) -> None:
        since = 0.0
        while self.events and self.events[0][0] < end:
            self.now, _, action, arguments = heapq.heappop(self.events)
            if action in (self.on_loaded, self.on_departure, self.rebalance_periodically):
                self.record_balance(self.now - since)
                since = self.now
            action(*arguments)

    def record_balance(self, seconds: float) -> None:
        """Record for this period how evenly the peers are placed, by their true speeds."""
        stages = dict.fromkeys(COSTS, 0.0)
        for peer in self.peers.values():
            stages[peer.stage] += peer.speed
        self.slowest += seconds * min(speed / COSTS[stage] for stage, speed in stages.items())
        self.bound += seconds * sum(stages.values()) / sum(COSTS.values())

    # --- membership ---

    def estimate_speeds(self) -> dict[int, dict[str, float]]:
        """Return the estimated speeds of the peers that work at or load each stage."""
        stages: dict[int, dict[str, float]] = {stage: {} for stage in COSTS}
        for peer in self.peers.values():
            stages[peer.stage][peer.name] = self.estimates.get_throughput(peer.name)
        return stages

    def on_arrival(self, visit: Visit) -> None:
        self.estimates.add(visit.name)
        stage = self.fixed.get(visit.name, choose_stage(self.estimate_speeds(), costs=COSTS))
        self.join_stage(visit.name, visit.speed, stage, self.now + LOADING)
        self.place_ideally()

    def join_stage(self, name: str, speed: float, stage: int, when: float) -> None:
        peer = Peer(name, speed, stage, Router(self.rng.randrange(2**32)), free_at=when)
        self.peers[name] = peer
        self.schedule(when, self.on_loaded, peer)

    def on_loaded(self, peer: Peer) -> None:
        """Make a peer that has loaded its stage available to callers, unless it has left."""
        if self.peers.get(peer.name) is not peer:
            return
        peer.is_ready = True
        for caller in self.list_routers_to(peer.stage):
            caller.add(peer.name, peer.speed if self.policy == "ideal" else None)
        for other in self.peers.values():
            if other.is_ready and other.stage == peer.stage + 1:
                peer.router.add(other.name, other.speed if self.policy == "ideal" else None)
        waiting, self.waiting = self.waiting, []
        for batch, attempt in waiting:
            self.send_to_next_stage(batch, attempt)
        self.start_micro_batches()

    def list_routers_to(self, stage: int) -> list[Router]:
        """Return the routers that lead to a stage."""
        if stage == 0:
            return [self.first_stage]
        holders = [peer for batch in self.in_flight for peer in batch.path]  # some may have moved on since
        at_work = [peer for peer in self.peers.values() if peer.is_ready]
        return list(dict.fromkeys(peer.router for peer in (*at_work, *holders) if peer.stage == stage - 1))

    def remove_peer(self, name: str) -> Peer | None:
        """Remove a peer from its stage. It finishes its queue."""
        peer = self.peers.pop(name, None)
        for caller in self.list_routers_to(peer.stage) if peer is not None else ():
            caller.drop(name)
        return peer

    def on_departure(self, name: str) -> None:
        """Remove a peer and its micro-batches, which resume from the stage before it."""
        self.remove_peer(name)
        self.estimates.drop(name)
        for batch in self.in_flight:
            held = next((n for n, peer in enumerate(batch.path) if peer.name == name), None)
            if held is not None:
                del batch.path[held:]
                batch.attempt += 1
                self.lost += 1
                self.schedule(self.now, self.send_to_next_stage, batch, batch.attempt)
        if self.policy == "with" and min(map(len, self.estimate_speeds().values())) < 2:
            self.rebalance()
        self.place_ideally()

    def rebalance_periodically(self) -> None:
        self.rebalance()
        self.schedule(self.now + REBALANCE_SECONDS, self.rebalance_periodically)

    def rebalance(self) -> None:
        """Make the proposed move: the peer finishes its queue, then loads its new stage."""
        if (move := propose_move(self.estimate_speeds(), costs=COSTS)) is not None:
            peer = self.remove_peer(move.peer)
            assert peer is not None
            self.moves += 1
            self.join_stage(peer.name, peer.speed, move.target, max(self.now, peer.free_at) + LOADING)

    def place_ideally(self) -> None:
        """Move all peers to their best stages if the policy is ideal and the gain is above 1%."""
        if self.policy != "ideal":
            return
        speeds = {peer.name: peer.speed for peer in self.peers.values()}
        target, now = place_evenly(speeds), {peer.name: peer.stage for peer in self.peers.values()}
        if compute_slowest_rate(speeds, target) < 1.01 * compute_slowest_rate(speeds, now):
            return
        for name in [name for name, stage in target.items() if now[name] != stage]:
            peer = self.remove_peer(name)
            assert peer is not None
            self.moves += 1
            self.join_stage(name, peer.speed, target[name], self.now if peer.is_ready else peer.free_at)

    # --- micro-batches ---

    def start_micro_batches(self) -> None:
        """Keep enough micro-batches in flight."""
        while len(self.in_flight) < QUEUED * len(self.peers):
            batch = MicroBatch()
            self.in_flight[batch] = None
            self.send_to_next_stage(batch, 0)

    def send_to_next_stage(self, batch: MicroBatch, attempt: int) -> None:
        """Send a micro-batch to a peer of its next stage."""
        if batch.attempt != attempt:
            return
        stage = len(batch.path)
        router = batch.path[-1].router if batch.path else self.first_stage
        try:
            name = router.pick(COSTS[stage], self.now)
        except NoPeersError:
            self.waiting.append((batch, attempt))
            return
        peer = self.peers[name]
        seconds = COSTS[stage] / peer.speed * self.rng.lognormvariate(0, NOISE)
        peer.free_at = max(peer.free_at, self.now) + seconds
        batch.path.append(peer)
        self.schedule(peer.free_at, self.on_finished, batch, attempt, router, seconds)

    def on_finished(self, batch: MicroBatch, attempt: int, router: Router, seconds: float) -> None:
        if batch.attempt != attempt:
            return
        stage = len(batch.path) - 1
        for observer in (router, self.estimates):
            observer.observe(batch.path[-1].name, COSTS[stage], seconds)
        if stage + 1 < len(COSTS):
            self.send_to_next_stage(batch, attempt)
            return
        self.finished_at.append(self.now)
        del self.in_flight[batch]
        self.start_micro_batches()


# --- the comparison ---


def simulate_policies(hours: float, seed: int) -> dict[str, Any]:
    """Return the results in quarters of an hour, and in one number for each policy."""
    visits, end, quarter = generate_visits(hours, seed), hours * HOUR, HOUR / 4
    edges = [quarter * n for n in range(round(end / quarter))]
    story: dict[str, Any] = {"hours": hours, "seed": seed, "visits": len(visits)}
    story["peers"] = [sum(v.start <= edge + quarter / 2 < v.stop for v in visits) for edge in edges]
    done: dict[Policy, list[int]] = {}
    for policy in POLICIES:
        simulation = ChurnSimulation(visits, seed, policy)
        simulation.run(end)
        times = simulation.finished_at
        done[policy] = [bisect_left(times, edge + quarter) - bisect_left(times, edge) for edge in edges]
        story[policy] = {
            "even": simulation.slowest / simulation.bound,
            "done": done[policy],
            "moves": simulation.moves,
            "lost": simulation.lost,
        }
    for policy in POLICIES:
        for measure in ("static", "ideal"):
            story[policy][f"of_{measure}"] = sum(done[policy]) / sum(done[measure])
    return story


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="benchmarks.swarm.churn", description="Simulate peers that join and leave.")
    parser.add_argument("--hours", type=float, default=32.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="file for the results, JSON")
    options = parser.parse_args(argv)
    story = simulate_policies(options.hours, options.seed)
    if options.out:
        options.out.write_text(json.dumps(story, indent=1))
    for policy in POLICIES:
        result = story[policy]
        sys.stdout.write(
            f"{policy:8}{result['of_static']:7.1%} of static, {result['of_ideal']:6.1%} of ideal, "
            f"{sum(result['done']):,} micro-batches, {result['even']:.1%} even, "
            f"{result['moves']} moves, {result['lost']:,} micro-batches repeated\n"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
