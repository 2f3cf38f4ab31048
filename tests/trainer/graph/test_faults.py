"""Whose fault a failure of a graph's run is: no code of an entry runs there, so the entry's faults are a short list."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.tiny import TINY
from trainer.checkpoint.store import get_checkpoint_path
from trainer.cli.main import main as run_command
from trainer.node.job_handlers import generate, score
from trainer.node.job_handlers.train import download_checkpoint, read_outcome
from trainer.node.outcome import JobFailedError, JobOutcome
from trainer.protocol import Checkpoint, FileRef
from trainer.train import main
from trainer.training import loop

TRACED = tuple(flag for flag in TINY if flag != "--eager")
FLAGS = (
    *("--train.sequence-length", "32", "--train.batch", "4", "--train.dev-tokens", "256", "--train.sample-tokens", "4"),
    *("--device", "cpu", "--threads", "1", "--train.precision", "fp32", "--budget", "4steps"),
    *("--checkpoint-every", "1steps", "--keep", "9"),
)
CRASHES = [128 + number for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV, signal.SIGKILL, signal.SIGFPE)]


@pytest.fixture(scope="module")
def graph_folder(dataset_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("traced")
    assert main(["--dataset", str(dataset_folder), *TRACED, "--budget", "1steps", "--out", str(out)]) == 0
    return out / "graph"


@pytest.fixture
def train(dataset_folder: Path, graph_folder: Path, tmp_path: Path) -> Callable[..., int]:
    def start(*flags: str) -> int:
        folders = ("--dataset", str(dataset_folder), "--graph", str(graph_folder), "--out", str(tmp_path))
        return main([*folders, *FLAGS, *flags])

    return start


def end_process(code: int, limit_error: str | None = None) -> Any:
    return SimpleNamespace(poll=lambda: code, limit_error=limit_error, is_out_of_time=False)


def get_blame(outcome: JobOutcome | JobFailedError) -> tuple[str, str | None]:
    return outcome.cause, outcome.fault


@pytest.mark.parametrize(
    ("error", "micro_batch", "cause"),
    [
        (torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"), 1, "infrastructure"),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), 1, "infrastructure"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"), 1, "infrastructure"),
        (RuntimeError("an operator of torch failed"), 1, "infrastructure"),
        (torch.linalg.LinAlgError("linalg.inv: The diagonal element 3 is zero"), 1, "model"),
        (torch.OutOfMemoryError("CUDA out of memory."), 2, "infrastructure"),
        (torch.OutOfMemoryError("CUDA out of memory."), 1, "model"),
    ],
)
def test_graph_run_blames_entry_only_for_what_its_graph_did(
    train: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    micro_batch: int,
    cause: str,
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(loop, "update_weights", fail)
    code = train("--train.micro-batch", str(micro_batch))
    assert code == (3 if cause == "model" else 1)
    assert get_blame(read_outcome(end_process(code), tmp_path, is_graph=True))[0] == cause


def test_graph_run_that_diverges_blames_entry(
    train: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "compute_gradient_norm", lambda parameters: torch.tensor(float("nan")))
    code = train()
    assert read_outcome(end_process(code), tmp_path, is_graph=True).cause == "model"


def test_graph_run_without_usable_checkpoint_blames_checkpoint(train: Callable[..., int], tmp_path: Path) -> None:
    assert train() == 0
    for step in (3, 4):
        folder = get_checkpoint_path(tmp_path, step)
        for file in folder.iterdir():
            file.unlink()
    (tmp_path / "result.json").unlink()
    (get_checkpoint_path(tmp_path, 4) / "manifest.json").write_bytes(b"\x00" * 700)
    code = train()
    assert get_blame(read_outcome(end_process(code), tmp_path, is_graph=True)) == ("infrastructure", "checkpoint")


def test_graph_run_with_wrong_configuration_blames_order(train: Callable[..., int], tmp_path: Path) -> None:
    code = train("--recipe.groups.no-such-group.learning-rate", "1")
    assert get_blame(read_outcome(end_process(code), tmp_path, is_graph=True)) == ("infrastructure", "order")


@pytest.mark.parametrize("code", CRASHES)
def test_signal_in_graph_run_blames_machine(code: int, tmp_path: Path) -> None:
    assert get_blame(read_outcome(end_process(code), tmp_path, is_graph=True)) == ("infrastructure", None)
    assert score.read_outcome(code, None, is_graph=True).cause == "infrastructure"
    if code != 128 + signal.SIGKILL:
        assert generate.read_outcome(end_process(code), tmp_path, is_graph=True).cause == "infrastructure"
        assert read_outcome(end_process(code), tmp_path, is_graph=False).cause == "model"


def test_limit_in_graph_run_blames_machine(tmp_path: Path) -> None:
    process = end_process(-9, "It used more than 20.0 MB of disk.")
    assert get_blame(read_outcome(process, tmp_path, is_graph=True)) == ("infrastructure", None)
    assert generate.read_outcome(process, tmp_path, is_graph=True).cause == "infrastructure"


@pytest.mark.parametrize(
    "content", [b"\x00" * 700, b'{"step": 1, "files": []}', b'{"step": 4000000000000000000, "files": []}']
)
def test_checkpoint_that_does_not_match_its_manifest_is_not_tried(content: bytes, tmp_path: Path) -> None:
    step = 4 * 10**18 if b"4000" in content else 1
    garbage = FileRef(path="model.safetensors", sha256="0" * 64, size=700)
    files = () if step > 1 else (garbage,)

    def download_all(files: object, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_bytes(content)

    work, limits = SimpleNamespace(out=tmp_path), SimpleNamespace(disk_bytes=10**6)
    job: Any = SimpleNamespace(workspace=work, limits=limits, log=print, download_all=download_all)
    with pytest.raises(JobFailedError, match=f"The checkpoint of step {step} to resume from") as error:
        download_checkpoint(job, Checkpoint(step=step, files=files))
    assert get_blame(error.value) == ("infrastructure", "checkpoint")


def test_score_of_damaged_checkpoint_blames_checkpoint(
    train: Callable[..., int], dataset_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train() == 0
    (get_checkpoint_path(tmp_path, 4) / "model.safetensors").write_bytes(b"\x00" * 700)
    capsys.readouterr()
    code = run_command(["score", str(tmp_path), "--dataset", str(dataset_folder), "--json"])
    result = json.loads(capsys.readouterr().out)
    assert get_blame(score.read_outcome(code, result, is_graph=True)) == ("infrastructure", "checkpoint")


def test_score_of_graph_blames_entry_only_for_what_its_graph_computed() -> None:
    unreadable = {"failed": "The checkpoint has no blocks.0.weight.", "by_graph": False}
    assert score.read_outcome(3, unreadable, is_graph=True).cause == "infrastructure"
    assert score.read_outcome(3, {"failed": "It looks ahead.", "by_graph": True}, is_graph=True).cause == "model"


def test_code_of_entry_cannot_blame_checkpoint(tmp_path: Path) -> None:
    failure = {"cause": "infrastructure", "fault": "checkpoint", "reason": "It is damaged."}
    (tmp_path / "failure.json").write_text(json.dumps(failure))
    assert get_blame(read_outcome(end_process(1), tmp_path, is_graph=False)) == ("infrastructure", None)
