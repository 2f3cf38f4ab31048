"""A swarm on this machine, with faults on order, held against one process that does the same work.

    python -m trainer.swarm.local --stages 2 --workers 2 --steps 60 --corpus files:PATH --chaos kill --json

Ends with 0 if every loss is that of one process to 1e-4, every (step, stage, micro-batch) was held exactly once when
the step was committed, the replicas of each stage were equal at every version, and no process was left behind.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trainer.cli.parser import Parser
from trainer.config.presets import get_preset_values
from trainer.data.dataset import Dataset, prepare_dataset
from trainer.data.sizes import parse_size
from trainer.models import load_architecture
from trainer.swarm import reference
from trainer.swarm.chaos import Fault
from trainer.swarm.config import SwarmConfig
from trainer.swarm.cuts import cut_of
from trainer.swarm.data import Batches
from trainer.swarm.journal import Line, losses
from trainer.swarm.world import Stuck, World

CLOSE = 1e-4
"""Nats that a loss may be from the reference's."""


@dataclass
class Plan:
    """What shall go wrong."""

    workers: dict[str, list[Fault]] = field(default_factory=dict)
    coordinator: list[list[Fault]] = field(default_factory=list)
    wishes: list[int | None] | None = None
    """None: so many for each stage."""
    rebalance_every: float = 300.0
    waits: dict[int, int] = field(default_factory=dict)
    """Steps before which all wait until exactly so many belong: how fast newcomers are depends on the machine."""
    replace: bool = True
    """Whether a worker that is killed is followed by a newcomer."""
    meanwhile: Callable[[World], None] = lambda world: None
    shown: Callable[[Sequence[Line]], bool] = lambda lines: True
    """Whether the journal tells of what the plan is about."""


@dataclass(frozen=True)
class Size:
    """What a plan must know."""

    stages: int
    workers: int
    steps: int
    patience: float
    seed: int

    def worker(self, stage: int, number: int = 0) -> str:
        """Return the name of a stage's worker: they start stage by stage in turn."""
        return f"worker-{number * self.stages + stage}"

    def at(self, part: float) -> int:
        """Return the step after this part of the run."""
        return int(self.steps * part)


def nothing(size: Size) -> Plan:
    return Plan()


def kill(size: Size) -> Plan:
    """A worker of each stage, one after the other, with a gradient added and not yet answered."""
    steps = [size.at((stage + 1) / (size.stages + 2)) for stage in range(size.stages)]
    faults = {
        size.worker(stage): [
            Fault(kind="kill", point="added", step=step, after=1),
            Fault(kind="kill", point="promised", step=step + 2),  # where it is left alone just then, as too slow
        ]
        for stage, step in enumerate(steps)
    }
    waits = {size.at(0.8): size.stages * size.workers}
    return Plan(faults, waits=waits, shown=lambda lines: all(replaced(lines, stage) for stage in range(size.stages)))


def replaced(lines: Sequence[Line], stage: int) -> bool:
    """Did somebody leave this stage while the run went on, and somebody join it behind that, and take part?"""
    kinds = [line["kind"] if line["kind"] == "commit" or line.get("stage") == stage else "" for line in lines]
    left = kinds.index("leave") if "leave" in kinds else len(kinds)
    joined = kinds.index("join", left) if "join" in kinds[left:] else len(kinds)
    return "commit" in kinds[joined:]


def drop(size: Size) -> Plan:
    """The answer of a worker of each stage is lost after it has added its gradient."""
    return Plan(
        {
            size.worker(stage): [Fault(kind="drop", point="added", step=size.at(part)) for part in (0.2, 0.6)]
            for stage in range(size.stages)
        }
    )


def stall(size: Size) -> Plan:
    """A worker of each stage adds a gradient when nobody waits for it any more; then one stands still, and goes."""
    plan = Plan(shown=lambda lines: any(line["kind"] == "leave" for line in lines))
    for stage in range(size.stages):
        late = size.patience * (size.stages - stage + 0.3)
        plan.workers[size.worker(stage)] = [
            Fault(kind="stall", point="adding", step=size.at(0.2 + 0.2 * stage / size.stages), seconds=late)
        ]
    still = Fault(kind="freeze", point="promised", step=size.at(0.6), seconds=size.patience * (size.stages + 2))
    plan.workers[size.worker(size.stages - 1)].append(still)
    return plan


