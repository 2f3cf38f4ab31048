"""Fixtures: a corpus of a few hundred short texts, its dataset, and a finished run of a second."""

from __future__ import annotations

import gc
import inspect
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonargparse
import pytest

from tests.support.tiny import TINY, TINY_TRACED

# jsonargparse asks on each parse which module calls it. Of pytest's 80 frames the whole `stack` takes 35 ms.
jsonargparse._core.inspect = SimpleNamespace(  # type: ignore[assignment,attr-defined]
    **{**vars(inspect), "stack": lambda: [(sys._getframe(depth),) for depth in (1, 2)]}
)
_frozen_modules: list[int] = [0]


def pytest_runtest_teardown() -> None:
    """Exclude modules that a test has imported from garbage collections: each training run collects twice."""
    if len(sys.modules) > _frozen_modules[0] + 20:
        _frozen_modules[0] = len(sys.modules)
        gc.collect()
        gc.freeze()


NOUNS = ["cat", "dog", "king", "queen", "train", "river", "night", "stone", "lamp", "bird"]
VERBS = ["sees", "finds", "loves", "leaves", "carries", "answers", "follows", "paints"]


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 text files of simple sentences, always the same."""
    folder = tmp_path_factory.mktemp("corpus")
    chance = random.Random(1)
    for number in range(300):
        sentences = (
            f"The {chance.choice(NOUNS)} {chance.choice(VERBS)} the {chance.choice(NOUNS)}." for _ in range(30)
        )
        (folder / f"{number:03}.txt").write_text(" ".join(sentences))
    return folder


@pytest.fixture(scope="session")
def dataset_folder(corpus_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus prepared, with a vocabulary of 320."""
    from trainer.data.dataset import prepare_dataset

    folder = tmp_path_factory.mktemp("prepared") / "dataset"
    prepare_dataset(f"files:{corpus_folder}/*.txt", "bpe:320", folder)
    return folder


@pytest.fixture
def train(dataset_folder: Path) -> Callable[..., int]:
    """Train a tiny run in this process: `train(out, "--budget", "5steps") -> exit code`."""

    def start(out: Path, *flags: Any) -> int:
        from trainer.train import main

        return main(["--dataset", str(dataset_folder), "--out", str(out), *TINY, *map(str, flags)])

    return start


@pytest.fixture(scope="session")
def tiny_run(dataset_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of 30 steps. For reading only."""
    from trainer.train import main

    out = tmp_path_factory.mktemp("runs") / "tiny"
    flags = ["--dataset", str(dataset_folder), "--out", str(out), "--budget", "30steps", *TINY]
    assert main([*flags, "--checkpoint-every", "10steps"]) == 0
    return out


@pytest.fixture
def refuse(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run `dailytrain` with words that it must refuse with exit code 2 in one line, which is returned."""
    from trainer.cli.main import main

    def run(*words: Any) -> str:
        capfd.readouterr()
        try:
            code: Any = main([*map(str, words)])
        except SystemExit as ended:
            code = ended.code
        output, error = capfd.readouterr()
        assert (code, output, error.count("\n")) == (2, "", 1), error
        return error

    return run


@pytest.fixture(scope="session")
def traced_run(dataset_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of graphs of 6 steps, with its checkpoints of steps 3 and 6. For reading only."""
    from trainer.train import main

    out = tmp_path_factory.mktemp("runs") / "traced"
    flags = ["--dataset", str(dataset_folder), "--out", str(out), "--budget", "6steps", *TINY_TRACED]
    assert main([*flags, "--checkpoint-every", "3steps", "--keep", "9"]) == 0
    return out
