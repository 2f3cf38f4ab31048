"""The architecture in CONTRIBUTING.md trains exactly as printed there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.metrics_lines import lines
from tests.support.paths import REPOSITORY
from tests.support.tiny import TRACED_TRAINING
from trainer.models import ARCHITECTURES
from trainer.train import main

PAGE = REPOSITORY / "CONTRIBUTING.md"
NAME = "waves_of_contributing"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The code block as a module, with its line in the dict; return its text."""
    text = PAGE.read_text().partition("```python\n")[2].partition("```")[0]
    (tmp_path / f"{NAME}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(ARCHITECTURES, "waves", NAME)
    yield text
    sys.modules.pop(NAME, None)


def test_contributing_example_trains(example: str, dataset_folder: Path, tmp_path: Path) -> None:
    assert 40 < len([line for line in example.splitlines() if line.strip()]) <= 60
    flags = ["--arch", "waves", "--dataset", str(dataset_folder), "--out", str(tmp_path / "run"), "--budget", "30steps"]
    assert main([*flags, "--model.depth", "2", "--model.width", "32", *TRACED_TRAINING]) == 0
    dev = [line["loss"] for line in lines(tmp_path / "run", "dev")]
    assert dev[-1] < 0.75 * dev[0]
