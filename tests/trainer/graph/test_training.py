"""Training from a graph: the same numbers as from Python, exact resume, and no Python of the architecture."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.cheats import forged_files
from tests.support.interrupted_runs import AfterSteps
from tests.support.metrics_lines import CLOCK, lines
from trainer.cli.main import main
from trainer.config.parsing import parse_config
from trainer.train import main as train
from trainer.train import run_training
from trainer.training.run import StopRequest

pytestmark = pytest.mark.processes

FLAGS = (
    *("--train.sequence-length", "32", "--train.batch", "4", "--train.dev-tokens", "256", "--train.sample-tokens", "4"),
    *("--device", "cpu", "--threads", "1", "--train.precision", "fp32"),
    *("--budget", "6steps", "--checkpoint-every", "3steps", "--keep", "9", "--train.evaluations", "2"),
)
COUNTED = ("flops", "mfu", "mfu_windowed")  # a graph's count has element-wise work, too


@pytest.fixture(scope="module")
def graph_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph")
    size = ("--depth", "2", "--sequence-length", "32", "--vocabulary-size", "320")
    fields = ("--set", "width=32", "--set", "heads=2", "--set", "end_of_text=0")
    assert main(["trace", "gpt", "--out", str(folder), *size, *fields]) == 0
    return folder


def start(out: Path, dataset: Path, *flags: object, stop_after: int | None = None) -> int:
    config = parse_config(["--out", str(out), "--dataset", str(dataset), *FLAGS, *map(str, flags)])
    stop = StopRequest() if stop_after is None else AfterSteps(stop_after)
    return run_training(config, Console(stderr=True, quiet=True), stop)


def read_numbers(out: Path) -> list[dict[str, object]]:
    return [
        {k: v for k, v in row.items() if k not in (*CLOCK, *COUNTED)} for row in lines(out, "train", "dev", "sample")
    ]


@pytest.mark.slow
def test_training_from_graph_equals_training_from_python(
    graph_folder: Path, dataset_folder: Path, tmp_path: Path
) -> None:
    python = ("--eager", "--arch", "gpt", "--model.depth", 2, "--model.width", 32, "--model.heads", 2)
    assert start(tmp_path / "python", dataset_folder, *python) == 0
    assert start(tmp_path / "graph", dataset_folder, "--graph", graph_folder) == 0
    assert read_numbers(tmp_path / "graph") == read_numbers(tmp_path / "python")
    run = json.loads((tmp_path / "graph" / "run.json").read_text())
    assert run["identity"]["graph"]


def test_log_of_run_from_graph_names_no_default_depth(
    graph_folder: Path, dataset_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--out", str(tmp_path), "--dataset", str(dataset_folder), *FLAGS, "--graph", str(graph_folder)]
    assert train([*flags, "--budget", "1steps"]) == 0
    line = next(line for line in capsys.readouterr().err.splitlines() if "FLOPs a token" in line)
    assert "sequence_length 32" in line
    assert "depth" not in line


@pytest.mark.slow
def test_stopped_training_from_graph_resumes_exactly(graph_folder: Path, dataset_folder: Path, tmp_path: Path) -> None:
    assert start(tmp_path / "whole", dataset_folder, "--graph", graph_folder) == 0
    assert start(tmp_path / "stopped", dataset_folder, "--graph", graph_folder, stop_after=2) == 130
    assert start(tmp_path / "stopped", dataset_folder, "--graph", graph_folder) == 0
    assert read_numbers(tmp_path / "stopped") == read_numbers(tmp_path / "whole")


def test_graph_of_other_sizes_is_refused(
    graph_folder: Path, dataset_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--dataset", str(dataset_folder), *FLAGS, "--graph", str(graph_folder), "--train.sequence-length", "16")
    assert main(["train", "--out", str(tmp_path), *flags]) == 2
    assert "the graph was traced for sequence_length 32, and this run has 16" in capsys.readouterr().err


def test_graph_with_options_of_a_module_is_refused(
    graph_folder: Path, dataset_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--dataset", str(dataset_folder), *FLAGS, "--graph", str(graph_folder), "--model.depth", "3")
    assert main(["train", "--out", str(tmp_path), *flags]) == 2
    assert "graph fixes the model" in capsys.readouterr().err


def test_run_pays_for_its_initialization(graph_folder: Path, dataset_folder: Path, tmp_path: Path) -> None:
    costly = tmp_path / "costly"
    shutil.copytree(graph_folder, costly)
    init = costly / "init.json"

    def multiply_matrices(append: forged_files.Append) -> None:
        matrix = append("aten::randn", [400, 400])
        for _ in range(5):
            append("aten::mm", matrix, matrix)

    files = forged_files.edit_initialization(multiply_matrices)({"init.json": init.read_bytes()})
    init.write_bytes(files["init.json"])
    work = 5 * 2 * 400**3
    states = {}
    for folder in (graph_folder, costly):
        out = tmp_path / f"run-{folder.name}"
        assert start(out, dataset_folder, "--graph", folder, "--budget", f"{work + 10**8}flops") == 0
        states[folder] = json.loads((out / "run.json").read_text()), lines(out, "train")[-1]
    (plain, last), (paid, last_paid) = states[graph_folder], states[costly]
    per_step = plain["flops_per_token"] * 4 * 32
    assert paid["flops_per_token"] == plain["flops_per_token"]
    assert last_paid["flops"] - last_paid["step"] * per_step == pytest.approx(work, rel=0.01)
    assert last["step"] - last_paid["step"] == pytest.approx(work / per_step, abs=2)
