"""Failed runs report the cause in one line and exit with its code."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import torch
from torch._inductor.exc import InductorError

from tests.support import failing_models
from tests.support.metrics_lines import numbers
from tests.support.tiny import TINY
from trainer.checkpoint.files import get_checkpoint_step
from trainer.checkpoint.store import find_latest_checkpoint, get_checkpoint_path
from trainer.data.dataset import Dataset
from trainer.models import ARCHITECTURES
from trainer.training import compilation, loop

Train = Callable[..., int]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch, dataset_folder: Path, tmp_path: Path) -> Callable[[str], int]:
    """Return a function that trains a model with the given failure."""
    monkeypatch.setitem(ARCHITECTURES, "failing", "tests.support.failing_models")

    def start(way: str) -> int:
        from trainer.train import main

        monkeypatch.setattr(failing_models, "WAY", way)
        flags = [
            "--arch",
            "failing",
            "--budget",
            "20steps",
            "--checkpoint-every",
            "1steps",
            *TINY[2:],
        ]  # without the depth, which it does not have
        return main(["--dataset", str(dataset_folder), "--out", str(tmp_path), *flags])

    return start


@pytest.mark.parametrize(
    ("way", "sentence"),
    [
        ("nan", "The loss became nan at step 4 (15% of the budget): training diverged"),
        ("forward", "RuntimeError in a forward pass: the tensors do not fit"),
        ("building", "KeyError while the model was built"),
        ("type", "the buffer table has the type complex128, which a checkpoint cannot hold: convert it to complex64"),
        ("shape", "The model returns logits of the shape (2, 32, 321) instead of (2, 32, 320)"),
        ("recipe", "no group of the recipe matches the parameter head.weight"),
    ],
)
def test_model_failure_exits_3_and_names_cause(
    fail: Callable[[str], int], tmp_path: Path, way: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail(way) == 3
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert failure["cause"] == "model"
    assert sentence in failure["reason"]
    assert sentence in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "result.json").exists()


@pytest.mark.slow
def test_model_without_failure_trains(fail: Callable[[str], int], tmp_path: Path) -> None:
    assert fail("none") == 0
    assert not (tmp_path / "failure.json").exists()


@pytest.mark.slow
def test_successful_run_deletes_old_failure(fail: Callable[[str], int], tmp_path: Path) -> None:
    assert fail("nan") == 3
    assert fail("none") == 0
    assert not (tmp_path / "failure.json").exists()


def test_architecture_import_error_is_model_failure(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARCHITECTURES, "absent", "trainer.models.absent")
    assert train(tmp_path, "--arch", "absent", "--budget", "2steps") == 3
    assert "while the architecture absent was imported" in json.loads((tmp_path / "failure.json").read_text())["reason"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "message",
    [
        "Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.build.impl.",
        "No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')",
    ],
    ids=["triton", "inductor"],
)
def test_compilation_without_compiler_is_an_infrastructure_failure(
    train: Train, tmp_path: Path, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def backend(graph: object, inputs: object) -> NoReturn:
        raise RuntimeError(message)

    monkeypatch.setattr(compilation, "BACKEND", backend)
    assert train(tmp_path, "--budget", "2steps", "--train.compile", "true") == 1
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert failure["cause"] == "infrastructure"
    assert "install gcc" in failure["reason"]
    assert "install gcc" in capsys.readouterr().err.splitlines()[-1]


def fail_to_generate_code(graph: object, inputs: object) -> NoReturn:
    """Fail like a backend with a broken code generator, such as a broken installation of Triton."""
    raise InductorError(RuntimeError("ptxas ended with exit code 255"), None)


def test_broken_compilation_is_infrastructure_if_the_model_runs_without(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compilation, "BACKEND", fail_to_generate_code)
    assert train(tmp_path, "--budget", "2steps", "--train.compile", "true") == 1
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert failure["cause"] == "infrastructure"
    assert "torch.compile failed on this machine" in failure["reason"]
    assert "ptxas ended with exit code 255" in failure["reason"]
    assert "Traceback" not in capsys.readouterr().err


def test_broken_compilation_is_the_models_if_it_fails_without(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_eagerly(*arguments: object) -> NoReturn:
        raise RuntimeError("the tensors do not fit")

    def backend(graph: object, inputs: object) -> NoReturn:
        monkeypatch.setattr(compilation, "run_forward_backward", fail_eagerly)
        fail_to_generate_code(graph, inputs)

    monkeypatch.setattr(compilation, "BACKEND", backend)
    assert train(tmp_path, "--budget", "2steps", "--train.compile", "true") == 3
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert (failure["cause"], "the tensors do not fit" in failure["reason"]) == ("model", True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_is_bad_input_and_not_the_models_failure(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, "--budget", "2steps", "--device", "cuda") == 2
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert failure["cause"] == "infrastructure", "a node reads this: a driver file may be missing in the sandbox"
    assert "torch finds no GPU here" in failure["reason"]
    assert "torch finds no GPU here" in capsys.readouterr().err.splitlines()[-1]


@contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    """Limit the size of files, so that larger writes fail as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
@pytest.mark.parametrize("size", [100_000, 300_000], ids=["weights", "momenta"])
def test_full_disk_prints_one_line_and_run_resumes(
    train: Train, tmp_path: Path, tiny_run: Path, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--budget", "30steps", "--checkpoint-every", "10steps")
    sizes = {file.name: file.stat().st_size for file in get_checkpoint_path(tiny_run, 20).iterdir()}
    assert sizes["model.safetensors"] > 100_000
    assert sizes["model.safetensors"] < 300_000 < sizes["optimizer.pt"]
    with limit_file_size(size):
        assert train(tmp_path, *flags) == 1
    errors = capsys.readouterr().err
    assert "The disk is full" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert failure["cause"] == "infrastructure"
    assert "Run the same command again to resume from the last checkpoint." in failure["reason"]
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert train(tmp_path, *flags) == 0
    assert numbers(tmp_path) == numbers(tiny_run)


def test_metrics_write_error_is_full_disk(train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    assert train(tmp_path, "--budget", "2steps") == 1
    assert "The disk is full" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_out_of_memory_prints_one_line_and_run_resumes(
    fail: Callable[[str], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail("memory") == 3
    errors = capsys.readouterr().err
    assert "Out of memory in a forward pass: try a smaller --train.micro-batch" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    kept = find_latest_checkpoint(tmp_path)
    assert kept is not None
    assert get_checkpoint_step(kept) == 3
    assert fail("none") == 0


def test_value_error_of_setup_keeps_its_traceback(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def break_inside(*arguments: object, **options: object) -> NoReturn:
        raise ValueError("an internal error, not the user's")

    monkeypatch.setattr(loop, "prepare_objective", break_inside)
    assert train(tmp_path, "--budget", "2steps") == 1
    assert "Traceback" in capsys.readouterr().err
    assert json.loads((tmp_path / "failure.json").read_text())["cause"] == "infrastructure"


def test_dataset_verification_is_split_over_processes(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = []
    monkeypatch.setattr(Dataset, "verify", lambda dataset, splits, rank=0, ranks=1: shares.append((rank, ranks)))
    monkeypatch.setattr(loop, "build_fabric", lambda *arguments: SimpleNamespace(global_rank=1, world_size=2))
    assert train(tmp_path, "--budget", "2steps") == 1, "the stand-in for Fabric has no device"
    assert shares == [(1, 2)]
