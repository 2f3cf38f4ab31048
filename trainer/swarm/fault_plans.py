"""Fault plans for a local swarm: which processes fail, when and how."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trainer.swarm.fault_injection import Fault
from trainer.swarm.journal import JournalLine
from trainer.swarm.local_swarm import FaultPlan, LocalSwarm


@dataclass(frozen=True)
class SwarmSize:
    stages: int
    workers: int  # Workers per stage at the start
    steps: int
    timeout: float
    seed: int

    def name_worker(self, stage: int, number: int = 0) -> str:
        """Return the name of a stage's worker. Workers start in the order of the stages, in turn."""
        return f"worker-{number * self.stages + stage}"

    def compute_step(self, fraction: float) -> int:
        """Return the step after this fraction of the run."""
        return int(self.steps * fraction)


def plan_kill(size: SwarmSize) -> FaultPlan:
    """Kill a worker of each stage, one after the other, between accumulating a gradient and answering."""
    steps = [size.compute_step((stage + 1) / (size.stages + 2)) for stage in range(size.stages)]
    faults = {
        size.name_worker(stage): [
            Fault(kind="kill", point="added", step=step, after=1),
            Fault(kind="kill", point="frozen", step=step + 2),  # if it was banned as too slow until then
        ]
        for stage, step in enumerate(steps)
    }
    members = {size.compute_step(0.8): size.stages * size.workers}

    def has_happened(lines: Sequence[JournalLine]) -> bool:
        return all(has_replacement(lines, stage) for stage in range(size.stages))

    return FaultPlan(faults, required_members=members, has_happened=has_happened)


def has_replacement(lines: Sequence[JournalLine], stage: int) -> bool:
    """Return whether a worker left this stage, another joined it later, and a step followed."""
    kinds = [line["kind"] if line["kind"] == "commit" or line.get("stage") == stage else "" for line in lines]
    left = kinds.index("leave") if "leave" in kinds else len(kinds)
    joined = kinds.index("join", left) if "join" in kinds[left:] else len(kinds)
    return "commit" in kinds[joined:]


def plan_drop(size: SwarmSize) -> FaultPlan:
    """Lose a reply of a worker of each stage after it has accumulated its gradient."""
    return FaultPlan(
        {
            size.name_worker(stage): [Fault(kind="drop", point="added", step=size.compute_step(f)) for f in (0.2, 0.6)]
            for stage in range(size.stages)
        }
    )


def plan_stall(size: SwarmSize) -> FaultPlan:
    """Have a worker of each stage accumulate a gradient after its caller's timeout; then freeze one until it leaves."""
    workers: dict[str, list[Fault]] = {}
    for stage in range(size.stages):
        late = size.timeout * (size.stages - stage + 0.3)
        step = size.compute_step(0.2 + 0.2 * stage / size.stages)
        workers[size.name_worker(stage)] = [Fault(kind="stall", point="adding", step=step, seconds=late)]
    seconds = size.timeout * (size.stages + 2)
    freeze = Fault(kind="freeze", point="frozen", step=size.compute_step(0.6), seconds=seconds)
    workers[size.name_worker(size.stages - 1)].append(freeze)
    return FaultPlan(workers, has_happened=lambda lines: any(line["kind"] == "leave" for line in lines))


def plan_prepare(size: SwarmSize) -> FaultPlan:
    """Kill a worker inside PREPARE, in the first stage and in the last."""
    steps = {0: size.compute_step(0.3), size.stages - 1: size.compute_step(0.6)}
    return FaultPlan({size.name_worker(s): [Fault(kind="kill", point="frozen", step=n)] for s, n in steps.items()})


def plan_coordinator(size: SwarmSize) -> FaultPlan:
    """Kill the coordinator at each of its points, and once while a new worker loads its stage."""
    points = ["runs", "covered", "voted", "journaled", "committed"]
    starts = [
        [Fault(kind="kill", point=point, step=size.compute_step((number + 1) / 8), after=point == "runs")]
        for number, point in enumerate(points)
    ]
    starts.append([Fault(kind="kill", point="loaded", step=size.compute_step(0.8))])
    killed = Fault(kind="kill", point="forward", step=size.compute_step(0.78))
    return FaultPlan({size.name_worker(0): [killed]}, starts)


