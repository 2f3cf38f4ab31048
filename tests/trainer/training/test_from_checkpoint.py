"""Runs that start from a checkpoint of ours or of litgpt."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.metrics_lines import dev_losses
from tests.support.tiny import TINY
from trainer.checkpoint.files import list_checkpoints, load_weights
from trainer.checkpoint.store import describe_file, find_latest_checkpoint, load_model
from trainer.data.dataset import prepare_dataset
from trainer.train import main

Train = Callable[..., int]


def run_json(out: Path) -> dict[str, Any]:
    return json.loads((out / "run.json").read_text())


def test_run_from_checkpoint_continues_loss_and_records_lineage(
    train: Train, tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second, third = tmp_path / "second", tmp_path / "third"
    assert train(second, "--from", tiny_run, "--budget", "4steps") == 0
    assert dev_losses(second)[0] == dev_losses(tiny_run)[-1]
    lineage = run_json(second)["from"]
    weights = find_latest_checkpoint(tiny_run) / "model.safetensors"
    assert lineage["sha256"] == describe_file(weights).sha256
    assert (lineage["name"], lineage["arch"], lineage["step"]) == ("tiny/step-00000030", "gpt", 30)
    assert (lineage["kept"], lineage["new"], lineage["unused"]) == (len(load_file(weights)), [], [])
    assert lineage["tokens"] == 30 * 4 * 32
    assert str(tmp_path) not in json.dumps(run_json(second))
    assert train(third, "--from", second, "--budget", "1steps") == 0
    assert run_json(third)["from"]["tokens"] == 34 * 4 * 32
    capsys.readouterr()
    assert train(second, "--from", list_checkpoints(tiny_run)[0], "--budget", "4steps") == 2
    assert "another from" in capsys.readouterr().err
    assert train(tmp_path / "run", "--from", tmp_path, "--budget", "1steps") == 2, "there is no checkpoint"
    assert capsys.readouterr().err.count("\n") == 1


def test_run_from_checkpoint_inherits_shape_and_tokenizer(
    tiny_run: Path, corpus_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAILYTRAIN_CACHE", str(tmp_path / "cache"))
    small = ["--train.batch", "4", "--train.dev-tokens", "256", "--train.sample-tokens", "0", "--threads", "1"]
    corpus = ["--corpus", f"files:{corpus_folder}/00*.txt,{corpus_folder}/1*.txt", "--device", "cpu"]
    out = tmp_path / "run"
    assert main(["--from", str(tiny_run), "--out", str(out), "--budget", "2steps", *small, *corpus]) == 0
    assert run_json(out)["model"] == run_json(tiny_run)["model"]
    assert (out / "tokenizer.json").read_bytes() == (tiny_run / "tokenizer.json").read_bytes()


def test_tensors_that_do_not_fit_are_new_and_listed(train: Train, tiny_run: Path, tmp_path: Path) -> None:
    """The model has one block more than the checkpoint."""
    assert train(tmp_path, "--from", tiny_run, "--budget", "1steps", "--model.depth", "3") == 0
    lineage = run_json(tmp_path)["from"]
    before, after = (
        {name: tensor.shape for name, tensor in load_weights(find_latest_checkpoint(run)).items()}
        for run in (tiny_run, tmp_path)
    )
    assert any(name.startswith("blocks.2.") for name in lineage["new"])
    assert set(lineage["new"]) == {name for name, shape in after.items() if before.get(name) != shape}
    assert lineage["kept"] == len(after) - len(lineage["new"])
    assert lineage["kept"] + len(lineage["unused"]) == len(before)


def test_dataset_of_other_tokenizer_is_rejected(
    tiny_run: Path, corpus_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare_dataset(f"files:{corpus_folder}/2*.txt", "bpe:300", tmp_path / "other")
    flags = ["--dataset", str(tmp_path / "other"), "--budget", "1steps", *TINY]
    assert main(["--from", str(tiny_run), "--out", str(tmp_path / "run"), *flags]) == 2
    assert "was prepared with another tokenizer than" in capsys.readouterr().err


# --- litgpt -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def litgpt_folder(dataset_folder: Path, tmp_path: Path) -> Path:
    """A checkpoint written by litgpt's own code, of a shape without a name in litgpt."""
    from litgpt import GPT, Config
    from litgpt.utils import save_config

    folder = tmp_path / "mine"
    folder.mkdir()
    config = Config(
        name="mine", n_layer=2, n_embd=32, n_head=4, n_query_groups=2, vocab_size=320, padding_multiple=128,
        block_size=64, norm_class_name="RMSNorm", mlp_class_name="LLaMAMLP", intermediate_size=48, bias=False,
        rotary_percentage=1.0, parallel_residual=False,
    )  # fmt: skip
    torch.manual_seed(3)
    torch.save({"model": GPT(config).state_dict()}, folder / "lit_model.pth")
    save_config(config, folder)
    shutil.copy(dataset_folder / "tokenizer.json", folder)
    return folder


def compute_litgpt_logits(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits of litgpt's own model of a folder."""
    from litgpt import GPT, Config

    model = GPT(Config.from_file(folder / "model_config.yaml"))
    model.load_state_dict(torch.load(folder / "lit_model.pth", weights_only=True)["model"])
    with torch.no_grad():
        return model(tokens)


SMALL = (
    *("--train.sequence-length", "32", "--train.batch", "4", "--train.dev-tokens", "256", "--train.sample-tokens", "0"),
    *("--device", "cpu", "--threads", "1"),
)


def test_litgpt_import_and_export_preserve_weights(litgpt_folder: Path, tmp_path: Path) -> None:
    from trainer.cli import export, import_weights

    flags = ["--format", "litgpt", "--out"]
    assert import_weights.main([str(litgpt_folder), *flags, str(tmp_path / "run")]) == 0
    assert export.main([str(tmp_path / "run"), *flags, str(tmp_path / "back")]) == 0
    tokens = torch.arange(40)[None]
    wanted = compute_litgpt_logits(litgpt_folder, tokens)
    with torch.no_grad():
        ours = load_model(tmp_path / "run")(tokens)
    torch.testing.assert_close(ours, wanted[..., :320])
    torch.testing.assert_close(compute_litgpt_logits(tmp_path / "back", tokens), wanted)


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("model_config.yaml", b"n_layer: [", "is not a configuration of litgpt's"),
        ("lit_model.pth", b"junk", "is not a file of plain tensors"),
        ("tokenizer.json", None, "has no tokenizer.json"),
    ],
)
def test_damaged_litgpt_folder_prints_one_line(
    dataset_folder: Path, litgpt_folder: Path, tmp_path: Path, name: str, content: bytes | None, what: str, capsys: Any
) -> None:
    (litgpt_folder / name).unlink()
    if content is not None:
        (litgpt_folder / name).write_bytes(content)
    flags = ["--dataset", str(dataset_folder), "--out", str(tmp_path / "run"), "--budget", "1steps", *SMALL]
    assert main(["--from", str(litgpt_folder), *flags]) == 2
    errors = capsys.readouterr().err
    assert what in errors
    assert errors.count("\n") == 1
