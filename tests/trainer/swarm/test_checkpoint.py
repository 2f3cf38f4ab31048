"""Checkpoints of a swarm run and the coordinator's journal: resuming, pruning, assembly, incomplete lines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.support.swarm_chain import build_stages, build_tiny_config, train_stages
from trainer.checkpoint.base_weights import find_base_checkpoint
from trainer.checkpoint.store import CheckpointError, load_model
from trainer.cli import sample
from trainer.data.dataset import Dataset
from trainer.scoring.run_folder import RunFolder
from trainer.swarm import checkpoint, coordinator_main
from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches
from trainer.swarm.journal import JOURNAL_FILE, Journal, JournalLine, JournalState, get_losses, read_journal
from trainer.swarm.stage import Stage


@pytest.fixture(scope="module")
def trained_run(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SwarmConfig, list[float]]:
    """A run of six steps, with versions 0, 3 and 6, and its losses. Do not change it."""
    config, folder = build_tiny_config(dataset), tmp_path_factory.mktemp("swarm")
    stages, losses = build_stages(config), []
    for version in (0, 3, 6):
        save_stages(folder, config, stages)
        losses += train_stages(stages, Batches(dataset, config), 3 if version < 6 else 0)
    return folder, config, losses


@pytest.fixture
def run(trained_run: tuple[Path, SwarmConfig, list[float]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_run[0], tmp_path / "run"))


@pytest.fixture
def config(trained_run: tuple[Path, SwarmConfig, list[float]]) -> SwarmConfig:
    return trained_run[1]


def save_stages(folder: Path, config: SwarmConfig, stages: list[Stage]) -> None:
    for stage in stages:
        checkpoint.save_stage(folder, config, stage.index, stage.version, stage.copy_state())


def test_run_resumes_from_a_version_with_the_same_losses(
    trained_run: tuple[Path, SwarmConfig, list[float]], dataset: Dataset
) -> None:
    folder, config, losses = trained_run
    assert checkpoint.list_versions(folder, config) == [0, 3, 6]
    stages = build_stages(config)
    for stage in stages:
        stage.load_state(checkpoint.load_stage(folder, config, stage.index, 3), 3)
    assert list(train_stages(stages, Batches(dataset, config), 3)) == losses[3:]


def test_only_complete_undamaged_versions_of_the_run_are_resumed(run: Path, config: SwarmConfig) -> None:
    assert checkpoint.find_latest(run, config.model_copy(update={"seed": 6})) is None
    folder = checkpoint.get_version_folder(run, 6)
    content = bytearray((folder / "stage-0.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "stage-0.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged"):
        checkpoint.load_stage(run, config, 0, 6)
    (folder / "stage-0.safetensors").write_bytes(content[:-1])
    assert checkpoint.find_latest(run, config) == 3
    with pytest.raises(CheckpointError, match="is missing, incomplete"):
        checkpoint.load_stage(run, config, 0, 6)
    (checkpoint.get_version_folder(run, 3) / "stage-1.json").unlink()
    assert checkpoint.find_latest(run, config) == 0


def test_prune_keeps_newest_and_newer_incomplete_versions(run: Path, config: SwarmConfig) -> None:
    (checkpoint.get_version_folder(run, 0) / "stage-0.json").unlink()
    checkpoint.save_stage(run, config, 0, 9, checkpoint.load_stage(run, config, 0, 6))
    checkpoint.prune_versions(run, config, 1)
    assert sorted(f.name for f in (run / checkpoint.FOLDER).iterdir()) == ["00000006", "00000009"]
    checkpoint.prune_versions(run, config, 1)
    assert checkpoint.list_versions(run, config) == [6]


def test_assembled_run_is_readable_by_other_commands(
    run: Path, config: SwarmConfig, dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CheckpointError, match="no version with all of its 2 stages"):
        checkpoint.assemble_run(run.parent, config, dataset)
    folder = checkpoint.assemble_run(run, config, dataset, seconds=1.5)
    model = load_model(run)
    for stage in range(config.stages):
        state = checkpoint.load_stage(run, config, stage, 6)
        for name, tensor in model.named_parameters():
            assert torch.equal(tensor, state.get(f"weight.{name}", tensor))
    opened = RunFolder.open(run)
    assert (opened.checkpoint, opened.step, opened.arch) == (folder.resolve(), 6, "gpt")
    assert (opened.train_tokens, opened.train_seconds) == (6 * 4 * config.micro_batch * 16, 1.5)
    assert find_base_checkpoint(run).step == 6
    assert opened.train_flops == pytest.approx(
        opened.train_tokens * json.loads((run / "run.json").read_bytes())["flops_per_token"]
    )
    assert opened.tokenizer_sha256 == dataset.tokenizer.sha256
    assert sample.main([str(run), "--prompt", "The", "--max-tokens", "3"]) == 0
    assert capsys.readouterr().out.startswith("The")


# --- the coordinator's journal ----------------------------------------------------------------------------------------


def test_incomplete_last_line_is_removed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("run", config={"steps": 3})
    journal.write("commit", step=0, loss=5.0)
    journal.close()
    with (tmp_path / JOURNAL_FILE).open("ab") as file:
        file.write(b'{"kind": "commit", "step": 1, "lo')
    assert [line["kind"] for line in read_journal(tmp_path)] == ["run", "commit"]
    journal = Journal(tmp_path)
    journal.write("commit", step=1, loss=4.0)
    journal.close()
    assert get_losses(read_journal(tmp_path)) == [5.0, 4.0]


def test_second_coordinator_is_refused_in_one_line(
    tmp_path: Path, dataset_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(tmp_path)
    journal.write("run", config={"steps": 3})
    (tmp_path / "config.json").write_text(build_tiny_config(Dataset.open(dataset_folder)).model_dump_json())
    flags = ["--out", tmp_path, "--dataset", dataset_folder, "--config", tmp_path / "config.json"]
    assert coordinator_main.main([str(flag) for flag in flags]) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path} is in use by another coordinator")
    assert not list(tmp_path.glob("*.key"))
    journal.write("start", generation=1)
    journal.close()
    Journal(tmp_path).close()
    assert [line["kind"] for line in read_journal(tmp_path)] == ["run", "start"]


def test_state_has_members_and_the_version_after_a_rollback() -> None:
    lines: list[JournalLine] = [{"kind": "start", "generation": 4}]
    lines += [{"kind": kind, "peer": peer} for kind, peer in (("join", "a"), ("join", "b"), ("leave", "a"))]
    lines += [{"kind": "commit", "step": step, "loss": 5.0 - step} for step in range(4)]
    lines.append({"kind": "rollback", "to": 2})
    state = JournalState.from_lines(lines)
    assert (list(state.members), state.generation, state.version, state.commit) == (["b"], 4, 2, None)
    again = {"kind": "commit", "step": 2, "loss": 1.0}
    state = JournalState.from_lines([*lines, again])
    assert (state.version, state.commit) == (3, again)
    assert get_losses([*lines, again]) == [5.0, 4.0, 1.0, 2.0]
