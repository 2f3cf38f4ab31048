"""Failed runs report the cause in one line and exit with its code."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from torch._dynamo import config as dynamo_config
from torch._dynamo import convert_frame
from torch._inductor.exc import InductorError

from tests.support import failing_models
from tests.support.metrics_lines import lines, numbers
from tests.support.tiny import TINY_TRAINING
from trainer.checkpoint.files import get_checkpoint_step
from trainer.checkpoint.store import find_latest_checkpoint, get_checkpoint_path
from trainer.models import ARCHITECTURES
from trainer.train import main
from trainer.training import compilation, loop

Train = Callable[..., int]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch, dataset_folder: Path, tmp_path: Path) -> Callable[..., int]:
    """Return a function that trains a model with the given failure."""
    monkeypatch.setitem(ARCHITECTURES, "failing", "tests.support.failing_models")

    def start(way: str, *more: str) -> int:
        monkeypatch.setattr(failing_models, "WAY", way)
        flags = ["--arch", "failing", "--budget", "20steps", "--checkpoint-every", "1steps", *TINY_TRAINING, *more]
        return main(["--dataset", str(dataset_folder), "--out", str(tmp_path), *flags])

    return start


@pytest.mark.parametrize(
    ("way", "sentence"),
    [
        ("nan", "The loss became nan at step 4 (15% of the budget): training diverged"),
        ("forward", "RuntimeError in a forward pass: the tensors do not fit"),
        ("building", "KeyError while the model was built"),
        ("shape", "The model returns logits of the shape (2, 32, 321) instead of (2, 32, 320)"),
    ],
)
def test_model_failure_exits_3_and_names_cause(
    fail: Callable[..., int], tmp_path: Path, way: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail(way) == 3
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert failure["cause"] == "model"
    assert sentence in failure["reason"]
    assert sentence in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "result.json").exists()


def test_architecture_import_error_is_model_failure(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARCHITECTURES, "absent", "trainer.models.absent")
    assert train(tmp_path, "--arch", "absent", "--budget", "2steps") == 3
    assert "while the architecture absent was imported" in json.loads((tmp_path / "failure.json").read_text())["reason"]


BROKEN_CODE_GENERATOR = InductorError(RuntimeError("ptxas ended with exit code 255"), None)


@pytest.mark.parametrize(
    ("error", "reasons"),
    [
        (RuntimeError("No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')"), ["g++"]),
        (BROKEN_CODE_GENERATOR, ["torch.compile failed on this machine", "ptxas ended with exit code 255"]),
    ],
    ids=["inductor", "broken"],
)
def test_broken_compilation_is_infrastructure_if_the_model_runs_without(
    fail: Train,
    tmp_path: Path,
    error: Exception,
    reasons: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def backend(graph: object, inputs: object) -> NoReturn:
        raise error

    monkeypatch.setattr(compilation, "BACKEND", backend)
    assert fail("none", "--budget", "2steps", "--train.compile", "true") == 1
    failure, errors = json.loads((tmp_path / "failure.json").read_text()), capsys.readouterr().err
    assert failure["cause"] == "infrastructure"
    assert all(reason in failure["reason"] and reason in errors for reason in reasons)
    assert "Traceback" not in errors


def test_error_inside_the_compiler_is_infrastructure(
    fail: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_guards(*arguments: object, **options: object) -> NoReturn:
        raise RuntimeError("no guards on this Python")

    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    monkeypatch.setattr(convert_frame, "CheckFunctionManager", break_guards)
    assert fail("none", "--budget", "2steps", "--train.compile", "true") == 1
    reason = json.loads((tmp_path / "failure.json").read_text())["reason"]
    assert "torch.compile failed on this machine: RuntimeError: no guards" in reason


def test_broken_compilation_is_the_models_if_it_fails_without(
    fail: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_eagerly(*arguments: object) -> NoReturn:
        raise RuntimeError("the tensors do not fit")

    def backend(graph: object, inputs: object) -> NoReturn:
        monkeypatch.setattr(compilation, "run_forward_backward", fail_eagerly)
        raise BROKEN_CODE_GENERATOR

    monkeypatch.setattr(compilation, "BACKEND", backend)
    assert fail("none", "--budget", "2steps", "--train.compile", "true") == 3
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert (failure["cause"], "the tensors do not fit" in failure["reason"]) == ("model", True)


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
    fail: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail("memory") == 3
    errors = capsys.readouterr().err
    assert "Out of memory in a forward pass: try a smaller --train.micro-batch" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    assert get_checkpoint_step(find_latest_checkpoint(tmp_path)) == 3
    assert fail("none") == 0
    assert not (tmp_path / "failure.json").exists()


def test_run_larger_than_free_memory_is_refused_before_it_is_built(
    dataset_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loop, "get_free_memory_bytes", lambda: 24 * 10**9)
    monkeypatch.setattr(loop, "build_model_source", lambda *arguments: pytest.fail("the model is built"))
    flags = ["--dataset", str(dataset_folder), "--out", str(tmp_path), "--device", "cpu", "--budget", "2steps"]
    assert main([*flags, "--arch", "rwkv5-7b"]) == 2
    assert "take 116 GB on this machine, with 24 GB of free memory. Name a smaller size" in capsys.readouterr().err


@pytest.mark.slow
def test_runs_of_one_process_do_not_count_against_each_others_compilations(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    flags = ("--budget", "1steps", "--train.compile", "true", "--train.sequence-length")
    with dynamo_config.patch(recompile_limit=2):  # a run needs two: with gradients and without
        codes = [train(tmp_path / str(length), *flags, length) for length in (16, 32)]
    assert codes == [0, 0]


def test_run_says_once_why_its_model_is_compiled_as_several_graphs(
    fail: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    assert fail("counting", "--train.compile", "true", "--budget", "2steps") == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "several graphs" in line]
    assert "tests/support/failing_models.py" in line


@pytest.mark.slow
def test_short_last_batch_of_an_evaluation_is_not_compiled_again(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    losses = []
    for is_compiled in (True, False):
        out = tmp_path / str(is_compiled)
        flags = ("--train.compile", is_compiled, "--train.micro-batch", 4, "--train.dev-tokens", 7 * 32)
        with dynamo_config.patch(recompile_limit=2):
            assert train(out, "--budget", "1steps", "--model.depth", 1, *flags) == 0
        losses.append([row["loss"] for row in lines(out, "dev")])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
