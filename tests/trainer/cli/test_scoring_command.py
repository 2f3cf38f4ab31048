"""The command `dailytrain score`: JSON, one-line errors, exit codes."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import peeking_model
from tests.support.scored_runs import build_gpt, documents, write_checkpoint, write_run
from trainer.cli.main import main
from trainer.models import ARCHITECTURES
from trainer.scoring.run_folder import RunFolder, find_checkpoint_to_score


def held_out_file(folder: Path) -> Path:
    path = folder / "heldout.jsonl"
    path.write_text("".join(json.dumps({"id": d.id, "text": d.text}) + "\n" for d in documents()))
    return path


def arguments(folder: Path, *more: str) -> list[str]:
    return ["score", str(folder), "--corpus", f"files:{held_out_file(folder)}", *more]


def read_output(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def test_score_prints_one_json_object(tmp_path, capsys):
    folder = write_run(tmp_path / "run")
    assert main(arguments(folder, "--json")) == 0
    record = read_output(capsys)
    assert (record["arch"], record["step"]) == ("gpt", 10)
    assert (record["train_tokens"], record["train_seconds"], record["train_flops"]) == (1000, 1.5, 2.5e6)
    assert record["parameters_embedding"] + record["parameters_non_embedding"] == record["parameters"]
    assert record["flops_per_token"] == 2500
    assert record["bytes"] == sum(len(document.text.encode()) for document in documents())
    assert record["documents"] == len(documents())
    bits = record["nats_per_token"] * record["tokens"] / math.log(2) / record["bytes"]
    assert record["bits_per_byte"] == pytest.approx(bits)
    assert 0 < record["stderr"] < record["bits_per_byte"]
    assert set(record["checks"]) == {"look_ahead", "untrained", "products", "suite"}
    assert (record["suite"], record["suite_missing"]) == ({}, [])


def test_score_without_lm_eval_keeps_bits_per_byte_and_names_the_benchmarks(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert main(arguments(write_run(tmp_path / "run"), "--json", "--suite", "blimp_sample")) == 0
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    assert record["bits_per_byte"] > 0
    assert (record["suite"], record["suite_missing"]) == ({}, ["blimp_sample"])
    assert "lm-eval is not installed, so the benchmarks are left out" in printed.err


@pytest.mark.slow
def test_losses_of_a_score_are_the_reference_of_the_next(tmp_path, capsys):
    folder = write_run(tmp_path / "run")
    assert main(arguments(folder, "--json", "--items", str(tmp_path / "items.jsonl.gz"))) == 0
    first = read_output(capsys)
    losses = np.load(tmp_path / "losses.npy")
    assert losses.shape == (first["tokens"],)
    assert losses.mean(dtype=np.float64) == pytest.approx(first["nats_per_token"], rel=1e-3)
    assert main(arguments(folder, "--json", "--reference", str(tmp_path / "losses.npy"))) == 0
    errors = [found["checks"]["look_ahead"]["stderr"] for found in (first, read_output(capsys))]
    assert errors[1] < errors[0]


@pytest.mark.slow
def test_reference_of_another_text_is_ignored(tmp_path, capsys):
    folder = write_run(tmp_path / "run")
    np.save(tmp_path / "losses.npy", np.ones(7, np.float16))
    assert main(arguments(folder, "--json", "--reference", str(tmp_path / "losses.npy"))) == 0
    assert "losses.npy is ignored" in capsys.readouterr().err


def test_model_of_infinite_logits_prints_its_error_and_nothing_else(tmp_path, capsys):
    folder = write_run(tmp_path / "run")
    checkpoint = folder / "checkpoints" / "step-00000010"
    shutil.rmtree(checkpoint)
    model = build_gpt()
    with torch.no_grad():
        next(model.parameters()).fill_(math.inf)
    write_checkpoint(checkpoint, model)
    assert main(arguments(folder, "--json")) == 3
    output, errors = capsys.readouterr()
    assert "The model returned NaN or infinite logits." in json.loads(output)["failed"]
    assert "NaN or infinite" in errors


def test_untrained_model_that_looks_ahead_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(ARCHITECTURES, "peeking", "tests.support.peeking_model")
    folder = write_run(tmp_path / "run", "peeking")
    run = json.loads((folder / "run.json").read_text())
    run["model"] = {name: run["model"][name] for name in ("vocabulary_size", "sequence_length")}
    (folder / "run.json").write_text(json.dumps(run))
    checkpoint = folder / "checkpoints" / "step-00000010"
    shutil.rmtree(checkpoint)
    write_checkpoint(checkpoint, peeking_model.Model(peeking_model.Config(**run["model"])))
    assert main(arguments(folder, "--json")) == 3
    assert "knowledge that was not trained" in read_output(capsys)["failed"]


def test_checkpoint_to_score_is_the_one_of_the_highest_step(tmp_path):
    for name in ("step-99999999", "step-100000000"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "manifest.json").write_text("{}")
    assert find_checkpoint_to_score(tmp_path).name == "step-100000000"


def test_score_without_json_prints_table(tmp_path, capsys):
    folder = write_run(tmp_path / "run")
    assert main(arguments(folder, "--limit-tokens", "500")) == 0
    output = capsys.readouterr().out
    assert "bits per byte" in output
    assert "500 tokens" in output
    assert "within rounding" in output


MISTAKES = {
    "no text": ("RUN", "one of the arguments --corpus --dataset is required"),
    "two texts": ("RUN TEXT --dataset x", "not allowed with"),
    "no run": ("RUN/nowhere TEXT", "There is no run folder"),
    "not a run": ("RUN/checkpoints TEXT", "run.json is missing"),
    "no such corpus": ("RUN --corpus wikipedia", "wikipedia"),
    "no such file": ("RUN --corpus files:nothing-here.txt", "nothing-here.txt"),
    "no such dataset": ("RUN --dataset RUN/checkpoints", "manifest.json"),
    "unknown task": ("RUN TEXT --suite chess", "no task 'chess'"),
    "a limit of nothing": ("RUN TEXT --limit-tokens 0", "at least 1"),
    "a limit that is no number": ("RUN TEXT --limit-tokens some", "some"),
    "no such reference": ("RUN TEXT --reference RUN/run.json", "holds no losses"),
    "an archive as reference": ("RUN TEXT --reference RUN/losses.npy", "holds no losses"),
    "no folder for items": ("RUN TEXT --items RUN/nowhere/items.jsonl.gz", "--items: there is no folder"),
    "no such checkpoint": ("RUN TEXT --checkpoint RUN/nowhere", "manifest.json is missing"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_bad_option_is_one_line_error(name, tmp_path, capsys):
    folder = write_run(tmp_path / "run")
    with (folder / "losses.npy").open("wb") as file:
        np.savez(file, losses=np.ones(7))
    line, sentence = MISTAKES[name]
    line = line.replace("TEXT", f"--corpus files:{held_out_file(folder)}").replace("RUN", str(folder))
    try:
        code = main(["score", *line.split()])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    output, errors = capsys.readouterr()
    lines = [line for line in errors.splitlines() if "reading the text" not in line]
    assert output == ""
    assert len(lines) == 1
    assert sentence in lines[0]


def damage(folder: Path, name: str) -> None:
    checkpoint = folder / "checkpoints" / "step-00000010"
    weights = checkpoint / "model.safetensors"
    content = bytearray(weights.read_bytes())
    match name:
        case "a flipped bit":
            content[-1] ^= 1
            weights.write_bytes(content)
        case "cut short":
            weights.write_bytes(content[:-100])
        case "gone":
            weights.unlink()
        case "no manifest":
            (checkpoint / "manifest.json").unlink()
        case "manifest is not JSON":
            (checkpoint / "manifest.json").write_text("{")
        case "manifest nested too deeply":
            (checkpoint / "manifest.json").write_text("[" * 100_000)
        case "manifest lists another folder's file":
            manifest = json.loads((checkpoint / "manifest.json").read_text())
            manifest["files"][1]["path"] = "../../run.json"
            (checkpoint / "manifest.json").write_text(json.dumps(manifest))
        case "another tokenizer":
            path = folder / "tokenizer.json"
            path.write_text(path.read_text() + " ")
        case "a length that is no length":
            run = json.loads((folder / "run.json").read_text())
            run["model"]["sequence_length"] = "many"
            (folder / "run.json").write_text(json.dumps(run))


DAMAGE = {
    "a flipped bit": "corrupt",
    "cut short": "corrupt",
    "gone": "no model.safetensors",
    "no manifest": "no complete checkpoint",
    "manifest is not JSON": "not a JSON object",
    "manifest nested too deeply": "not a JSON object",
    "manifest lists another folder's file": "outside the checkpoint",
    "another tokenizer": "another tokenizer",
    "a length that is no length": "sequence_length",
}


def test_figures_that_are_impossible_are_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "dataset": ["no object"]}))
    (folder / "checkpoints" / "step-00000010" / "state.json").unlink()
    large = "1" + "0" * 400
    (folder / "result.json").write_text(f'{{"tokens": {large}, "train_flops": -1, "train_seconds": 1.5}}')
    opened = RunFolder.open(folder)
    assert (opened.train_tokens, opened.train_flops, opened.train_seconds) == (None, None, 1.5)
    assert opened.tokenizer_sha256 == ""


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_run_is_one_line_error(name, tmp_path, capsys):
    folder = write_run(tmp_path / "run")
    damage(folder, name)
    assert main(arguments(folder, "--json")) == 2
    output, errors = capsys.readouterr()
    lines = [line for line in errors.splitlines() if "reading the text" not in line]
    assert json.loads(output)["fault"] == "checkpoint"
    assert len(lines) == 1
    assert DAMAGE[name] in lines[0]
