"""Checkpoints are written atomically, and damage is reported in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from trainer.checkpoint.files import get_checkpoint_step, list_checkpoints
from trainer.checkpoint.store import (
    CheckpointError,
    describe_file,
    find_latest_checkpoint,
    get_checkpoint_path,
    load_model,
    prune_checkpoints,
    restore_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)
from trainer.protocol import Checkpoint


@pytest.fixture
def run_copy(tiny_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, for tests that damage it."""
    return Path(shutil.copytree(tiny_run, tmp_path / "run"))


def parts() -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    model = nn.Linear(3, 2)
    return model, [torch.optim.AdamW(model.parameters())]


def test_manifest_describes_every_file(tiny_run: Path) -> None:
    folder = get_checkpoint_path(tiny_run, 30)
    manifest = Checkpoint.model_validate_json((folder / "manifest.json").read_bytes())
    assert manifest.step == 30
    assert {file.path for file in manifest.files} == {path.name for path in folder.iterdir()} - {"manifest.json"}
    assert all(describe_file(folder / file.path) == file for file in manifest.files)


def test_checkpoint_is_restored_with_its_state(tmp_path: Path) -> None:
    model, optimizers = parts()
    model(torch.ones(1, 3)).sum().backward()
    optimizers[0].step()
    folder = get_checkpoint_path(tmp_path, 7)
    write_checkpoint(folder, model, optimizers, {"step": 7, "note": [1.5, None]})
    other, others = parts()
    assert verify_checkpoint(folder) == {"step": 7, "note": [1.5, None]}
    restore_checkpoint(folder, other, others)
    assert torch.equal(other.weight, model.weight)  # type: ignore[arg-type]
    assert others[0].state_dict()["state"][0]["exp_avg"].equal(optimizers[0].state_dict()["state"][0]["exp_avg"])


def test_folder_without_manifest_is_ignored(run_copy: Path) -> None:
    (get_checkpoint_path(run_copy, 30) / "manifest.json").unlink()
    assert find_latest_checkpoint(run_copy) == get_checkpoint_path(run_copy, 20)


def test_interrupted_write_leaves_previous_checkpoint(run_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object) -> None:
        raise OSError("No space left on device")

    model, optimizers = parts()
    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_checkpoint(get_checkpoint_path(run_copy, 40), model, optimizers, {"step": 40})
    assert find_latest_checkpoint(run_copy) == get_checkpoint_path(run_copy, 30)


def test_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert find_latest_checkpoint(tmp_path) is None
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        load_model(tmp_path)


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


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "manifest.json").write_text("{"),
        lambda folder: (folder / "manifest.json").write_text('{"step": 30, "files": []}'),
    ],
    ids=["missing file", "cut manifest", "empty manifest"],
)
def test_other_damage_is_reported(run_copy: Path, damage: Callable[[Path], object]) -> None:
    damage(get_checkpoint_path(run_copy, 30))
    with pytest.raises(CheckpointError, match="is damaged"):
        load_model(run_copy)


def test_restore_executes_no_code(run_copy: Path) -> None:
    """A pickle with code is refused, even with a matching manifest."""
    import pickle

    folder, marker = get_checkpoint_path(run_copy, 30), run_copy / "executed"

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (marker,)

    (folder / "optimizer.pt").write_bytes(pickle.dumps(Evil(), protocol=2))
    files = tuple(describe_file(folder / name) for name in ("model.safetensors", "optimizer.pt", "state.json"))
    (folder / "manifest.json").write_text(Checkpoint(step=30, files=files).model_dump_json())
    model = load_model(run_copy)
    with pytest.raises(CheckpointError, match=r"optimizer\.pt does not fit"):
        restore_checkpoint(folder, model, [torch.optim.AdamW(model.parameters())])
    assert not marker.exists()


def test_load_model_returns_model_in_eval_mode(run_copy: Path) -> None:
    (get_checkpoint_path(run_copy, 20) / "optimizer.pt").unlink()  # scorers do not get it
    model = load_model(run_copy, get_checkpoint_path(run_copy, 20))
    assert not model.training
    assert model(torch.zeros(1, 5, dtype=torch.int64)).shape == (1, 5, 320)


def test_weights_of_other_shape_are_rejected(run_copy: Path) -> None:
    run = json.loads((run_copy / "run.json").read_text())
    run["model"]["depth"] = 3
    (run_copy / "run.json").write_text(json.dumps(run))
    with pytest.raises(CheckpointError, match="does not fit this run's architecture"):
        load_model(run_copy)


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


def test_prune_deletes_oldest(tmp_path: Path) -> None:
    model, optimizers = parts()
    for step in (1, 2, 30, 100_000_000):
        write_checkpoint(get_checkpoint_path(tmp_path, step), model, optimizers, {"step": step})
    prune_checkpoints(tmp_path, 2)
    assert [get_checkpoint_step(folder) for folder in list_checkpoints(tmp_path)] == [30, 100_000_000]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


@pytest.mark.parametrize("name", ["checkpoints/.step-00000001.partial", "checkpoints/step-00000001"])
def test_prune_after_a_kill_deletes_incomplete_folders(tmp_path: Path, name: str) -> None:
    model, optimizers = parts()
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "model.safetensors").write_text("some of the weights")
    milestone = tmp_path / "milestones" / ".step-00000001.partial"
    milestone.mkdir(parents=True)
    write_checkpoint(get_checkpoint_path(tmp_path, 2), model, optimizers, {"step": 2})
    prune_checkpoints(tmp_path, 2)
    assert list((tmp_path / "checkpoints").iterdir()) == [get_checkpoint_path(tmp_path, 2)]
    assert not milestone.exists()


def test_shared_tensors_are_stored_once(tmp_path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    write_checkpoint(get_checkpoint_path(tmp_path, 1), model, [], {"step": 1})
    before = model["a"].weight.detach().clone()
    nn.init.zeros_(model["a"].weight)
    restore_checkpoint(get_checkpoint_path(tmp_path, 1), model, [])
    assert torch.equal(model["b"].weight, before)


def test_final_checkpoint_has_no_optimizer_state(tiny_run: Path) -> None:
    earlier, final = (get_checkpoint_path(tiny_run, step) for step in (20, 30))
    assert {path.name for path in earlier.iterdir()} - {path.name for path in final.iterdir()} == {"optimizer.pt"}
