"""Runs of RWKV-5 are exported to the official layout and imported; the package rwkv gives the same logits."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.support.waits import WAIT_SECONDS
from trainer.checkpoint.store import get_checkpoint_path, load_model, write_checkpoint
from trainer.cli.main import main
from trainer.models import rwkv5

pytestmark = pytest.mark.processes

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 40, 0]
OUTSIDE = """
import json, sys, torch
from rwkv.model import RWKV
answers = {}
for name in sys.argv[2:]:
    model = RWKV(model=name, strategy="cpu fp32", verbose=False)
    logits, _ = model.forward(json.loads(sys.argv[1]), None, full_output=True)
    answers[name] = (float(model.version), logits.tolist())
print(json.dumps(answers))
"""


def write_run(folder: Path, version: float = 5.2, width: int = 128) -> Path:
    """Write a run with random weights, without metrics."""
    config = rwkv5.Config(41, 32, depth=2, width=width, version=version)
    torch.manual_seed(1)
    model = rwkv5.Model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    write_checkpoint(get_checkpoint_path(folder, 7), model, [], {"step": 7})
    (folder / "run.json").write_text(json.dumps({"arch": "rwkv5", "model": dataclasses.asdict(config)}))
    return folder


def compute_logits(folder: Path) -> torch.Tensor:
    with torch.inference_mode():
        return load_model(folder)(torch.tensor([TOKENS]))[0]


def export_run(run: Path, out: Path) -> Path:
    assert main(["export", str(run), "--format", "rwkv", "--out", str(out)]) == 0
    return out


def import_run(file: Path, out: Path, *flags: str) -> int:
    return main(["import", "--format", "rwkv", str(file), "--out", str(out), *flags])


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """A run, and its tensors in the official layout. For reading only."""
    folder = tmp_path_factory.mktemp("exported")
    run = write_run(folder / "run")
    return run, torch.load(export_run(run, folder / "x.pth"), weights_only=True)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("rwkv") is None, reason="the package rwkv is not installed")
def test_rwkv_package_gives_same_logits(tmp_path: Path) -> None:
    runs = {version: write_run(tmp_path / f"run-{version}", version) for version in rwkv5.VERSIONS}
    files = {version: export_run(run, tmp_path / f"{version}.pth") for version, run in runs.items()}
    names = {version: str(file.with_suffix("")) for version, file in files.items()}  # it appends .pth itself
    # The package reads these when it is imported: no compiler, no GPU.
    settings = {**os.environ, "RWKV_JIT_ON": "0", "RWKV_CUDA_ON": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", OUTSIDE, json.dumps(TOKENS), *names.values()],
        env=settings,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    for version, name in names.items():
        seen, theirs = answers[name]
        assert seen == version
        torch.testing.assert_close(torch.tensor(theirs), compute_logits(runs[version]), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("version", "width"), [(5.0, 128), (5.1, 64), (5.2, 64)])
def test_export_and_import_preserve_logits(version: float, width: int, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", version, width)
    assert import_run(export_run(run, tmp_path / "x.pth"), tmp_path / "back") == 0
    assert torch.equal(compute_logits(tmp_path / "back"), compute_logits(run))
    model = json.loads((tmp_path / "back" / "run.json").read_text())["model"]
    assert (model["version"], model["vocabulary_size"], model["depth"]) == (version, 41, 2)


HEAD = "head.weight"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda tensors: [tensors.pop(name) for name in (HEAD, "ln_out.bias")], "lacks head.weight and 1 more"),
        (lambda tensors: tensors.pop("blocks.0.att.ln_x.weight"), "not weights of RWKV-5"),
        (lambda tensors: tensors.update({"blocks.0.att.time_maa_x": torch.ones(1)}), "RWKV-6 or later"),
        (lambda tensors: tensors.update({HEAD: torch.ones(40, 128)}), "head.weight is (40, 128) instead of"),
        (lambda tensors: tensors.update({"note": "hello"}), "one table of tensors: 'note' is of the type str"),
        (lambda tensors: tensors[HEAD][3].fill_(torch.nan), "head.weight has NaN or infinite numbers"),
        (lambda tensors: tensors.update({"emb.weight": torch.ones(41, 128).to(torch.int8)}), "emb.weight is int8"),
        (lambda tensors: tensors.update({HEAD: torch.ones(41, 128, device="meta")}), "head.weight is without numbers"),
        (lambda tensors: tensors.update({HEAD: torch.ones(1).expand(1 << 18, 1 << 18)}), "it is an expanded view"),
        (lambda tensors: tensors.update({HEAD: tensors[HEAD].to_sparse()}), "head.weight is sparse"),
        (lambda tensors: tensors.update({HEAD: torch.ones(41, 128).long()}), "head.weight has whole numbers"),
        (lambda tensors: tensors.update({"blocks.99999999.ln1.weight": torch.ones(128)}), "lacks blocks.2."),
        (lambda tensors: tensors.update({f"_orig_mod.{HEAD}": torch.ones(41, 128)}), "differ only in the prefix"),
    ],
)
def test_import_misfit_prints_one_line(
    change: Callable[[dict[str, Any]], None], sentence: str, exported: Any, tmp_path: Path, capsys: Any
) -> None:
    tensors = {name: tensor.clone() for name, tensor in exported[1].items()}
    change(tensors)
    torch.save(tensors, tmp_path / "x.pth")
    assert import_run(tmp_path / "x.pth", tmp_path / "back") == 2
    error_text = capsys.readouterr().err
    assert sentence in error_text
    assert error_text.count("\n") == 1
    assert not (tmp_path / "back").exists()


def test_import_reads_a_bias_expanded_from_one_number(exported: Any, tmp_path: Path) -> None:
    tensors = {name: tensor.clone() for name, tensor in exported[1].items()}
    torch.save(tensors | {"blocks.0.ln1.bias": torch.zeros(1).expand(128)}, tmp_path / "x.pth")
    assert import_run(tmp_path / "x.pth", tmp_path / "back") == 0


def save_shards(tensors: dict[str, torch.Tensor], folder: Path, *endings: str) -> None:
    folder.mkdir()
    names = sorted(tensors)
    for ending, number in itertools.product(endings, range(3)):
        path, shard = folder / f"weights-{number + 1:05d}-of-00003.{ending}", {n: tensors[n] for n in names[number::3]}
        save_file(shard, path) if ending == "safetensors" else torch.save(shard, path)


def save_hub_folder(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Save the weights, and settings beside them."""
    folder.mkdir()
    torch.save(tensors, folder / "pytorch_model.bin")
    torch.save({}, folder / "training_args.bin")


