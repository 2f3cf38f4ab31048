"""A small swarm over real sockets, all in this process: what its model says on the way, and machines that leave.

The worker's and the coordinator's own loops, each with its own daemon; `test_swarm_faults` has them as processes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from tests.support.swarm_chain import tiny
from trainer.data.dataset import Dataset
from trainer.swarm import wire
from trainer.swarm.asking import sample
from trainer.swarm.chaos import Chaos
from trainer.swarm.config import SwarmConfig
from trainer.swarm.coordinator import Coordinator
from trainer.swarm.data import Batches
from trainer.swarm.journal import losses, read
from trainer.swarm.reference import Reference
from trainer.swarm.transport import Transport
from trainer.swarm.worker import Worker

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")

STEPS, PATIENCE = 4, 120.0
PROMPT = [5, 6, 7]


class Curious(Coordinator):
    """Goes on with a prompt wherever it evaluates."""

    said: list[list[int]]

    async def evaluate(self) -> None:
        await super().evaluate()
        self.said.append(await sample(self.top, self.config, self.version, self.patience, PROMPT, 8))


@contextlib.asynccontextmanager
async def connected(folder: Path, count: int) -> AsyncIterator[list[Transport]]:
    transports = [Transport(folder / str(number)) for number in range(count)]
    try:
        await asyncio.gather(*(transport.start() for transport in transports))
        yield transports
    finally:
        await asyncio.gather(*(transport.close() for transport in transports))


def worker(transport: Transport, coordinator: Transport, stage: int) -> Worker:
    hello = wire.Hello(run="", label=f"at {stage}", wish=stage)
    return Worker(transport, coordinator.addresses[0], hello, Chaos(), "cpu")


@pytest.fixture
def batches(dataset_folder: Path) -> Batches:
    dataset = Dataset.open(dataset_folder)
    return Batches(dataset, tiny(dataset, steps=STEPS))


def evaluated(reference: Reference, batches: Batches) -> float:
    pairs = list(batches.dev(32))
    nats = sum(float(reference.objective(x, y).detach()) for x, y in pairs)
    return nats / sum(int((y >= 0).sum()) for _, y in pairs)


@torch.no_grad()
def continued(reference: Reference, config: SwarmConfig) -> list[int]:
    text = list(PROMPT)
    for _ in range(8):
        text.append(int(reference.model(torch.tensor([text[-config.sequence_length :]]))[0, -1].argmax()))
    return text


def test_evaluations_and_samples_are_those_of_one_process(tmp_path: Path, batches: Batches) -> None:
    async def trained() -> list[list[int]]:
        async with connected(tmp_path, 3) as (mine, *others):
            leader = Curious(
                tmp_path / "run", batches.config, batches, mine, patience=PATIENCE, peers=2, evaluate_every=2
            )
            leader.said = []
            workers = [worker(transport, mine, stage) for stage, transport in enumerate(others)]
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(leader.train(), *(one.serve() for one in workers))
            assert {one.why for one in workers} == {"The run is finished."}
            return leader.said

    said = asyncio.run(trained())
    lines, reference = read(tmp_path / "run"), Reference(batches.config, batches)
    seen = {line["step"]: line["loss"] for line in lines if line["kind"] == "evaluation"}
    assert list(seen) == [0, 2]
    for loss, step in zip(losses(lines), range(STEPS), strict=True):
        if step in seen:
            assert seen[step] == pytest.approx(evaluated(reference, batches), abs=1e-5)
            assert said.pop(0) == continued(reference, batches.config)
        assert loss == pytest.approx(reference.step(), abs=1e-4)


def test_a_worker_that_is_told_to_go_leaves_between_two_steps(tmp_path: Path, dataset_folder: Path) -> None:
    """`leave` is what SIGTERM does. It is told in the first step, and its share is not run again."""
    dataset, steps = Dataset.open(dataset_folder), 60
    batches = Batches(dataset, tiny(dataset, steps=steps))

    async def trained() -> str:
        async with connected(tmp_path, 4) as (mine, *others):
            leader = Coordinator(tmp_path / "run", batches.config, batches, mine, patience=PATIENCE, peers=3)
            workers = [worker(transport, mine, stage) for stage, transport in zip((0, 1, 1), others, strict=True)]
            going = workers[-1]

            async def go() -> None:
                while not going.is_member(going.transport.peer):
                    await asyncio.sleep(0.01)
                going.leave()

            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(leader.train(), go(), *(one.serve() for one in workers))
            return going.why

    assert asyncio.run(trained()) == "This machine has left the run."
    lines = read(tmp_path / "run")
    left = [line for line in lines if line["kind"] == "leave"]
    assert [(line["stage"], line["why"]) for line in left] == [(1, "wants to leave")]
    reference = Reference(batches.config, batches)
    assert losses(lines) == pytest.approx([reference.step() for _ in range(steps)], abs=1e-4)
