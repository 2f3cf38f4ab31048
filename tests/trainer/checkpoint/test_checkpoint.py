"""Checkpoints are written atomically, in the background and in shards, and damage is reported in one line."""

from __future__ import annotations

import json
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.support.waits import WAIT_SECONDS
from trainer.checkpoint import files
from trainer.checkpoint.base_weights import find_base_checkpoint
from trainer.checkpoint.files import MANIFEST, get_checkpoint_step, list_checkpoints, list_weight_files, load_weights
from trainer.checkpoint.store import (
    CheckpointError,
    CheckpointWriter,
    describe_file,
    find_latest_checkpoint,
    get_checkpoint_path,
    load_model,
    prune_checkpoints,
    restore_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)
from trainer.cli import sample
from trainer.protocol import Checkpoint
from trainer.scoring.compare_replay import compare_weights
from trainer.scoring.run_folder import RunFolder, RunFolderError


@pytest.fixture
def run_copy(tiny_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, for tests that damage it."""
    return Path(shutil.copytree(tiny_run, tmp_path / "run"))


def parts() -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    model = nn.Linear(3, 2)
    return model, [torch.optim.AdamW(model.parameters())]


def test_manifest_describes_every_file_and_the_last_has_no_optimizer_state(tiny_run: Path) -> None:
    for step, names in (
        (20, {"model.safetensors", "optimizer.pt", "state.json"}),
        (30, {"model.safetensors", "state.json"}),
    ):
        folder = get_checkpoint_path(tiny_run, step)
        manifest = Checkpoint.model_validate_json((folder / MANIFEST).read_bytes())
        assert manifest.step == step
        assert {file.path for file in manifest.files} == names == {path.name for path in folder.iterdir()} - {MANIFEST}
        assert all(describe_file(folder / file.path) == file for file in manifest.files)


def test_interrupted_write_leaves_previous_checkpoint(run_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object) -> None:
        raise OSError("No space left on device")

    model, optimizers = parts()
    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_checkpoint(get_checkpoint_path(run_copy, 40), model, optimizers, {"step": 40})
    assert find_latest_checkpoint(run_copy) == get_checkpoint_path(run_copy, 30)
    (get_checkpoint_path(run_copy, 30) / MANIFEST).unlink()
    assert find_latest_checkpoint(run_copy) == get_checkpoint_path(run_copy, 20), "a folder without manifest counts not"


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "state.json"])
def test_changed_file_error_names_file_and_remedy(tmp_path: Path, name: str) -> None:
    model, optimizers = parts()
    for step in (20, 30):
        write_checkpoint(get_checkpoint_path(tmp_path, step), model, optimizers, {"step": step})
    file = get_checkpoint_path(tmp_path, 30) / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name} is damaged.*resume from step-00000020") as refusal:
        verify_checkpoint(file.parent)
    assert "\n" not in str(refusal.value)


def change_depth(folder: Path) -> None:
    file = folder.parents[1] / "run.json"
    run = json.loads(file.read_text())
    file.write_text(json.dumps({**run, "model": {**run["model"], "depth": 3}}))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "is damaged"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "is damaged"),
        (lambda folder: (folder / MANIFEST).write_text('{"step": 30, "files": []}'), "is damaged"),
        (change_depth, "does not fit this run's architecture"),
        (lambda folder: shutil.rmtree(folder.parent), "no complete checkpoint"),
    ],
    ids=["missing file", "cut manifest", "empty manifest", "another depth", "no checkpoint"],
)
def test_other_damage_is_reported(run_copy: Path, damage: Callable[[Path], object], reason: str) -> None:
    damage(get_checkpoint_path(run_copy, 30))
    with pytest.raises(CheckpointError, match=reason):
        load_model(run_copy)


def test_restore_executes_no_code(run_copy: Path) -> None:
    """A pickle with code is refused, even with a matching manifest."""
    folder, marker = get_checkpoint_path(run_copy, 30), run_copy / "executed"

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (marker,)

    (folder / "optimizer.pt").write_bytes(pickle.dumps(Evil(), protocol=2))
    files = tuple(describe_file(folder / name) for name in ("model.safetensors", "optimizer.pt", "state.json"))
    (folder / MANIFEST).write_text(Checkpoint(step=30, files=files).model_dump_json())
    model = load_model(run_copy)
    with pytest.raises(CheckpointError, match=r"optimizer\.pt does not fit"):
        restore_checkpoint(folder, model, [torch.optim.AdamW(model.parameters())])
    assert not marker.exists()


@pytest.mark.parametrize("step", [1, 2])
def test_checkpoint_is_complete_or_hidden_while_one_is_deleted(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a kill leaves at that moment: `step` 1 is pruned, and 2 is written again."""
    model, optimizers = parts()
    for each in (1, 2):
        write_checkpoint(get_checkpoint_path(tmp_path, each), model, optimizers, {"step": each})
    delete, found = shutil.rmtree, set()

    def look(path: Path, **options: bool) -> None:
        is_there = path.is_dir()
        for change in (lambda: None, lambda: delete(path, **options)):
            change()
            folders = sorted((tmp_path / "checkpoints").glob("step-*"))
            if is_there:
                found.add(tuple(folder.name for folder in folders if verify_checkpoint(folder)))

    monkeypatch.setattr(shutil, "rmtree", look)
    if step == 1:
        prune_checkpoints(tmp_path, 1)
    else:
        write_checkpoint(get_checkpoint_path(tmp_path, 2), model, optimizers, {"step": 2})
    assert found == {("step-00000002",) if step == 1 else ("step-00000001", "step-00000002")}


@pytest.mark.parametrize("name", ["checkpoints/.step-00000001.partial", "checkpoints/step-00000001"])
def test_prune_deletes_oldest_and_incomplete_folders_of_a_kill(tmp_path: Path, name: str) -> None:
    model, optimizers = parts()
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "model.safetensors").write_text("some of the weights")
    milestone = tmp_path / "milestones" / ".step-00000001.partial"
    milestone.mkdir(parents=True)
    for step in (2, 30, 100_000_000):
        write_checkpoint(get_checkpoint_path(tmp_path, step), model, optimizers, {"step": step})
    prune_checkpoints(tmp_path, 2)
    assert [get_checkpoint_step(folder) for folder in list_checkpoints(tmp_path)] == [30, 100_000_000]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
    assert not milestone.exists()


