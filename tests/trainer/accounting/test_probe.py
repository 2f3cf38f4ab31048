"""The speed probe does the same work each time and reports JSON."""

from __future__ import annotations

import pytest

from trainer.accounting.probe import MIN_STEPS, main, measure, parse_arguments
from trainer.protocol import ProbeReading, ProbeSpec

SMALL = ProbeSpec(seconds=0.01, width=64, sequence_length=16, batch=2, precision="fp32", threads=1)
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.model_dump(exclude_none=True).items()]


def test_probe_loss_is_reproducible() -> None:
    readings = [measure(SMALL) for _ in range(2)]
    assert readings[0].loss == readings[1].loss
    assert readings[0].loss != measure(SMALL.model_copy(update={"width": 128})).loss
    assert all(reading.steps >= MIN_STEPS and reading.tokens_per_second > 0 for reading in readings)


def test_probe_prints_a_reading_as_json_or_text(capsys: pytest.CaptureFixture[str]) -> None:
    parsed = {name: value for name, value in vars(parse_arguments(FLAGS)).items() if name != "json"}
    assert ProbeSpec(**parsed) == SMALL, "what an agent makes of an order"
    assert main([*FLAGS, "--json"]) == 0
    reading = ProbeReading.model_validate_json(capsys.readouterr().out)
    assert reading.loss == measure(SMALL).loss
    assert main([*FLAGS, "--precision", "bf16"]) == 0
    assert "tokens/s, spread" in capsys.readouterr().out