def plan_rebalance(size: SwarmSize) -> FaultPlan:
    """Start with one worker at each stage but the first, which has all others. Later two more join the first stage,
    and one leaves the last."""
    count = size.stages * size.workers
    stages: list[int | None] = [0] * (count - (size.stages - 1)) + list(range(1, size.stages))
    joins, leaves = [0, 0], [size.stages - 1]

    def on_tick(swarm: LocalSwarm) -> None:
        if joins and swarm.count_steps() >= size.compute_step(0.3):
            swarm.add_worker(joins.pop())
        elif not joins and leaves and swarm.count_steps() > size.compute_step(0.5):
            stage = leaves.pop()
            members = swarm.get_member_stages()
            swarm.find_process(next(name for name, number in members.items() if number == stage)).terminate()

    return FaultPlan(
        requested_stages=stages,
        rebalance_seconds=0.5,
        required_members={size.compute_step(0.5): count + 2, size.compute_step(0.8): count + 1},
        on_tick=on_tick,
        has_happened=lambda lines: sum(line["kind"] == "move" for line in lines) >= 2,
    )


def plan_resize(size: SwarmSize) -> FaultPlan:
    """Start with one worker per stage, grow to twelve, then stop some and kill some until three are left."""
    most, least, done = 12, max(3, size.stages), [False, False]

    def on_tick(swarm: LocalSwarm) -> None:
        stages = swarm.get_member_stages() if done[0] else {}
        if not done[0] and swarm.count_steps() > 1:
            done[0] = True
            for _ in range(most - size.stages):
                swarm.add_worker()
        elif done[0] and not done[1] and swarm.count_steps() > size.compute_step(0.4):
            done[1] = True
            for number, name in enumerate(sorted(stages.keys() - choose_remaining(stages, least))):
                process = swarm.find_process(name)
                process.kill() if number % 2 else process.terminate()

    def has_happened(lines: Sequence[JournalLine]) -> bool:
        counts = count_members(lines)
        return (counts[0], max(counts), counts[-1]) == (size.stages, most, least)

    return FaultPlan(
        requested_stages=list(range(size.stages)),
        replace_killed=False,
        required_members={size.compute_step(0.4): most, size.compute_step(0.8): least},
        on_tick=on_tick,
        has_happened=has_happened,
    )


def choose_remaining(stages: Mapping[str, int], count: int) -> set[str]:
    """Choose `count` workers, at least one of each stage."""
    first = {stage: name for name, stage in stages.items()}
    others = [name for name in sorted(stages) if name not in first.values()]
    return {*first.values(), *others[: count - len(first)]}


def count_members(lines: Sequence[JournalLine]) -> list[int]:
    """Return the number of members that made each update."""
    return [sum(map(len, line["votes"].values())) for line in lines if line["kind"] == "commit"]


def plan_stage_lost(size: SwarmSize) -> FaultPlan:
    """Kill all workers of the last stage at once, so that the run returns to its last checkpoint."""
    fault = Fault(kind="kill", point="forward", step=size.compute_step(0.6))
    return FaultPlan({size.name_worker(size.stages - 1, number): [fault] for number in range(size.workers)})


def plan_everything(size: SwarmSize) -> FaultPlan:
    """Inject faults of all kinds at random points, by the seed."""
    rng = random.Random(size.seed)
    workers: dict[str, list[Fault]] = {}
    points = {
        "kill": ["forward", "added", "frozen", "committing"],
        "drop": ["added"],
        "stall": ["adding"],
        "freeze": ["adding"],
    }
    for number in range(10_000):  # includes workers that join later
        kind = rng.choice(list(points))
        step, seconds = rng.randrange(size.steps), rng.uniform(0.5, 3) * size.timeout
        fault = Fault(kind=kind, point=rng.choice(points[kind]), step=step, seconds=seconds)
        if number >= size.stages and rng.random() < 0.7:  # the first worker of each stage has no faults
            workers[f"worker-{number}"] = [fault]
    coordinator_points = ["runs", "covered", "voted", "journaled", "committed", "loaded", "checkpoint"]
    steps = sorted(rng.sample(range(size.steps), min(size.steps, max(5, size.steps // 20))))
    coordinator = [[Fault(kind="kill", point=rng.choice(coordinator_points), step=step)] for step in steps]
    return FaultPlan(workers, coordinator, rebalance_seconds=2.0)


FAULT_PLANS: dict[str, Callable[[SwarmSize], FaultPlan]] = {
    "none": lambda size: FaultPlan(),
    "kill": plan_kill,
    "drop": plan_drop,
    "stall": plan_stall,
    "prepare": plan_prepare,
    "coordinator": plan_coordinator,
    "rebalance": plan_rebalance,
    "resize": plan_resize,
    "stage": plan_stage_lost,
    "all": plan_everything,
}