def test_writes_run_in_the_background_one_after_the_other() -> None:
    writer, go, written = CheckpointWriter(), threading.Event(), []
    writer.begin(lambda: go.wait(WAIT_SECONDS) and written.append(0))
    writer.check()
    assert written == []
    go.set()
    for number in range(1, 5):
        writer.begin(lambda number=number: written.append(number))  # type: ignore[misc]
    writer.wait()
    assert written == [0, 1, 2, 3, 4]


Train = Callable[..., int]
SHARD_BYTES = 60_000


def test_sharded_run_resumes_exactly_and_all_readers_agree(
    train: Train, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tiny run from its checkpoint of step 20 on, with shards."""
    monkeypatch.setattr(files, "SHARD_BYTES", SHARD_BYTES)
    run = tmp_path / "sharded"
    half, ours, whole = (get_checkpoint_path(*place) for place in ((tiny_run, 20), (run, 30), (tiny_run, 30)))
    shutil.copytree(half, get_checkpoint_path(run, 20))
    assert train(run, "--budget", "30steps", "--checkpoint-every", "10steps") == 0
    shards = list_weight_files(ours)
    assert len(shards) > 2
    assert all(file.stat().st_size < SHARD_BYTES + 10_000 or len(load_file(file)) == 1 for file in shards)
    index = json.loads((ours / "model.safetensors.index.json").read_text())
    assert {ours / name for name in index["weight_map"].values()} == set(shards)
    assert list_weight_files(whole) == [whole / "model.safetensors"]
    assert compare_weights(half, whole, ours).exact
    assert RunFolder.open(run).checkpoint_floats == RunFolder.open(tiny_run).checkpoint_floats
    loaded = [load_model(out).state_dict() for out in (run, tiny_run)]
    assert all(torch.equal(loaded[0][name], tensor) for name, tensor in loaded[1].items())
    assert find_base_checkpoint(run).load_tensors().keys() == load_weights(whole).keys()
    capsys.readouterr()
    texts = []
    for out in (run, tiny_run):
        assert sample.main([str(out), "--prompt", "The", "--max-tokens", "8", "--seed", "3"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]

    assert train(tmp_path / "next", "--from", run, "--budget", "2steps") == 0
    lineage = json.loads((tmp_path / "next" / "run.json").read_text())["from"]
    assert lineage["sha256"] == find_base_checkpoint(run).hash_weights()

    shard = shards[1]
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=f"{shard.name} is damaged"):
        verify_checkpoint(ours)
    shard.unlink()
    with pytest.raises(RunFolderError, match=f"has no {shard.name}"):
        RunFolder.open(run)
    with pytest.raises(FileNotFoundError, match="lacks a shard"):
        list_weight_files(ours)


@pytest.mark.parametrize("shard_bytes", [SHARD_BYTES, files.SHARD_BYTES])
def test_shared_tensor_is_restored(shard_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SHARD_BYTES", shard_bytes)
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
