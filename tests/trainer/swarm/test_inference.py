"""Evaluation, sampled tokens and leaving, with a small swarm over real sockets in this process.

The worker and the coordinator run their own loops, each with its own daemon; `test_faults` runs them as processes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from tests.support.swarm_chain import build_tiny_config
from trainer.data.dataset import Dataset
from trainer.swarm import messages
from trainer.swarm.comparison import SingleProcessRun
from trainer.swarm.config import SwarmConfig
from trainer.swarm.coordinator import Coordinator, CoordinatorOptions
from trainer.swarm.data import Batches
from trainer.swarm.fault_injection import FaultInjector
from trainer.swarm.journal import get_losses, read_journal
from trainer.swarm.transport import Transport
from trainer.swarm.worker import Worker

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")

STEPS, TIMEOUT = 4, 600.0
PROMPT, TOKENS = [5, 6, 7], 8


class SamplingCoordinator(Coordinator):
    """A coordinator that samples at each evaluation."""

    samples: list[list[int]]

    async def evaluate(self) -> None:
        await super().evaluate()
        text = self.build_text()
        text.add_tokens(PROMPT)
        for _ in range(TOKENS):
            text.add_tokens([int((await text.predict()).argmax())])
        assert (text.step, text.start, len(text.path)) == (self.version, len(text.tokens) - 1, 2)
        self.samples.append(text.tokens)


@contextlib.asynccontextmanager
async def connect(folder: Path, count: int) -> AsyncIterator[list[Transport]]:
    transports = [Transport(folder / str(number)) for number in range(count)]
    try:
        await asyncio.gather(*(transport.start() for transport in transports))
        yield transports
    finally:
        await asyncio.gather(*(transport.close() for transport in transports))


def build_worker(transport: Transport, coordinator: Transport, stage: int) -> Worker:
    hello = messages.Hello(label=f"at {stage}", preferred_stage=stage)
    return Worker(transport, coordinator.addresses, hello, FaultInjector(), "cpu")


@pytest.fixture(params=["gpt", "nanogpt"])
def batches(dataset_folder: Path, request: pytest.FixtureRequest) -> Batches:
    dataset = Dataset.open(dataset_folder)
    return Batches(dataset, build_tiny_config(dataset, request.param, steps=STEPS))


def evaluate_reference(reference: SingleProcessRun, batches: Batches) -> float:
    pairs = list(batches.iter_dev(32))
    nats = sum(float(reference.objective(x, y).detach()) for x, y in pairs)
    return nats / sum(int((y >= 0).sum()) for _, y in pairs)


@torch.no_grad()
def sample_reference(reference: SingleProcessRun, config: SwarmConfig) -> list[int]:
    text = list(PROMPT)
    for _ in range(TOKENS):
        text.append(int(reference.model(torch.tensor([text[-config.sequence_length :]]))[0, -1].argmax()))
    return text


@pytest.mark.slow
def test_evaluations_and_samples_equal_single_process(tmp_path: Path, batches: Batches) -> None:
    async def train() -> list[list[int]]:
        async with connect(tmp_path, 3) as (own, *others):
            options = CoordinatorOptions(timeout=TIMEOUT, peers=2, evaluation_interval=2)
            coordinator = SamplingCoordinator(tmp_path / "run", batches, own, options)
            coordinator.samples = []
            workers = [build_worker(transport, own, stage) for stage, transport in enumerate(others)]
            async with asyncio.timeout(TIMEOUT):
                await asyncio.gather(coordinator.train(), *(one.serve() for one in workers))
            assert {one.reason for one in workers} == {"The run is finished."}
            return coordinator.samples

    samples = asyncio.run(train())
    lines, reference = read_journal(tmp_path / "run"), SingleProcessRun(batches.config, batches)
    seen = {line["step"]: line["loss"] for line in lines if line["kind"] == "evaluation"}
    assert list(seen) == [0, 2]
    for loss, step in zip(get_losses(lines), range(STEPS), strict=True):
        if step in seen:
            assert seen[step] == pytest.approx(evaluate_reference(reference, batches), abs=1e-5)
            assert samples.pop(0) == sample_reference(reference, batches.config)
        assert loss == pytest.approx(reference.run_step(), abs=1e-4)


@pytest.mark.slow
def test_leaving_worker_goes_between_two_steps(tmp_path: Path, dataset_folder: Path) -> None:
    """`leave` is the handler of SIGTERM. It is called in the first step, whose micro-batches do not run again."""
    dataset, steps = Dataset.open(dataset_folder), 60
    batches = Batches(dataset, build_tiny_config(dataset, steps=steps))

    async def train() -> str:
        async with connect(tmp_path, 4) as (own, *others):
            options = CoordinatorOptions(timeout=TIMEOUT, peers=3)
            coordinator = Coordinator(tmp_path / "run", batches, own, options)
            workers = [build_worker(transport, own, stage) for stage, transport in zip((0, 1, 1), others, strict=True)]
            going = workers[-1]

            async def go() -> None:
                while not going.is_member(going.transport.peer):
                    await asyncio.sleep(0.01)
                going.leave()

            async with asyncio.timeout(TIMEOUT):
                await asyncio.gather(coordinator.train(), go(), *(one.serve() for one in workers))
            return going.reason

    assert asyncio.run(train()) == "This machine has left the run."
    lines = read_journal(tmp_path / "run")
    left = [line for line in lines if line["kind"] == "leave"]
    assert [(line["stage"], line["why"]) for line in left] == [(1, "wants to leave")]
    reference = SingleProcessRun(batches.config, batches)
    assert get_losses(lines) == pytest.approx([reference.run_step() for _ in range(steps)], abs=1e-4)
