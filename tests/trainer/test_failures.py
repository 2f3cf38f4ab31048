"""A run that goes wrong says whose fault it is, in a sentence, and exits with the code for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import failing_models
import pytest
from tiny import TINY

from trainer.models import ARCHITECTURES

Train = Callable[..., int]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch, dataset_folder: Path, tmp_path: Path) -> Callable[[str], int]:
    """Train a model that goes wrong in this way."""
    monkeypatch.setitem(ARCHITECTURES, "failing", "failing_models")

    def start(way: str) -> int:
        from trainer.train import command

        monkeypatch.setattr(failing_models, "WAY", way)
        flags = ["--arch", "failing", "--budget", "20steps", *TINY[2:]]  # without the depth: it has no such dial
        return command(["--dataset", str(dataset_folder), "--out", str(tmp_path), *flags])

    return start


@pytest.mark.parametrize(
    ("way", "sentence"),
    [
        ("nan", "The loss became nan at step 4 (15% of the budget): training diverged"),
        ("forward", "RuntimeError in a forward pass: the tensors do not fit"),
        ("building", "KeyError while the model was built"),
        ("shape", "The model answers with the shape (2, 32, 321) where (2, 32, 320) is wanted"),
        ("recipe", "no group of the recipe takes the parameter head.weight"),
    ],
)
def test_the_models_own_failure_is_told_to_its_author(
    fail: Callable[[str], int], tmp_path: Path, way: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail(way) == 3
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert failure["cause"] == "model"
    assert sentence in failure["reason"]
    assert sentence in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "result.json").exists()


def test_a_model_that_does_not_fail_trains(fail: Callable[[str], int], tmp_path: Path) -> None:
    assert fail("none") == 0
    assert not (tmp_path / "failure.json").exists()


def test_an_old_failure_does_not_outlive_a_good_run(fail: Callable[[str], int], tmp_path: Path) -> None:
    assert fail("nan") == 3
    assert fail("none") == 0
    assert not (tmp_path / "failure.json").exists()


def test_an_architecture_that_does_not_import_is_its_authors_fault(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARCHITECTURES, "absent", "trainer.models.absent")
    assert train(tmp_path, "--arch", "absent", "--budget", "2steps") == 3
    assert "while the architecture absent was imported" in json.loads((tmp_path / "failure.json").read_text())["reason"]


def test_a_full_disk_is_not_the_models_fault(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer import checkpoint

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save", full)
    assert train(tmp_path, "--budget", "2steps") == 1
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert failure["cause"] == "infrastructure"
    assert "No space left on device" in failure["reason"]
