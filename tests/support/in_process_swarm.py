"""A swarm in this process, over real connections: for tests that need the coordinator's own exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from trainer.swarm.coordinator import Coordinator, CoordinatorOptions
from trainer.swarm.data import Batches
from trainer.swarm.fault_injection import FaultInjector
from trainer.swarm.messages import Hello
from trainer.swarm.transport import Transport
from trainer.swarm.worker import Worker


async def train_in_process(
    batches: Batches,
    folder: Path,
    requested_stages: Sequence[int],
    timeout: float,
    worker_types: Mapping[int, type[Worker]] = MappingProxyType({}),
    evaluation_interval: int = 0,
) -> None:
    """Train with one worker for each requested stage, named "0", "1", ... The run's folder is `folder / "run"`.

    `worker_types`: the classes of workers that are not `Worker`, by number.
    """
    home, *others = transports = [Transport(folder / name) for name in ("run", *map(str, range(len(requested_stages))))]
    options = CoordinatorOptions(timeout, peers=len(requested_stages), evaluation_interval=evaluation_interval)
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
