"""Text from a running swarm: `dailytrain swarm sample` and what the coordinator answers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.support.swarm_chain import build_tiny_config
from trainer.cli import main as dailytrain
from trainer.data.dataset import Dataset
from trainer.protocol import SwarmSampleOrder
from trainer.swarm import messages, sample_main
from trainer.swarm.frames import CallRefusedError
from trainer.swarm.local_swarm import FaultPlan, LocalSwarm
from trainer.swarm.sample_main import describe_refusal, drop_control_characters
from trainer.swarm.sampling import SamplingService, SwarmText

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")

STEPS = 100_000  # more than it trains while it is sampled


@pytest.fixture(scope="module")
def swarm(dataset_folder: Path) -> Iterator[LocalSwarm]:
    """A swarm of two processes for each of two stages, in training."""
    config = build_tiny_config(Dataset.open(dataset_folder), steps=STEPS, checkpoint_every=STEPS, micro_batches=32)
    with LocalSwarm(config, dataset_folder, [0, 1, 0, 1], FaultPlan(), timeout=30) as running:
        running.wait_for_address()
        while not running.count_steps():
            running.replace_killed()
        yield running


def sample(*arguments: object) -> int:
    return dailytrain.main(["swarm", "sample", *map(str, arguments)])


@pytest.mark.slow
def test_sample_of_running_swarm_prints_text_as_training_goes_on(
    swarm: LocalSwarm, capsys: pytest.CaptureFixture[str]
) -> None:
    before = swarm.count_steps()
    assert sample(swarm.folder, "--prompt", "The train", "--max-tokens", 24) == 0
    out, err = capsys.readouterr()
    assert out.startswith("The train")
    assert len(out) > len("The train\n")
    tokens, first = re.match(r"(\d+) tokens, weights of step (\d+)", err).groups()  # type: ignore[union-attr]
    assert int(tokens) <= 24
    assert int(first) >= before
    # Longer than a row, and by address.
    assert sample(swarm.wait_for_address(), "--prompt", "one two three " * 20, "--max-tokens", 20, "--seed", 3) == 0
    assert capsys.readouterr().out.startswith("one two three ")
    swarm.replace_killed()  # raises if a process has ended
    assert not [line for line in swarm.read_journal() if line["kind"] in ("leave", "ban")]


class SlowText(SwarmText):
    """A text whose first tokens come at once, and whose next one never comes. Each is the letter of its number."""

    def __init__(self, count: int) -> None:
        self.config, self.tokens, self.step, self.count = SimpleNamespace(sequence_length=99), [], 3, count  # type: ignore[assignment]
        self.reset_caches()

    async def predict(self) -> torch.Tensor:
        if self.count == 0:
            await asyncio.get_running_loop().create_future()
        self.count -= 1
        return torch.nn.functional.one_hot(torch.tensor(5), 300).float()


def build_service(dataset: Path, count: int, seconds: float) -> SamplingService:
    tokenizer = Dataset.open(dataset).tokenizer
    return SamplingService(lambda: SlowText(count), tokenizer, lambda: (), lambda request: True, seconds)


async def read_pieces(service: SamplingService, label: str, tokens: int = 3, caller: str = "Qm") -> int:
    """Return the number of pieces. The label is that of the caller's credential."""
    request = messages.SampleRequest(prompt="The", tokens=tokens, temperature=0, label=label)
    return len([frame async for frame in service.on_sample(caller, messages.to_frame(request))])


def test_text_beyond_its_deadline_is_refused_and_frees_its_place(dataset_folder: Path) -> None:
    async def sample() -> None:
        service = build_service(dataset_folder, 2, 0.01)
        with pytest.raises(CallRefusedError, match="ask for fewer tokens") as error:
            await read_pieces(service, "sample-1")
        assert error.value.code == "deadline"
        assert not service.deadlines
        assert await read_pieces(build_service(dataset_folder, 3, 600.0), "sample-1") == 4
        service = build_service(dataset_folder, 2, 0.0)
        service.reserve_place("sample-1")  # a reader that stalls
        again = service.reserve_place("sample-1")
        assert service.deadlines == {"sample-1": again}

    asyncio.run(sample())


def test_second_text_of_a_label_and_fifth_of_all_are_refused(dataset_folder: Path) -> None:
    async def sample() -> None:
        service = build_service(dataset_folder, 0, 600.0)
        waiting = [asyncio.ensure_future(read_pieces(service, f"sample-{number}")) for number in range(3)]
        waiting.append(asyncio.ensure_future(read_pieces(service, "", caller="without a label")))
        while len(service.deadlines) < 4:
            await asyncio.sleep(0)
        with pytest.raises(CallRefusedError, match="the previous text of this label has not ended"):
            await read_pieces(service, "sample-2")
        with pytest.raises(CallRefusedError, match="4 texts are being sampled"):
            await read_pieces(service, "sample-9")
        waiting[2].cancel()
        await asyncio.wait(waiting[2:3])
        assert service.deadlines.keys() == {"sample-0", "sample-1", "without a label"}
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert not service.deadlines

    asyncio.run(sample())


def test_text_and_refusal_of_the_network_are_shown_without_control_characters() -> None:
    assert drop_control_characters("a\x1b[2J\tb\r\nc\x07\u202eé") == "a[2J\tb\ncé"
    refusal = CallRefusedError("deadline", "a text may take 600 s")
    assert describe_refusal(refusal) == "the swarm has ended this text: a text may take 600 s"


def test_order_without_coordinator_fails_with_a_reason(tmp_path: Path) -> None:
    order = SwarmSampleOrder(run=7, coordinator=(), label="sample-1", credential="a" * 64, prompt="The", tokens=5)
    (tmp_path / "order.json").write_text(order.model_dump_json())
    assert sample_main.main(["--order", str(tmp_path / "order.json"), "--out", str(tmp_path)]) == 2
    assert "no coordinator now" in json.loads((tmp_path / "failure.json").read_text())["reason"]
    assert not (tmp_path / "result.json").exists()
