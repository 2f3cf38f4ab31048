"""Weights that are larger than a shard: written, resumed exactly, and read by everything that reads weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from trainer.checkpoint import files
from trainer.checkpoint.base_weights import find_base_checkpoint
from trainer.checkpoint.files import list_weight_files, load_weights
from trainer.checkpoint.store import (
    CheckpointError,
    find_latest_checkpoint,
    get_checkpoint_path,
    load_model,
    restore_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)
from trainer.cli import sample
from trainer.scoring.compare_replay import compare_weights
from trainer.scoring.run_folder import RunFolder, RunFolderError

Train = Callable[..., int]
SHARD_BYTES = 60_000
FLAGS = ("--budget", "30steps", "--checkpoint-every", "10steps")


@pytest.fixture
def tiny_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SHARD_BYTES", SHARD_BYTES)


@pytest.fixture
def sharded_run(tiny_shards: None, train: Train, tiny_run: Path, tmp_path: Path) -> Path:
    """The tiny run, stopped after 20 steps by the removal of its last checkpoint, and resumed with shards."""
    out = tmp_path / "sharded"
    assert train(out, *FLAGS) == 0
    shutil.rmtree(get_checkpoint_path(out, 30))
    (out / "result.json").unlink()
    assert train(out, *FLAGS) == 0
    return out


def test_sharded_run_resumes_exactly_and_all_readers_agree(
    sharded_run: Path, tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, whole = (get_checkpoint_path(run, 30) for run in (sharded_run, tiny_run))
    files = list_weight_files(ours)
    assert len(files) > 2
    assert all(file.stat().st_size < SHARD_BYTES + 10_000 or len(load_file(file)) == 1 for file in files)
    index = json.loads((ours / "model.safetensors.index.json").read_text())
    assert {ours / name for name in index["weight_map"].values()} == set(files)
    assert list_weight_files(whole) == [whole / "model.safetensors"]
    assert compare_weights(get_checkpoint_path(tiny_run, 20), whole, ours).exact
    assert RunFolder.open(sharded_run).checkpoint_floats == RunFolder.open(tiny_run).checkpoint_floats
    loaded = [load_model(run).state_dict() for run in (sharded_run, tiny_run)]
    assert all(torch.equal(loaded[0][name], tensor) for name, tensor in loaded[1].items())
    assert find_base_checkpoint(sharded_run).load_tensors().keys() == load_weights(whole).keys()
    capsys.readouterr()
    texts = []
    for run in (sharded_run, tiny_run):
        assert sample.main([str(run), "--prompt", "The", "--max-tokens", "8", "--seed", "3"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


def test_run_starts_from_sharded_weights(sharded_run: Path, train: Train, tmp_path: Path) -> None:
    assert train(tmp_path / "next", "--from", sharded_run, "--budget", "2steps") == 0
    lineage = json.loads((tmp_path / "next" / "run.json").read_text())["from"]
    assert lineage["sha256"] == find_base_checkpoint(sharded_run).hash_weights()


def test_missing_or_changed_shard_is_reported(sharded_run: Path) -> None:
    folder = find_latest_checkpoint(sharded_run)
    assert folder is not None
    shard = list_weight_files(folder)[1]
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=f"{shard.name} is damaged"):
        verify_checkpoint(folder)
    shard.unlink()
    with pytest.raises(RunFolderError, match=f"has no {shard.name}"):
        RunFolder.open(sharded_run)
    with pytest.raises(FileNotFoundError, match="lacks a shard"):
        list_weight_files(folder)


def test_shared_tensor_is_restored_from_shards(tiny_shards: None, tmp_path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(100, 200), "b": nn.Linear(100, 200)})
    model["b"].weight = model["a"].weight
    folder = get_checkpoint_path(tmp_path, 1)
    write_checkpoint(folder, model, None, {"step": 1})
    before = model["a"].weight.detach().clone()
    nn.init.zeros_(model["a"].weight)
    restore_checkpoint(folder, model, [])
    assert torch.equal(model["b"].weight, before)
    with pytest.raises(CheckpointError, match="does not fit"):
        restore_checkpoint(folder, nn.ModuleDict({"a": nn.Linear(100, 200), "c": nn.Linear(1, 1)}), [])