def prepared(size: Size) -> Plan:
    """A worker dies inside PREPARE, in the first stage and in the last."""
    ends = {0: size.at(0.3), size.stages - 1: size.at(0.6)}
    return Plan({size.worker(s): [Fault(kind="kill", point="promised", step=n)] for s, n in ends.items()})


def coordinator(size: Size) -> Plan:
    """The coordinator dies at each of its points, and once while a newcomer gets its stage."""
    points = ["runs", "covered", "voted", "journaled", "committed"]
    starts = [[Fault(kind="kill", point=p, step=size.at((n + 1) / 8), after=p == "runs")] for n, p in enumerate(points)]
    starts.append([Fault(kind="kill", point="loaded", step=size.at(0.8))])
    gone = Fault(kind="kill", point="forward", step=size.at(0.78))
    return Plan({size.worker(0): [gone]}, starts)


def rebalance(size: Size) -> Plan:
    """The first stage has all workers but one of each other; later two more come that would like to be there, and one
    leaves the last stage."""
    many: list[int | None] = [0] * (size.stages * size.workers - (size.stages - 1)) + list(range(1, size.stages))
    come, go = [0, 0], [size.stages - 1]

    def meanwhile(world: World) -> None:
        if come and world.step() >= size.at(0.3):
            world.add(come.pop())
        elif go and world.step() > size.at(0.5):
            last = go.pop()
            world.process(next(name for name, stage in world.belonging().items() if stage == last)).terminate()

    waits = {size.at(0.5): len(many) + 2, size.at(0.8): len(many) + 1}
    return Plan(
        wishes=many, rebalance_every=0.5, waits=waits, meanwhile=meanwhile, shown=lambda lines: moves(lines) >= 2
    )


def moves(lines: Sequence[Line]) -> int:
    return sum(line["kind"] == "move" for line in lines)


def resize(size: Size) -> Plan:
    """It begins with one worker for each stage and grows to twelve; then some leave, some are killed, until three are
    left."""
    many, few, asked = 12, max(3, size.stages), [False, False]
    waits = {size.at(0.4): many, size.at(0.8): few}

    def meanwhile(world: World) -> None:
        stages = world.belonging() if asked[0] else {}
        if not asked[0] and world.step() > 1:
            asked[0] = True
            for _ in range(many - size.stages):
                world.add()
        elif not asked[1] and world.step() > size.at(0.4):
            asked[1] = True
            for number, name in enumerate(sorted(stages.keys() - remaining(stages, few))):
                process = world.process(name)
                process.kill() if number % 2 else process.terminate()

    def shown(lines: Sequence[Line]) -> bool:
        found = sizes(lines)
        return (found[0], max(found), found[-1]) == (size.stages, many, few)

    return Plan(wishes=list(range(size.stages)), replace=False, waits=waits, meanwhile=meanwhile, shown=shown)


def remaining(stages: Mapping[str, int], few: int) -> set[str]:
    """Choose so many workers, of each stage one at least."""
    first = {stage: name for name, stage in stages.items()}
    others = [name for name in sorted(stages) if name not in first.values()]
    return {*first.values(), *others[: few - len(first)]}


def sizes(lines: Sequence[Line]) -> list[int]:
    """Return how many members made each update."""
    return [sum(map(len, line["votes"].values())) for line in lines if line["kind"] == "commit"]


def stage_lost(size: Size) -> Plan:
    """All workers of the last stage die at once: the run goes back to its last checkpoint."""
    fault = Fault(kind="kill", point="forward", step=size.at(0.6))
    return Plan({size.worker(size.stages - 1, number): [fault] for number in range(size.workers)})


