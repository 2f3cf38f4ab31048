"""Runs with any option resume with the same numbers in every digit."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from tests.support import failing_models
from tests.support.interrupted_runs import check_resume, train
from tests.support.metrics_lines import lines, numbers
from tests.support.tiny import TINY_TRACED, TINY_TRAINING
from trainer.config.train_config import ConfigError
from trainer.models import ARCHITECTURES
from trainer.optim import muon
from trainer.training import compilation, loop, precision
from trainer.training.checkpointing import check_identity, describe_identity
from trainer.training.model_sources import seed_step

pytestmark = pytest.mark.processes

FLAGS = (
    *("--budget", "6steps", "--checkpoint-every", "3steps", "--keep", "9"),
    *("--train.evaluations", "2", "--train.dev-tokens", "64", "--train.sample-tokens", "2"),
)
OPTIONS = {
    "bf16": ("--train.precision", "bf16"),
    "Muon in bf16": ("--train.muon-precision", "bf16"),
    "parts of a batch": ("--train.micro-batch", "1"),
    "activation checkpointing": ("--train.activation-checkpointing", "true"),
    "documents": ("--train.packing", "documents"),
    "spikes stop": ("--train.spikes", "stop"),
    "a pull on logits": ("--recipe.l2wrap", "1e-4"),
    "AdamW for matrices, warmup in steps, cosine": (
        *("--recipe.matrices.optimizer", "adamw", "--recipe.matrices.normalized", "false"),
        *("--recipe.schedule.warmup_steps", "2", "--recipe.schedule.shape", "cosine"),
    ),
    "another momentum": ("--recipe.schedule.momentum_start", "0.8", "--recipe.schedule.momentum_end", "0.7"),
    "n-gram memory": ("--model.memory_rows", "200", "--recipe.clip", "0.05"),
    "variance normalization and cautious decay": (
        *("--recipe.matrices.normalized", "true", "--recipe.matrices.cautious", "true"),
        *("--recipe.matrices.weight_decay", "0.1"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
def test_stopped_run_with_option_resumes_exactly(option: str, dataset_folder: Path, tmp_path: Path) -> None:
    check_resume(tmp_path, *FLAGS, "--dataset", dataset_folder, *OPTIONS[option], stop_after=2)


def test_run_with_dropout_resumes_exactly_where_other_gpus_are_visible(
    dataset_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARCHITECTURES, "failing", "tests.support.failing_models")
    monkeypatch.setattr(failing_models, "WAY", "dropout")

    def find_no_gpu(states: object) -> NoReturn:  # torch raises it for the state of a GPU that is not visible
        raise IndexError("tuple index out of range")

    flags, tiny = (*FLAGS, "--dataset", dataset_folder, "--arch", "failing"), TINY_TRAINING
    assert train(tmp_path / "whole", *flags, tiny=tiny) == 0
    with monkeypatch.context() as two_gpus:
        two_gpus.setattr(torch.cuda, "get_rng_state_all", lambda: [torch.zeros(16, dtype=torch.uint8)] * 2)
        assert train(tmp_path / "stopped", *flags, tiny=tiny, stop_after=2) == 130
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", find_no_gpu)
    assert train(tmp_path / "stopped", *flags, tiny=tiny) == 0
    assert numbers(tmp_path / "stopped") == numbers(tmp_path / "whole")


def test_processes_and_steps_draw_different_random_numbers() -> None:
    draws = []
    for step, rank in ((0, 0), (0, 1), (1, 0), (0, 0)):
        seed_step(1, step, rank)
        draws.append((float(torch.rand(())), float(np.random.rand()), random.random()))
    assert draws[0] == draws[3]
    assert len({number for draw in draws for number in draw}) == 9


@pytest.mark.slow
@pytest.mark.parametrize("adapters", [(), ("--lora.rank", "2")], ids=["all weights", "adapters"])
def test_finetuning_resumes_exactly(
    adapters: tuple[str, ...], tiny_run: Path, dataset_folder: Path, tmp_path: Path
) -> None:
    check_resume(tmp_path, *FLAGS, "--dataset", dataset_folder, "--from", tiny_run, *adapters)


@pytest.mark.slow
def test_compiled_run_resumes_exactly(dataset_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The resumed process compiles again or uses the compiler's cache, with the same code."""
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    check_resume(tmp_path, *FLAGS, "--dataset", dataset_folder, "--train.compile", "true")
    assert json.loads((tmp_path / "whole" / "result.json").read_text())["compile_seconds"] > 0


