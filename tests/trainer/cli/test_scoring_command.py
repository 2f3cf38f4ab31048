"""The command `dailytrain score`: JSON, one-line errors, exit codes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.scoring_models import documents, needs_sandbox, write_run
from trainer.cli.main import main


def held_out_file(folder: Path) -> Path:
    path = folder / "heldout.jsonl"
    path.write_text("".join(json.dumps({"id": d.id, "text": d.text}) + "\n" for d in documents()))
    return path


def arguments(folder: Path, *more: str) -> list[str]:
    text = held_out_file(folder)
    return ["score", str(folder), "--corpus", f"files:{text}", "--model-source", str(folder / "source"), *more]


@needs_sandbox
def test_score_prints_one_json_object_and_imports_no_model(tmp_path):
    folder = write_run(tmp_path / "run")
    code = (
        "import sys; from trainer.cli.main import main; code = main(sys.argv[1:]);"
        "assert not {'torch', 'trainer.models', 'trainer.train', 'trainer.checkpoint.store'} & set(sys.modules);"
        "sys.exit(code)"
    )
    command = [sys.executable, "-c", code, *arguments(folder, "--json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["arch"] == "strange"
    assert record["parameters"] == 2 * 8 * 300
    assert (record["train_tokens"], record["train_seconds"], record["step"]) == (1000, 1.5, 10)
    assert (record["parameters_embedding"], record["parameters_non_embedding"]) == (8 * 300, 8 * 300)
    assert (record["flops_per_token"], record["flops_void"]) == (6 * 8 * 300, "")
    assert record["train_flops"] == 1000 * record["flops_per_token"], "counted, not as reported"
    assert record["bytes"] == sum(len(document.text.encode()) for document in documents())
    assert record["documents"] == len(documents())
    bits = record["nats_per_token"] * record["tokens"] / math.log(2) / record["bytes"]
    assert record["bits_per_byte"] == pytest.approx(bits)
    assert 0 < record["stderr"] < record["bits_per_byte"]
    assert set(record["checks"]) == {"prefix", "causality", "order", "memory"}
    assert (record["suite"], record["suite_missing"], record["sandbox"]) == ({}, [], "bubblewrap")


@needs_sandbox
def test_cheat_prints_its_error_and_nothing_else(tmp_path, capsys):
    folder = write_run(tmp_path / "run", "return self.push(self.honest(tokens), tokens, 5.0)")
    assert main(arguments(folder, "--json")) == 3
    output, errors = capsys.readouterr()
    assert list(json.loads(output)) == ["failed"]
    assert "looks ahead" in json.loads(output)["failed"]
    assert "looks ahead" in errors


def test_score_without_json_prints_table(tmp_path, capsys):
    folder = write_run(tmp_path / "run")
    assert main(arguments(folder, "--sandbox", "none", "--limit-tokens", "500")) == 0
    output = capsys.readouterr().out
    assert "bits per byte" in output
    assert "500 tokens" in output
    assert "strange, 4,800 parameters, step 10" in output


MISTAKES = {
    "no text": ("RUN", "one of the arguments --corpus --dataset is required"),
    "two texts": ("RUN TEXT --dataset x", "not allowed with"),
    "no run": ("RUN/nowhere TEXT", "There is no run folder"),
    "not a run": ("RUN/source TEXT", "run.json is missing"),
    "no such corpus": ("RUN --corpus wikipedia", "wikipedia"),
    "no such file": ("RUN --corpus files:nothing-here.txt", "nothing-here.txt"),
    "no such dataset": ("RUN --dataset RUN/source", "manifest.json"),
    "unknown task": ("RUN TEXT --suite chess", "no task 'chess'"),
    "unknown sandbox": ("RUN TEXT --sandbox bag", "bag"),
    "docker": ("RUN TEXT --sandbox docker", "docker"),
    "a limit of nothing": ("RUN TEXT --limit-tokens 0", "at least 1"),
    "a limit that is no number": ("RUN TEXT --limit-tokens some", "some"),
    "no model source": ("RUN TEXT --model-source RUN/nowhere", "no trainer/ package"),
    "a job without a sandbox": ("RUN TEXT --job", "requires --sandbox"),
    "no such checkpoint": ("RUN TEXT --checkpoint RUN/nowhere", "manifest.json is missing"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_bad_option_is_one_line_error(name, tmp_path, capsys):
    folder = write_run(tmp_path / "run")
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
    "manifest is not JSON": "not JSON",
    "manifest lists another folder's file": "outside the checkpoint",
    "another tokenizer": "another tokenizer",
    "a length that is no length": "sequence_length",
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_run_is_one_line_error(name, tmp_path, capsys):
    folder = write_run(tmp_path / "run")
    damage(folder, name)
    assert main(arguments(folder, "--json", "--sandbox", "none")) == 2
    output, errors = capsys.readouterr()
    lines = [line for line in errors.splitlines() if "reading the text" not in line]
    assert output == ""
    assert len(lines) == 1
    assert DAMAGE[name] in lines[0]