def everything(size: Size) -> Plan:
    """Faults of all kinds in random places, by the seed; workers that come and go."""
    chance = random.Random(size.seed)
    plan = Plan(rebalance_every=2.0)
    points = {
        "kill": ["forward", "added", "promised", "committing"],
        "drop": ["added"],
        "stall": ["adding"],
        "freeze": ["adding"],
    }
    for number in range(10_000):  # also those who come later
        kind = chance.choice(list(points))
        step, seconds = chance.randrange(size.steps), chance.uniform(0.5, 3) * size.patience
        fault = Fault(kind=kind, point=chance.choice(points[kind]), step=step, seconds=seconds)
        if number >= size.stages and chance.random() < 0.7:  # the first ones have none: a swarm of the dying is no test
            plan.workers[f"worker-{number}"] = [fault]
    points = ["runs", "covered", "voted", "journaled", "committed", "loaded", "checkpoint"]
    moments = sorted(chance.sample(range(size.steps), min(size.steps, max(5, size.steps // 20))))
    plan.coordinator = [[Fault(kind="kill", point=chance.choice(points), step=moment)] for moment in moments]
    return plan


CHAOS: dict[str, Callable[[Size], Plan]] = {
    "none": nothing,
    "kill": kill,
    "drop": drop,
    "stall": stall,
    "prepare": prepared,
    "coordinator": coordinator,
    "rebalance": rebalance,
    "resize": resize,
    "stage": stage_lost,
    "all": everything,
}


# --- what must hold ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    max_abs_loss_difference: float
    steps: int
    kills: int
    exact_cover: bool
    hashes_equal: bool
    left_behind: tuple[str, ...] = ()
    shown: bool = True
    """Whether what the plan is about did happen."""

    def held(self, steps: int) -> bool:
        whole = self.steps == steps and self.exact_cover and self.hashes_equal and not self.left_behind
        return whole and self.shown and self.max_abs_loss_difference < CLOSE


def exact_cover(lines: Sequence[Line], config: SwarmConfig) -> bool:
    """Was each micro-batch held exactly once, at each stage, by each commit in the journal?"""
    wanted = list(range(config.micro_batches))
    commits = [line for line in lines if line["kind"] == "commit"]
    return all(
        sorted(number for held in line["cover"][str(stage)].values() for number in held) == wanted
        for line in commits
        for stage in range(config.stages)
    )


def hashes_equal(lines: Sequence[Line]) -> bool:
    """Did all replicas of a stage have the same weights and gradient, at each version and at the end?"""
    kept = [line["votes"] for line in lines if line["kind"] == "commit"]
    kept += [line["digests"] for line in lines if line["kind"] == "end"]
    return bool(kept) and all(len(set(digests.values())) == 1 for stages in kept for digests in stages.values())


def largest_difference(found: Sequence[float], config: SwarmConfig, dataset: Path) -> float:
    """Return how far a loss is from that of the same step in one process, at most."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as the swarm's own processes: small work is slower on more
    try:
        wanted = reference.losses(config, Batches(Dataset.open(dataset), config), len(found))
        return max((abs(mine - other) for mine, other in zip(found, wanted, strict=True)), default=float("inf"))
    finally:
        torch.set_num_threads(before)


def compare(
    config: SwarmConfig,
    dataset: Path,
    workers: int,
    chaos: str,
    patience: float = 3.0,
    seconds: float = 600,
    out: Path | None = None,
    **how: Any,
) -> tuple[Result, list[Line]]:
    """Run a swarm with faults, and one process without any. Raise Stuck if the swarm does not end in time.

    `how`: more of `World`.
    """
    plan = CHAOS[chaos](Size(config.stages, workers, config.steps, patience, config.seed))
    wishes = plan.wishes or [stage for _ in range(workers) for stage in range(config.stages)]
    faults = (plan.workers, plan.coordinator)
    how = {"rebalance_every": plan.rebalance_every, "replace": plan.replace, "waits": plan.waits, **how}
    world = World(config, dataset, wishes, *faults, patience, out=out, **how)
    with world:
        lines = world.run(seconds, plan.meanwhile)
        left = tuple(world.left_behind())
    found = losses(lines)
    difference = largest_difference(found, config, dataset)
    cover, equal = exact_cover(lines, config), hashes_equal(lines)
    return Result(difference, len(found), world.kills, cover, equal, left, plan.shown(lines)), lines


# --- the command ------------------------------------------------------------------------------------------------------


def configured(args: argparse.Namespace, dataset: Dataset) -> SwarmConfig:
    """Return the run's configuration: the preset's sizes, a block for each stage at least."""
    values = get_preset_values(args.preset)
    length = int(values["train.sequence_length"])
    cut_of(args.arch)  # says so if it cannot be cut
    depth = max(int(values["model.depth"]), args.stages)
    model = load_architecture(args.arch).Config.sized(depth, dataset.tokenizer.vocabulary_size, length)
    return SwarmConfig(
        arch=args.arch,
        model=dict(vars(model)),
        stages=args.stages,
        steps=args.steps,
        seed=args.seed,
        micro_batch=max(1, int(values["train.batch"]) // 4),
        micro_batches=args.micro_batches,
        sequence_length=length,
        checkpoint_every=max(1, min(50, args.steps // 4)),
    )


def parser() -> Parser:
    flags = Parser(
        prog="python -m trainer.swarm.local", description="A swarm on this machine, held against one process."
    )
    flags.add_argument("--stages", type=int, default=2)
    flags.add_argument("--workers", type=int, default=2, help="for each stage")
    flags.add_argument("--steps", type=int, default=20)
    flags.add_argument("--arch", default="gpt")
    flags.add_argument("--preset", default="tiny", help="whose sizes: a line of `dailytrain presets`")
    flags.add_argument("--corpus", required=True, help="for example files:PATH")
    flags.add_argument("--micro-batches", type=int, default=8, help="of a step")
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--chaos", choices=CHAOS, default="none", help="what shall go wrong")
    flags.add_argument("--patience", type=float, default=3.0, help="seconds after which a peer counts as lost")
    flags.add_argument("--seconds", type=float, default=900, help="after which it counts as stuck")
    flags.add_argument("--out", type=Path, help="folder to keep journal, checkpoints and logs in")
    flags.add_argument("--json", action="store_true", help="print JSON")
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        if min(args.stages, args.workers, args.steps, args.micro_batches) < 1:
            raise ValueError("--stages, --workers, --steps and --micro-batches must be at least 1")
        return run(args)
    except (ValueError, OSError, Stuck) as error:
        print(f"swarm: {error}", file=sys.stderr)  # noqa: T201
        return 1 if isinstance(error, Stuck) else 2


def run(args: argparse.Namespace) -> int:
    values: dict[str, Any] = dict(get_preset_values(args.preset))
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="swarm-") as folder:
        place = Path(folder) / "dataset"
        dataset = prepare_dataset(
            args.corpus, values["tokenizer"], place, parse_size(values.get("limit_bytes", "1GiB"))
        )
        config = configured(args, dataset)
        result, lines = compare(config, place, args.workers, args.chaos, args.patience, args.seconds, args.out)
    fields = ("max_abs_loss_difference", "steps", "kills", "exact_cover", "hashes_equal")
    if args.json:
        print(json.dumps({name: getattr(result, name) for name in fields}))  # noqa: T201
    print(told(result, lines, time.monotonic() - started), file=sys.stderr if args.json else sys.stdout)
    for command in result.left_behind:
        print(f"swarm: left behind: {command}", file=sys.stderr)  # noqa: T201
    return 0 if result.held(args.steps) else 1


def told(result: Result, lines: Sequence[Line], seconds: float) -> str:
    """Return the outcome for a person."""
    count = {kind: sum(line["kind"] == kind for line in lines) for kind in ("join", "leave", "move", "rollback")}
    return (
        f"{result.steps} steps in {seconds:.0f} s; {result.kills} processes killed, {count['join']} joins, "
        f"{count['leave']} leaves, {count['move']} moves, {count['rollback']} times back to a checkpoint\n"
        f"largest difference of a loss from one process: {result.max_abs_loss_difference:.1e}\n"
        f"every micro-batch held exactly once: {result.exact_cover}; replicas equal: {result.hashes_equal}"
        + ("" if result.shown else "\nthe run was over before all that was planned had happened: take more steps")
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was started is cleared away
    sys.exit(main())
