"""GPT-2 124M's shape on real text: two stages of two workers take the steps of one process. `make gpt2-swarm`.

Not in the ordinary suite: it takes some minutes and about 12 GB.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tests.support.model_shapes import GPT2
from trainer.data.dataset import Dataset, prepare_dataset
from trainer.swarm.comparison import compare_with_single_process
from trainer.swarm.config import SwarmConfig

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")
pytestmark = pytest.mark.skipif("SWARM_GPT2" not in os.environ, reason="minutes and 12 GB: make gpt2-swarm")

DATA = Path(os.environ.get("DAILYTRAIN_DATA", "../shared/data"))


def test_gpt2_takes_ten_steps_on_real_text_as_in_one_process(tmp_path: Path) -> None:
    folder = tmp_path / "dataset"
    text, tokenizer = DATA / "text/wikitext-2-raw/wiki.test.raw", DATA / "tokenizers/gpt2"
    dataset = prepare_dataset(f"files:{text}", f"gpt2:{tokenizer}", folder)
    config = build_config(dataset)
    started = time.monotonic()
    result, lines = compare_with_single_process(config, folder, workers=2, chaos="none", timeout=240, seconds=2400)
    losses = [line["loss"] for line in lines if line["kind"] == "commit"]
    seconds = [line["seconds"] for line in lines if line["kind"] == "commit"]
    parameters = {line["stage"]: line["parameters"] for line in lines if line["kind"] == "join"}
    sys.stdout.write(
        f"{result}\nparameters by stage {parameters}; loss {losses[0]:.4f} -> {losses[-1]:.4f}; "
        f"steps of {min(seconds):.1f} to {max(seconds):.1f} s; {time.monotonic() - started:.0f} s in all\n"
    )
    assert result.is_passed(10)
    assert losses[-1] < losses[0]


def build_config(dataset: Dataset) -> SwarmConfig:
    sizes = {"vocabulary_size": dataset.tokenizer.vocabulary_size, "sequence_length": 64}
    return SwarmConfig(
        arch="litgpt",
        model={**GPT2, **sizes},
        stages=2,
        steps=10,
        seed=1,
        micro_batch=1,
        micro_batches=4,
        sequence_length=64,
        learning_rate=4e-4,
        warmup_steps=2,
        checkpoint_every=10,
    )