def add_prefix(tensors: dict[str, torch.Tensor], *prefixes: str) -> dict[str, torch.Tensor]:
    for prefix in prefixes:
        tensors = {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
    return tensors


@pytest.mark.parametrize(
    "save",
    [
        lambda tensors, path: torch.save(add_prefix(tensors, "_orig_mod.", "module."), path),
        lambda tensors, path: torch.save({"state_dict": add_prefix(tensors, "model."), "epoch": 3}, path),
        lambda tensors, path: torch.save({**tensors, "blocks.0.rotary.inv_freq": torch.ones(4)}, path),
        lambda tensors, path: save_file(tensors, path),
        lambda tensors, path: save_shards(tensors, path, "bin"),
        lambda tensors, path: save_shards(tensors, path, "bin", "safetensors"),
        save_hub_folder,
    ],
)
def test_import_reads_weights_as_people_save_them(
    save: Callable[[dict[str, torch.Tensor], Path], None], exported: Any, tmp_path: Path
) -> None:
    run, tensors = exported
    save(tensors, tmp_path / "theirs")
    assert import_run(tmp_path / "theirs", tmp_path / "back") == 0
    assert torch.equal(compute_logits(tmp_path / "back"), compute_logits(run))


def test_import_executes_no_code_and_names_what_it_cannot_read(
    exported: Any, dataset_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"emb.weight": os.system}, tmp_path / "x.pth")
    (tmp_path / "y.pth").write_bytes(b"nothing of the kind")
    torch.save(exported[1], tmp_path / "good.pth")
    save_shards(exported[1], tmp_path / "theirs", "bin")
    (tmp_path / "theirs" / "weights-00002-of-00003.bin").unlink()
    spoken = ("--tokenizer", str(dataset_folder / "tokenizer.json"))
    for name, flags, sentence in (
        ("x.pth", (), "plain tensors"),
        ("y.pth", (), "plain tensors"),
        ("z.pth", (), "No such file"),
        ("theirs", (), "theirs lacks a shard of its weights"),
        ("good.pth", spoken, "is not this model's tokenizer: it has 320 tokens, the model 41"),
    ):
        assert import_run(tmp_path / name, tmp_path / "back", *flags) == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "back").exists()


def test_export_rejects_other_architectures_and_import_existing_runs(
    exported: Any, tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tiny_run), "--format", "rwkv", "--out", str(tmp_path / "x.pth")]) == 2
    assert "of the architecture gpt; the format rwkv holds only rwkv5" in capsys.readouterr().err
    assert main(["export", str(exported[0]), "--format", "rwkv", "--out", str(tmp_path / "no" / "x.pth")]) == 2
    assert "cannot write" in capsys.readouterr().err
    torch.save(exported[1], tmp_path / "x.pth")
    assert import_run(tmp_path / "x.pth", exported[0]) == 2
    assert "holds a run already" in capsys.readouterr().err
