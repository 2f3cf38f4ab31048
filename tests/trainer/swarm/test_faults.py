"""A swarm of processes over real sockets, with every fault plan, has the losses of one process.

Three plans run at night, briefly. `make chaos-swarm` runs all over 60 steps, and random faults for ten minutes.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Container
from pathlib import Path

import pytest

from tests.support.model_shapes import GPT2
from tests.support.paths import DATA
from tests.support.swarm_chain import build_tiny_config
from tests.support.waits import WAIT_SECONDS
from trainer.data.dataset import Dataset, prepare_dataset
from trainer.swarm.comparison import ComparisonResult, compare_with_single_process
from trainer.swarm.fault_plans import count_members
from trainer.swarm.journal import JournalLine

pytestmark = pytest.mark.processes

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")

STEPS = int(os.environ.get("SWARM_STEPS", "16"))
SECONDS = float(os.environ.get("SWARM_SECONDS", "0"))
"""Duration of repeated runs with random faults; 0: one short run."""

long = pytest.mark.skipif(STEPS < 60, reason="every swarm of processes takes a dozen seconds of CPU: make chaos-swarm")


def run_swarm(
    dataset: Path, chaos: str, workers: int = 2, timeout: float = 10.0, seed: int = 5
) -> tuple[ComparisonResult, list[JournalLine], Counter[str]]:
    """Run a swarm and one process, and check everything that must hold in every case."""
    every = max(1, STEPS // 4)
    config = build_tiny_config(Dataset.open(dataset), steps=STEPS, seed=seed, checkpoint_every=every)
    result, lines = compare_with_single_process(config, dataset, workers, chaos, timeout, WAIT_SECONDS)
    assert result.max_abs_loss_difference < 1e-4
    assert result.exact_cover
    assert result.hashes_equal
    assert not result.leftovers
    assert result.is_passed(STEPS)
    return result, lines, Counter(line["kind"] for line in lines)


@pytest.mark.parametrize(
    ("chaos", "timeout", "kills", "kind", "at_least"),
    [
        pytest.param("none", 10.0, {0}, "commit", STEPS, marks=long),
        pytest.param("kill", 10.0, {2}, "commit", STEPS, marks=pytest.mark.slow),
        pytest.param("drop", 10.0, {0}, "commit", STEPS, marks=long),
        pytest.param("stall", 1.5, range(100), "leave", 1, marks=long),
        pytest.param("prepare", 10.0, {2}, "commit", STEPS, marks=long),
        pytest.param("coordinator", 10.0, range(5, 100), "start", 6, marks=pytest.mark.slow),
        pytest.param("rebalance", 10.0, range(100), "move", 2, marks=long),
        pytest.param("resize", 10.0, {4}, "commit", STEPS, marks=long),
        pytest.param("stage", 10.0, {2}, "rollback", 1, marks=pytest.mark.slow),
    ],
)
def test_swarm_with_faults_equals_single_process(
    dataset_folder: Path, chaos: str, timeout: float, kills: Container[int], kind: str, at_least: int
) -> None:
    result, lines, kinds = run_swarm(dataset_folder, chaos, timeout=timeout)
    assert result.kills in kills
    assert kinds[kind] >= at_least
    match chaos:
        case "rebalance":
            assert "wants to leave" in {line["why"] for line in lines if line["kind"] == "leave"}
        case "resize":
            members = count_members(lines)
            assert [members[0], max(members), members[-1]] == [2, 12, 3]
            commits = [line for line in lines if line["kind"] == "commit"]
            assert max(len(votes) for line in commits for votes in line["votes"].values()) > 4
        case "stage":
            rollback = next(line for line in lines if line["kind"] == "rollback")
            assert rollback["lost"] == [1]
            assert rollback["to"] <= rollback["from"]


@long
def test_random_faults_change_nothing(dataset_folder: Path) -> None:
    started = time.monotonic()
    for seed in itertools.count(1):
        result, _, kinds = run_swarm(dataset_folder, "all", workers=3 if SECONDS else 2, timeout=2.0, seed=seed)
        sys.stdout.write(f"seed {seed}: {result}; {dict(kinds)}\n")
        if time.monotonic() - started > SECONDS:
            break


@pytest.mark.skipif("SWARM_GPT2" not in os.environ, reason="minutes and 12 GB: make gpt2-swarm")
def test_gpt2_takes_ten_steps_on_real_text_as_in_one_process(tmp_path: Path) -> None:
    text, tokenizer = DATA / "text/wikitext-2-raw/wiki.test.raw", DATA / "tokenizers/gpt2"
    dataset = prepare_dataset(f"files:{text}", f"gpt2:{tokenizer}", tmp_path)
    sizes = {"vocabulary_size": dataset.tokenizer.vocabulary_size, "sequence_length": 64}
    changes = {"model": {**GPT2, **sizes}, "sequence_length": 64, "micro_batch": 1, "learning_rate": 4e-4}
    config = build_tiny_config(dataset, "litgpt", seed=1, checkpoint_every=10, **changes)
    result, lines = compare_with_single_process(config, tmp_path, workers=2, chaos="none", timeout=240, seconds=2400)
    commits = [line for line in lines if line["kind"] == "commit"]
    losses, seconds = ([line[name] for line in commits] for name in ("loss", "seconds"))
    parameters = {line["stage"]: line["parameters"] for line in lines if line["kind"] == "join"}
    sys.stdout.write(f"{result}\nparameters by stage {parameters}; losses {losses}; seconds of steps {seconds}\n")
    assert result.is_passed(10)
    assert losses[-1] < losses[0]
