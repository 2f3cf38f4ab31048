"""Replays of stretches of a run: bit-identical if a node's checkpoints are honest, and far from them otherwise."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import json
import random
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.tiny import TINY
from trainer.checkpoint.files import MANIFEST, get_checkpoint_step, list_checkpoints
from trainer.checkpoint.store import describe_file
from trainer.config.parsing import parse_config
from trainer.distributed.sharding import load_full_optimizer_state
from trainer.protocol import Checkpoint
from trainer.protocol.files import OPTIMIZER_FILE, STATE_FILE
from trainer.scoring.compare_replay import MAX_DEVIATION, ReplayComparison, compare_checkpoints, compare_weights
from trainer.scoring.compare_replay import main as compare_command
from trainer.train import main as train_command
from trainer.training import loop
from trainer.training.replay import apply_recorded_fields, main

INTERVALS = ("--checkpoint-every", "8steps", "--keep", "9")


def train(dataset: Path, out: Path, budget: str = "20steps") -> list[Path]:
    """Train a tiny run; return its checkpoints."""
    flags = ["--dataset", str(dataset), "--out", str(out), "--budget", budget, *INTERVALS, *TINY]
    assert train_command(flags) == 0
    return list_checkpoints(out)


@pytest.fixture(scope="module")
def checkpoints(dataset_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Those of steps 8, 16 and 20 of a run. For reading only."""
    return train(dataset_folder, tmp_path_factory.mktemp("replay") / "run")


def replay_steps(dataset: Path, out: Path, claimed: Path, budget: str, *steps: int) -> int:
    """Replay up to some steps, from the checkpoint in `out` if there is one; return the exit code."""
    state = json.loads((claimed / STATE_FILE).read_text())
    recorded = out.parent / "recorded.json"
    recorded.write_text(json.dumps({"clock": state["clock"], "train": state["identity"]["train"]}))
    words = ["--dataset", str(dataset), "--out", str(out), "--budget", budget, *TINY]
    return main(["--until", *map(str, steps), "--recorded-state", str(recorded), *words])


def copy_start(start: Path, out: Path) -> Path:
    """Copy a checkpoint to a run's folder, to replay from it."""
    return Path(shutil.copytree(start, out / "checkpoints" / start.name))


def set_clock(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[], float]) -> None:
    """Let each reading of a run's clock be later by so many seconds."""
    ticks = itertools.accumulate(seconds() for _ in itertools.count())
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(ticks), monotonic=time.monotonic))


@pytest.mark.slow
def test_replay_of_stretches_from_first_weights_is_bit_identical(
    checkpoints: list[Path], dataset_folder: Path, tmp_path: Path
) -> None:
    assert replay_steps(dataset_folder, tmp_path / "again", checkpoints[-1], "20steps", 8, 16, 20) == 0
    start, *replayed = list_checkpoints(tmp_path / "again")
    for claimed, ours in zip(checkpoints, replayed, strict=True):
        assert compare_checkpoints(start, claimed, ours, start_is_replayed=True) == (True, 0.0, 0.0)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkpoint")]


