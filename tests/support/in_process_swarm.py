"""A swarm in this process, over real connections: for tests that need the coordinator's own exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tests.support.waits import WAIT_SECONDS
from trainer.swarm.coordinator import Coordinator, CoordinatorOptions
from trainer.swarm.data import Batches
from trainer.swarm.fault_injection import FaultInjector
from trainer.swarm.journal import read_journal
from trainer.swarm.messages import Hello
from trainer.swarm.transport import Transport
from trainer.swarm.worker import Worker


def train_in_process(
    batches: Batches,
    folder: Path,
    requested_stages: Sequence[int],
    worker_types: Mapping[int, type[Worker]] = MappingProxyType({}),
    evaluation_interval: int = 0,
) -> None:
    """Train with one worker for each requested stage, named "0", "1", ... The run's folder is `folder / "run"`.

    `worker_types`: the classes of workers that are not `Worker`, by number.
    """
    options = CoordinatorOptions(WAIT_SECONDS, peers=len(requested_stages), evaluation_interval=evaluation_interval)
    training = train(batches, folder, requested_stages, options, worker_types)
    asyncio.run(asyncio.wait_for(training, WAIT_SECONDS))


def read_sanctions(folder: Path) -> list[tuple[str, str]]:
    """Return the labels of the workers of `train_in_process` that got a first strike or left, and why."""
    lines = read_journal(folder / "run")
    labels = {line["peer"]: line["label"] for line in lines if line["kind"] == "join"}
    return [(labels[line["peer"]], line["why"]) for line in lines if line["kind"] in ("first_strike", "leave")]


async def train(
    batches: Batches,
    folder: Path,
    requested_stages: Sequence[int],
    options: CoordinatorOptions,
    worker_types: Mapping[int, type[Worker]],
) -> None:
    home, *others = transports = [Transport(folder / name) for name in ("run", *map(str, range(len(requested_stages))))]
    coordinator = Coordinator(home.folder, batches, home, options)
    workers: list[asyncio.Task[None]] = []
    try:
        await asyncio.gather(*(transport.start() for transport in transports))
        for number, (transport, stage) in enumerate(zip(others, requested_stages, strict=True)):
            hello = Hello(label=transport.folder.name, preferred_stage=stage)
            worker = worker_types.get(number, Worker)(transport, home.addresses, hello, FaultInjector(), "cpu")
            workers.append(asyncio.create_task(worker.serve()))
        await coordinator.train()
    finally:
        coordinator.journal.close()
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await asyncio.gather(*(transport.close() for transport in transports))
