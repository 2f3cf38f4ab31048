"""The speed probe does the same work each time and reports JSON."""

from __future__ import annotations

import json

import pytest
import torch

from trainer.accounting.probe import MIN_STEPS, main, measure
from trainer.protocol import ProbeReading, ProbeSpec

SMALL = ProbeSpec(seconds=0.01, width=64, sequence_length=16, batch=2, precision="fp32", threads=1)
FLAGS = ("--seconds", "0.01", "--width", "64", "--sequence-length", "16", "--batch", "2", "--threads", "1")


def test_probe_loss_is_reproducible() -> None:
    readings = [measure(SMALL) for _ in range(2)]
    assert readings[0].loss == readings[1].loss
    assert readings[0].loss != measure(SMALL.model_copy(update={"width": 128})).loss
    assert all(reading.steps >= MIN_STEPS and reading.tokens_per_second > 0 for reading in readings)


def test_probe_steps_reduce_loss() -> None:
    from trainer.accounting.probe import VOCABULARY, ProbeTransformer

    model = ProbeTransformer(64, torch.device("cpu"))
    tokens = torch.randint(VOCABULARY, (2, 17), generator=torch.Generator().manual_seed(1))
    losses = [model.step(tokens) for _ in range(10)]
    assert losses == sorted(losses, reverse=True)


def test_probe_json_flag_prints_one_reading(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FLAGS, "--json"]) == 0
    reading = ProbeReading.model_validate_json(capsys.readouterr().out)
    assert reading.loss == measure(SMALL).loss


def test_probe_without_json_prints_text(capsys: pytest.CaptureFixture[str]) -> None:
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
def test_probe_invalid_flag_prints_one_line(
    flags: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*flags]) == 2
    assert capsys.readouterr() == ("", sentence)


def test_probe_flags_match_spec_fields() -> None:
    """What the agent makes of an order is what the probe reads."""
    from trainer.accounting.probe import parse_arguments

    words = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.model_dump(exclude_none=True).items()]
    found = vars(parse_arguments(words))
    found.pop("json")
    assert ProbeSpec(**found) == SMALL
    assert json.loads(SMALL.model_dump_json())["threads"] == 1
