"""Generated text for a visitor: the output of the process in the sandbox."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from trainer.checkpoint.store import load_model, write_checkpoint
from trainer.data.tokenizer import load_tokenizer
from trainer.data.tokenizer_training import train_bpe
from trainer.graph.trace import trace_architecture
from trainer.inference import generate
from trainer.inference.sampling import complete_prompt
from trainer.models import load_architecture
from trainer.protocol import Checkpoint, DatasetPin, FileRef, GenerateOrder, GenerateResult

TEXT = "The night train leaves at nine. The morning train arrives at seven. " * 20


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of an untrained run, with a visitor's order."""
    folder = tmp_path / "run"
    folder.mkdir()
    tokenizer = train_bpe([TEXT], 280)
    tokenizer.save(folder / "tokenizer.json")
    module = load_architecture("gpt")
    sizes = {"vocabulary_size": tokenizer.vocabulary_size, "sequence_length": 32, "depth": 1, "width": 16, "heads": 1}
    torch.manual_seed(0)
    write_checkpoint(folder / "step-00000003", module.Model(module.Config(**sizes)), [], {"step": 3})
    (folder / "run.json").write_text(json.dumps({"format": 1, "arch": "gpt", "model": sizes}))
    order = GenerateOrder(
        dataset=DatasetPin(corpus="python-library", tokenizer="bpe:280", hash="d" * 64),
        run=FileRef(path="run.json", sha256="a" * 64, size=1),
        checkpoint=Checkpoint(step=3, files=()),
        prompt="The train",
        tokens=40,
        temperature=0.7,
        seed=5,
    )
    (folder / "order.json").write_text(order.model_dump_json())
    (tmp_path / "out").mkdir()
    return folder


def run_generate(run: Path) -> int:
    return generate.main([str(run), "--checkpoint", str(run / "step-00000003"), "--out", str(run.parent / "out")])


def test_generated_lines_equal_text_of_same_seed(run: Path) -> None:
    assert run_generate(run) == 0
    rows = [json.loads(line) for line in (run.parent / "out" / "metrics.jsonl").read_text().splitlines()]
    assert {row["kind"] for row in rows} == {"text"}
    result = GenerateResult.model_validate_json((run.parent / "out" / "result.json").read_bytes())
    assert 0 < result.tokens <= 40
    model, tokenizer = load_model(run, run / "step-00000003"), load_tokenizer(run / "tokenizer.json")
    expected = complete_prompt(model, tokenizer, "The train", tokens=40, temperature=0.7, seed=5, context=32)
    assert "".join(row["text"] for row in rows) == expected


def test_text_from_graph_equals_text_from_python_and_needs_none_of_it(run: Path) -> None:
    module = load_architecture("gpt")
    record = json.loads((run / "run.json").read_text())
    trace_architecture(module, module.Config(**record["model"])).write(run / "graph")
    model, tokenizer = load_model(run, run / "step-00000003"), load_tokenizer(run / "tokenizer.json")
    expected = complete_prompt(model, tokenizer, "The train", tokens=40, temperature=0.7, seed=5, context=32)
    (run / "run.json").write_text(json.dumps({**record, "arch": "of-an-entry"}))
    assert run_generate(run) == 0
    rows = [json.loads(line) for line in (run.parent / "out" / "metrics.jsonl").read_text().splitlines()]
    assert "".join(row["text"] for row in rows) == expected


def test_generate_broken_model_is_model_failure(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "model": {**record["model"], "waves": 3}}))
    assert run_generate(run) == 3
    failure = json.loads((run.parent / "out" / "failure.json").read_text())
    assert failure["cause"] == "model"
    assert "waves" in failure["reason"]
    assert not (run.parent / "out" / "result.json").exists()


def test_group_text_yields_first_part_at_once() -> None:
    assert list(generate.group_text(["a", "b", "c"], seconds=60)) == ["a", "bc"]
    assert list(generate.group_text(["a", "b", "c"], seconds=0)) == ["a", "b", "c"]
    assert list(generate.group_text([], seconds=60)) == []