@pytest.mark.slow
def test_replay_of_budget_in_seconds_is_bit_identical(
    dataset_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedule depends on the seconds charged for each step, which the checkpoint has."""
    rng = random.Random(0)
    set_clock(monkeypatch, lambda: rng.uniform(0.01, 0.05))
    first, second, *_ = train(dataset_folder, tmp_path / "run", "1s")
    assert len(json.loads((second / STATE_FILE).read_text())["clock"]) == get_checkpoint_step(second)
    start = copy_start(first, tmp_path / "again")
    assert replay_steps(dataset_folder, tmp_path / "again", second, "1s", get_checkpoint_step(second)) == 0
    assert compare_checkpoints(start, second, list_checkpoints(tmp_path / "again")[-1]) == (True, 0.0, 0.0)


@pytest.mark.parametrize(
    "train",
    [
        {"micro_batch": 3},
        {"micro_batch": "abc"},
        {"micro_batch": 0},
        {"micro_batch": True},
        {"precision": "fp64", "muon_precision": ["bf16"], "compile": "yes"},
    ],
)
def test_recorded_fields_that_are_impossible_are_ignored(train: dict[str, Any], dataset_folder: Path) -> None:
    words = ["--dataset", str(dataset_folder), "--out", "run", "--budget", "20steps", *TINY]
    config = parse_config(words, "trainer.training.replay")
    assert apply_recorded_fields(config, {**train, "device": "cuda"}) == config
    changed = apply_recorded_fields(config, {**train, "muon_precision": "bf16"})
    assert changed.train == dataclasses.replace(config.train, muon_precision="bf16")


@pytest.mark.parametrize(
    ("ends", "start_is_replayed", "deviation"),
    [
        ((0.0, 2.0, 2.5), False, 0.25),
        ((1e6, 2.0, 3.0), False, pytest.approx(0, abs=1e-5)),  # false first weights
        ((1e6, 2.0, 3.0), True, 0.5),
    ],
)
def test_distance_of_weights_is_relative_to_the_replayed_part(
    ends: tuple[float, ...], start_is_replayed: bool, deviation: float, tmp_path: Path
) -> None:
    paths = [tmp_path / name for name in ("start", "claimed", "replayed")]
    for path, value in zip(paths, ends, strict=True):
        save_file({"a": torch.full((4,), value), "b": torch.zeros(2)}, path)
    found = compare_weights(*paths, start_is_replayed=start_is_replayed)
    assert found == ReplayComparison(exact=False, deviation=deviation)


@pytest.mark.parametrize("amiss", [{"a": torch.zeros(3)}, {"b": torch.zeros(4)}, {"a": torch.full((4,), torch.nan)}])
def test_compare_replay_other_tensors_are_far(amiss: dict[str, torch.Tensor], tmp_path: Path) -> None:
    for name, tensors in {"start": {"a": torch.zeros(4)}, "claimed": {"a": torch.ones(4)}, "replayed": amiss}.items():
        save_file(tensors, tmp_path / name)
    assert compare_weights(tmp_path / "start", tmp_path / "claimed", tmp_path / "replayed").deviation == MAX_DEVIATION


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--until", "0", "--budget", "5steps"), "the replay ends at step 0, but the checkpoint is of step 0"),
        (("--until", "5", "--budget", "5s"), "a budget in seconds needs the recorded time of 5 steps, and 0 are known"),
        (("--until", "5", "--budget", "soon"), "impossible budget 'soon'"),
        (("--until", "5", "--recorded-state", "FILE"), "recorded.json is not a JSON object"),
    ],
)
def test_replay_bad_input_prints_one_line(
    flags: tuple[str, ...], sentence: str, dataset_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "recorded.json"
    file.write_text("[]")
    given = [flag.replace("FILE", str(file)) for flag in flags]
    assert main([*given, "--dataset", str(dataset_folder), "--out", str(tmp_path), *TINY]) == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]
    assert compare_command([str(file)] * 3) == 2, "no weights"
    assert capsys.readouterr().err.count("\n") == 1


# --- checkpoints that a node has forged: what it charged, and the momenta that it trained with ------------------------


def rewrite_manifest(folder: Path) -> None:
    """Describe the files as they are now, as a node does that has changed them."""
    manifest = Checkpoint.model_validate_json((folder / MANIFEST).read_bytes())
    files = tuple(describe_file(folder / file.path) for file in manifest.files)
    (folder / MANIFEST).write_text(manifest.model_copy(update={"files": files}).model_dump_json(exclude_none=True))


def change_state(folder: Path, changes: Mapping[str, Any]) -> None:
    state = json.loads((folder / STATE_FILE).read_text())
    for name, value in changes.items():
        state[name] = {**state[name], **value} if isinstance(value, Mapping) else value
    (folder / STATE_FILE).write_text(json.dumps(state))
    rewrite_manifest(folder)


def change_momenta(folder: Path, factor: float) -> None:
    optimizers = torch.load(folder / OPTIMIZER_FILE, weights_only=True)
    for values in (values for optimizer in optimizers for values in optimizer["state"].values()):
        for name in values.keys() & {"exp_avg", "momentum"}:
            values[name] *= factor
    torch.save(optimizers, folder / OPTIMIZER_FILE)
    rewrite_manifest(folder)


def change_tensors(change: Callable[[torch.Tensor], Any], *, scalars: bool = False) -> Callable[[Path], None]:
    """Return a forgery of the optimizers' tensors with dimensions, or of those without: the counters of updates."""

    def visit(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: visit(part) for name, part in value.items()}
        if isinstance(value, list):
            return [visit(part) for part in value]
        return change(value) if isinstance(value, torch.Tensor) and (value.ndim == 0) == scalars else value

    return lambda folder: torch.save(
        visit(torch.load(folder / OPTIMIZER_FILE, weights_only=True)), folder / OPTIMIZER_FILE
    )


def change_weights(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    def forge(folder: Path) -> None:
        (file,) = folder.glob("*.safetensors")
        save_file({name: change(tensor).contiguous() for name, tensor in load_file(file).items()}, file)

    return forge


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "forgeries"),
    [
        ("20steps", [{"spent": {"steps": 0, "tokens": 0, "flops": 0.0}}, {"spent": {"tokens": 0}}]),
        ("1s", [{"spent": {"seconds": 0.0}}, {"spent": {"seconds": 0.0}, "clock": []}]),
    ],
)
def test_checkpoint_that_charges_less_than_its_steps_cannot_be_resumed(
    budget: str,
    forgeries: list[dict[str, Any]],
    dataset_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node trained 315 steps and charged 90 with such checkpoints, and each replay of them was exact."""
    set_clock(monkeypatch, lambda: 0.03)
    first, second, *_ = train(dataset_folder, tmp_path / "run", budget)
    for number, changes in enumerate([{}, *forgeries]):
        out = tmp_path / f"again-{number}"
        change_state(copy_start(first, out), changes)
        assert replay_steps(dataset_folder, out, second, budget, 16) == (2 if changes else 0)


@pytest.mark.slow
def test_forged_momenta_are_found_at_both_checkpoints_of_a_pair(
    checkpoints: list[Path], dataset_folder: Path, tmp_path: Path
) -> None:
    """Weights that forged momenta carry away train honestly from there: replays of single stretches were exact."""
    middle = copy_start(checkpoints[0], tmp_path / "forged")
    change_momenta(middle, -50)
    copy_start(middle, tmp_path / "single")
    _, end, _ = train(dataset_folder, tmp_path / "forged")

    assert replay_steps(dataset_folder, tmp_path / "single", end, "20steps", 16) == 0
    assert compare_checkpoints(middle, end, list_checkpoints(tmp_path / "single")[-1]) == (True, 0.0, 0.0)

    assert replay_steps(dataset_folder, tmp_path / "pair", end, "20steps", 8, 16) == 0
    start, replayed_middle, replayed_end = list_checkpoints(tmp_path / "pair")
    found = compare_checkpoints(start, middle, replayed_middle, start_is_replayed=True)
    assert found.deviation == 0
    assert found.state_deviation > 0.5
    found = compare_checkpoints(start, end, replayed_end, start_is_replayed=True)
    assert found.deviation > 0.3
    assert found.state_deviation > 0.3


@pytest.mark.parametrize(
    "forge",
    [
        lambda folder: (folder / STATE_FILE).unlink(),
        lambda folder: (folder / STATE_FILE).write_text("[" * 100_000),
        lambda folder: (folder / STATE_FILE).write_text('{"spikes": "none"}'),
        lambda folder: change_state(folder, {"spikes": {"norms": [10**400]}}),
        lambda folder: (folder / OPTIMIZER_FILE).unlink(),
        lambda folder: (folder / OPTIMIZER_FILE).write_bytes(b""),
        lambda folder: (folder / OPTIMIZER_FILE).write_bytes(b"no tensors"),
        lambda folder: change_momenta(folder, float("nan")),
        lambda folder: change_state(folder, {"spent": {"flops": 1.0}}),
        lambda folder: change_state(folder, {"loader": {"position": 0}}),
        lambda folder: change_state(folder, {"spikes": {"skipped": "9"}}),
        lambda folder: change_state(folder, {"spikes": {"skipped": 10**400}}),
        lambda folder: change_state(folder, {"spikes": {"skipped": [[0]]}}),
        lambda folder: change_state(folder, {"spikes": {"norms": [[1.0, 2.0]]}}),
        lambda folder: change_state(folder, {"loader": [[]]}),
        *(
            change_tensors(change, scalars=True)
            for change in (
                lambda step: step.repeat(2),
                lambda step: step.to(torch.complex64),
                lambda step: step.to(torch.int64),
                lambda step: step * torch.nan,
                torch.Tensor.item,
                lambda step: [step],
                lambda step: functools.reduce(lambda value, _: [value] * 10, range(30), [0]),  # 10^30 numbers
            )
        ),
        *(
            change_tensors(change)
            for change in (
                lambda tensor: tensor.to(torch.complex64),
                torch.Tensor.double,
                lambda tensor: tensor[None],
                lambda tensor: tensor.flatten()[0],
                lambda tensor: tensor.to("meta"),
                torch.Tensor.to_sparse,
            )
        ),
    ],
)
def test_forged_part_of_a_checkpoint_is_far(forge: Callable[[Path], Any], tiny_run: Path, tmp_path: Path) -> None:
    honest, start = list_checkpoints(tiny_run)
    shutil.copytree(honest, tmp_path / "claimed")
    assert compare_checkpoints(start, tmp_path / "claimed", honest) == (True, 0.0, 0.0)
    forge(tmp_path / "claimed")
    found = compare_checkpoints(start, tmp_path / "claimed", honest)
    assert not found.exact
    assert found.state_deviation == MAX_DEVIATION


@pytest.mark.parametrize(
    "forge",
    [
        change_weights(torch.Tensor.bfloat16),
        change_weights(lambda tensor: tensor.to(torch.complex64)),
        change_weights(lambda tensor: tensor[None]),
        change_weights(lambda tensor: tensor * torch.nan),
        lambda folder: next(folder.glob("*.safetensors")).write_bytes(b"no tensors"),
        lambda folder: next(folder.glob("*.safetensors")).unlink(),
    ],
)
def test_forged_weights_of_a_checkpoint_are_far(forge: Callable[[Path], Any], tiny_run: Path, tmp_path: Path) -> None:
    honest, start = list_checkpoints(tiny_run)
    forge(Path(shutil.copytree(honest, tmp_path / "claimed")))
    assert compare_weights(start, tmp_path / "claimed", honest).deviation == MAX_DEVIATION


@pytest.mark.parametrize(("skipped", "deviation"), [(1, 0.05), (20, 1.0)])
def test_counter_of_a_checkpoint_counts_by_the_steps_of_the_run(
    skipped: int, deviation: float, tiny_run: Path, tmp_path: Path
) -> None:
    """Another machine's rounding may skip one gradient more."""
    honest, start = list_checkpoints(tiny_run)
    shutil.copytree(honest, tmp_path / "claimed")
    change_state(tmp_path / "claimed", {"spikes": {"skipped": skipped}})
    assert compare_checkpoints(start, tmp_path / "claimed", honest) == (False, 0.0, deviation)


@pytest.mark.parametrize(
    "change",
    [lambda value: value[:1], lambda value: value[:1].expand_as(value), torch.Tensor.char, torch.Tensor.bfloat16],
)
def test_state_of_another_shape_or_type_is_refused(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Torch's fused AdamW reads and writes beyond the end of a shorter state, and the process crashed."""
    layer = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
    layer(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    content = copy.deepcopy(optimizer.state_dict())
    content["param_groups"][0]["lr"] = 9.0
    load_full_optimizer_state(optimizer, content)
    assert optimizer.param_groups[0]["lr"] == 0.1  # the recipe's
    content["state"][0]["exp_avg"] = change(content["state"][0]["exp_avg"])
    with pytest.raises(ValueError, match="exp_avg of parameter 0 has another shape or type"):
        load_full_optimizer_state(optimizer, content)