@pytest.mark.slow
def test_resume_on_a_smaller_machine_takes_fewer_rows_at_the_same_price(
    dataset_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass costs a graph's tables as much for one row as for four. A larger machine takes more rows again."""
    flags = (*FLAGS, "--dataset", dataset_folder, "--budget", "2.3e8flops", "--train.micro-batch", "4")
    prices, rows = set(), []
    for fitting, stop_after in ((99, 2), (1, 2), (99, None)):
        monkeypatch.setattr(loop, "choose_cpu_micro_batch", lambda *arguments, fitting=fitting: fitting)
        assert train(tmp_path, *flags, tiny=TINY_TRACED, stop_after=stop_after) == (130 if stop_after else 0)
        run = json.loads((tmp_path / "run.json").read_text())
        prices.add(run["flops_per_token"])
        rows.append(run["identity"]["train"]["micro_batch"])
    assert rows == [4, 1, 4]
    (price,) = prices
    found = lines(tmp_path, "train")
    assert [row["flops"] for row in found] == [row["tokens"] * price for row in found]
    assert [row["fraction"] for row in found] == pytest.approx([row["step"] / found[-1]["step"] for row in found])
    assert found[-1]["step"] > 4


def test_machine_fields_stay_with_run(dataset_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last digits of results depend on the threads: a machine that is busy at the resume must not change them."""
    monkeypatch.setattr(loop, "count_cores", lambda: 2)
    flags = (*FLAGS, "--dataset", dataset_folder, "--train.precision", "auto", "--threads", "2")
    before = torch.get_num_threads()
    try:
        for chosen, idle, stop_after in (("bf16", 2, 2), ("fp32", 1, None)):
            monkeypatch.setenv("OMP_NUM_THREADS", str(idle))
            monkeypatch.setattr(precision, "choose_precision", lambda device, threads, chosen=chosen: chosen)
            monkeypatch.setattr(muon, "choose_precision", lambda device, chosen=chosen: chosen)
            assert train(tmp_path, *flags, stop_after=stop_after) == (130 if stop_after else 0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    resolved = json.loads((tmp_path / "run.json").read_text())["config"]["resolved"]
    assert (resolved["precision"], resolved["muon_precision"]) == ("bf16", "bf16")


def test_run_of_older_release_resumes(dataset_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drop_new_fields(*arguments: Any) -> dict[str, Any]:
        found = describe_identity(*arguments)
        del found["train"]["muon_precision"]
        return found

    flags = (*FLAGS, "--dataset", dataset_folder)
    with monkeypatch.context() as older:
        older.setattr(loop, "describe_identity", drop_new_fields)
        assert train(tmp_path, *flags, stop_after=3) == 130
    assert train(tmp_path, *flags) == 0


def test_run_may_go_on_on_another_device_but_not_in_another_precision(tmp_path: Path) -> None:
    saved = {"seed": 1, "train": {"device": "cuda", "precision": "fp32", "removed_option": True}}
    check_identity(tmp_path, saved, {"seed": 1, "train": {"device": "cpu", "precision": "fp32"}})
    with pytest.raises(ConfigError, match="another train"):
        check_identity(tmp_path, saved, {"seed": 1, "train": {"device": "cpu", "precision": "bf16"}})
