"""The command `dailytrain score`: JSON, one-line errors, exit codes."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import peeking_model
from tests.support.scored_runs import documents, write_checkpoint, write_run
from trainer.cli.main import main
from trainer.models import ARCHITECTURES
from trainer.scoring import benchmark_suite, text_score
from trainer.scoring.run_folder import RunFolder, find_checkpoint_to_score
from trainer.scoring.tf32 import ProductPrecision


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


@pytest.mark.parametrize(("chosen", "within"), [("tf32", "high"), ("fp32", "highest")])
def test_suite_is_answered_with_the_products_that_the_text_allows(tmp_path, capsys, monkeypatch, chosen, within):
    found = []

    def run_suite(*_: Any) -> benchmark_suite.SuiteResult:
        found.append(torch.get_float32_matmul_precision())
        return benchmark_suite.SuiteResult({}, {}, [], {})

    monkeypatch.setattr(text_score, "choose_precision", lambda *_: ProductPrecision(chosen, 1e-6, 1e-7))
    monkeypatch.setattr(benchmark_suite, "run_suite", run_suite)
    assert main(arguments(write_run(tmp_path / "run"), "--json", "--suite", "blimp_sample")) == 0
    assert read_output(capsys)["checks"]["products"]["precision"] == chosen
    assert found == [within]


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
    np.save(tmp_path / "losses.npy", np.ones(7, np.float16))
    assert main(arguments(folder, "--limit-tokens", "500", "--reference", str(tmp_path / "losses.npy"))) == 0
    printed = capsys.readouterr()
    assert "losses.npy is ignored" in printed.err
    assert all(words in printed.out for words in ("bits per byte", "500 tokens", "within rounding"))


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
    output, errors = capsys.readouterr()
    assert "knowledge that was not trained" in json.loads(output)["failed"]
    assert "knowledge that was not trained" in errors


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("RUN", "one of the arguments --corpus --dataset is required"),
        ("RUN TEXT --dataset x", "not allowed with"),
        ("RUN/nowhere TEXT", "There is no run folder"),
        ("RUN --corpus files:nothing-here.txt", "nothing-here.txt"),
        ("RUN --dataset RUN/checkpoints", "manifest.json"),
        ("RUN TEXT --suite chess", "no task 'chess'"),
        ("RUN TEXT --limit-tokens 0", "at least 1"),
        ("RUN TEXT --reference RUN/run.json", "holds no losses"),
        ("RUN TEXT --reference RUN/losses.npy", "holds no losses"),
        ("RUN TEXT --items RUN/nowhere/items.jsonl.gz", "--items: there is no folder"),
        ("RUN TEXT --checkpoint RUN/nowhere", "manifest.json is missing"),
    ],
)
def test_bad_option_is_one_line_error(line, sentence, run, capsys):
    line = line.replace("TEXT", f"--corpus files:{held_out_file(run)}").replace("RUN", str(run))
    try:
        code = main(["score", *line.split()])
    except SystemExit as ended:
        code = ended.code
    output, errors = capsys.readouterr()
    lines = [line for line in errors.splitlines() if "reading the text" not in line]
    assert (code, output, len(lines)) == (2, "", 1)
    assert sentence in lines[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder that has an archive instead of losses."""
    folder = write_run(tmp_path_factory.mktemp("scored") / "run")
    with (folder / "losses.npy").open("wb") as file:
        np.savez(file, losses=np.ones(7))
    return folder


def test_impossible_figures_are_left_out_and_the_last_checkpoint_is_taken(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "dataset": ["no object"]}))
    (folder / "checkpoints" / "step-00000010" / "state.json").unlink()
    large = "1" + "0" * 400
    (folder / "result.json").write_text(f'{{"tokens": {large}, "train_flops": -1, "train_seconds": 1.5}}')
    opened = RunFolder.open(folder)
    assert (opened.train_tokens, opened.train_flops, opened.train_seconds) == (None, None, 1.5)
    assert opened.tokenizer_sha256 == ""
    for name in ("step-99999999", "step-100000000"):
        (folder / "checkpoints" / name).mkdir()
        (folder / "checkpoints" / name / "manifest.json").write_text("{}")
    assert find_checkpoint_to_score(folder).name == "step-100000000"


CHECKPOINT = "checkpoints/step-00000010"


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        (f"{CHECKPOINT}/model.safetensors", lambda content: content[:-1] + bytes([content[-1] ^ 1]), "corrupt"),
        (f"{CHECKPOINT}/model.safetensors", lambda content: content[:-100], "corrupt"),
        (f"{CHECKPOINT}/model.safetensors", None, "no model.safetensors"),
        (f"{CHECKPOINT}/manifest.json", None, "no complete checkpoint"),
        (f"{CHECKPOINT}/manifest.json", lambda _: b"{", "not a JSON object"),
        (f"{CHECKPOINT}/manifest.json", lambda _: b"[" * 100_000, "not a JSON object"),
        (
            f"{CHECKPOINT}/manifest.json",
            lambda content: content.replace(b'"state.json"', b'"../../run.json"'),
            "outside the checkpoint",
        ),
        ("tokenizer.json", lambda content: content + b" ", "another tokenizer"),
        (
            "run.json",
            lambda content: re.sub(rb'"sequence_length": \d+', b'"sequence_length": "many"', content),
            "sequence_length",
        ),
    ],
)
def test_damaged_run_is_one_line_error(name, change, reason, run, tmp_path, capsys):
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    file = folder / name
    file.write_bytes(change(file.read_bytes())) if change else file.unlink()
    assert main(arguments(folder, "--json")) == 2
    output, errors = capsys.readouterr()
    lines = [line for line in errors.splitlines() if "reading the text" not in line]
    assert json.loads(output)["fault"] == "checkpoint"
    assert len(lines) == 1
    assert reason in lines[0]
