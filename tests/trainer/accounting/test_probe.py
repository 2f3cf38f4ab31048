"""The site's own probe: always the same work, told as JSON."""

from __future__ import annotations

import json

import pytest
import torch

from trainer.accounting.probe import LEAST_STEPS, main, measure
from trainer.protocol import ProbeReading, ProbeSpec

SMALL = ProbeSpec(seconds=0.01, width=64, sequence_length=16, batch=2, precision="fp32", threads=1)
FLAGS = ("--seconds", "0.01", "--width", "64", "--sequence-length", "16", "--batch", "2", "--threads", "1")


def test_it_computes_the_same_every_time() -> None:
    readings = [measure(SMALL) for _ in range(2)]
    assert readings[0].loss == readings[1].loss
    assert readings[0].loss != measure(SMALL.model_copy(update={"width": 128})).loss
    assert all(reading.steps >= LEAST_STEPS and reading.tokens_per_second > 0 for reading in readings)


def test_its_steps_train() -> None:
    from trainer.accounting.probe import VOCABULARY, Transformer

    model = Transformer(64, torch.device("cpu"))
    tokens = torch.randint(VOCABULARY, (2, 17), generator=torch.Generator().manual_seed(1))
    losses = [model.step(tokens) for _ in range(10)]
    assert losses == sorted(losses, reverse=True)


def test_it_answers_in_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FLAGS, "--json"]) == 0
    reading = ProbeReading.model_validate_json(capsys.readouterr().out)
    assert reading.loss == measure(SMALL).loss


def test_it_answers_people_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FLAGS, "--precision", "bf16"]) == 0
    assert "tokens/s, spread" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--width", "100"), "trainer.accounting.probe: --width: Input should be a multiple of 64\n"),
        (
            ("--sequence-length", "1"),
            "trainer.accounting.probe: --sequence-length: Input should be greater than or equal to 8\n",
        ),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    flags: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*flags]) == 2
    assert capsys.readouterr() == ("", sentence)


def test_the_order_and_the_flags_are_the_same_words() -> None:
    """What the agent makes of an order is what the probe reads."""
    from trainer.accounting.probe import arguments

    words = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.model_dump(exclude_none=True).items()]
    found = vars(arguments(words))
    found.pop("json")
    assert ProbeSpec(**found) == SMALL
    assert json.loads(SMALL.model_dump_json())["threads"] == 1
