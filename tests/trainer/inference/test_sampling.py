"""Sampling of text from a model, and the text that a visitor asks for: the output of the process in the sandbox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.metrics_lines import lines
from trainer.checkpoint.store import load_model, write_checkpoint
from trainer.data.tokenizer import Tokenizer, load_tokenizer
from trainer.data.tokenizer_training import train_bpe
from trainer.graph.trace import trace_architecture
from trainer.inference import generate
from trainer.inference.sampling import Sampler, TextGenerator, complete_prompt, decode_stream, generate_tokens
from trainer.models import load_architecture
from trainer.models.base import LanguageModel
from trainer.protocol import Checkpoint, DatasetPin, FileRef, GenerateOrder, GenerateResult


@pytest.fixture(scope="module")
def tokenizer(dataset_folder: Path) -> Tokenizer:
    return load_tokenizer(dataset_folder / "tokenizer.json")


class SuccessorModel(LanguageModel):
    """Predicts the token id after the last one with certainty, and records the lengths of its inputs."""

    def __init__(self, vocabulary_size: int) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.eye(vocabulary_size).roll(1, dims=1) * 1000)
        self.lengths: list[int] = []

    def features(self, tokens: Tensor) -> Tensor:
        self.lengths.append(tokens.size(1))
        return self.table[tokens]

    def logits(self, features: Tensor) -> Tensor:
        return features


class CountingModel(SuccessorModel):
    """The same with a state of fixed size, the number of tokens read."""

    bounded = False

    def advance(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        return self.features(tokens), (state or 0) + tokens.size(1)


def test_generation_continues_prompt_to_the_end_of_text(tokenizer: Tokenizer) -> None:
    model, first = SuccessorModel(tokenizer.vocabulary_size).train(), tokenizer.encode("a")[-1]
    before = torch.get_rng_state()
    assert complete_prompt(model, tokenizer, "a", tokens=4) == tokenizer.decode(range(first + 1, first + 5))
    assert model.training
    assert torch.equal(torch.get_rng_state(), before), "modes and generators are restored"
    with torch.no_grad():
        model.table.zero_()[:, tokenizer.end_of_text] = 1000
    assert complete_prompt(model, tokenizer, "a", tokens=4) == ""


def test_full_context_restarts_with_last_half(tokenizer: Tokenizer) -> None:
    model = SuccessorModel(tokenizer.vocabulary_size)
    reader = TextGenerator(model, context=8)
    reader.add(range(6))
    assert list(generate_tokens(reader, Sampler(), -1, tokens=8)) == list(range(6, 14))
    assert model.lengths == [6, 7, 8, 4, 5, 6, 7, 8]
    reader = TextGenerator(model, context=8)
    reader.add(range(20))  # cut at its start
    assert int(reader.predict().argmax()) == 20
    assert model.lengths[8:] == [4]


def test_fixed_size_state_reads_each_token_once(tokenizer: Tokenizer) -> None:
    model = CountingModel(tokenizer.vocabulary_size)
    reader = TextGenerator(model, context=8)
    reader.add(range(6))
    assert list(generate_tokens(reader, Sampler(), -1, tokens=20)) == list(range(6, 26))
    assert model.lengths == [6, *[1] * 19]
    assert reader.state == 25


def draw_tokens(sampler: Sampler, logits: Tensor) -> set[int]:
    return {sampler.sample(logits) for _ in range(200)}


def test_temperature_0_takes_most_likely_token_and_top_k_and_top_p_exclude_others() -> None:
    logits = torch.tensor([0.1, 0.4, 0.3, 0.2]).log()
    assert draw_tokens(Sampler(temperature=0), logits) == {1}
    assert draw_tokens(Sampler(1.0, top_k=2), logits) == {1, 2}
    assert draw_tokens(Sampler(1.0, top_p=0.65), logits) == {1, 2}
    assert draw_tokens(Sampler(1.0, top_p=0.75), logits) == {1, 2, 3}
    assert draw_tokens(Sampler(1.0, top_p=1e-9), logits) == {1}
    assert draw_tokens(Sampler(1.0, top_k=9), logits) == {0, 1, 2, 3}


def test_decode_stream_never_splits_character() -> None:
    tokenizer = train_bpe(["plain text, nothing else. " * 20], 300)
    text = "naïve 列車 🚂 – plain text"
    tokens = tokenizer.encode(text)
    parts = list(decode_stream(tokenizer, tokens))
    assert len(tokens) > len(text)
    assert "".join(parts) == text
    assert "🚂" in parts


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
        dataset=DatasetPin(corpus="python-docs", tokenizer="bpe:280", hash="d" * 64),
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


@pytest.mark.parametrize("is_graph", [False, True])
def test_generated_lines_equal_text_of_same_seed_also_of_a_graph_without_its_python(run: Path, is_graph: bool) -> None:
    model, tokenizer = load_model(run, run / "step-00000003"), load_tokenizer(run / "tokenizer.json")
    expected = complete_prompt(model, tokenizer, "The train", tokens=40, temperature=0.7, seed=5, context=32)
    if is_graph:
        module = load_architecture("gpt")
        record = json.loads((run / "run.json").read_text())
        trace_architecture(module, module.Config(**record["model"])).write(run / "graph")
        (run / "run.json").write_text(json.dumps({**record, "arch": "of-an-entry"}))
    assert run_generate(run) == 0
    rows = lines(run.parent / "out")
    assert {row["kind"] for row in rows} == {"text"}
    assert "".join(row["text"] for row in rows) == expected
    result = GenerateResult.model_validate_json((run.parent / "out" / "result.json").read_bytes())
    assert 0 < result.tokens <= 40


def test_generate_broken_model_is_model_failure(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "model": {**record["model"], "waves": 3}}))
    assert run_generate(run) == 3
    failure = json.loads((run.parent / "out" / "failure.json").read_text())
    assert failure["cause"] == "model"
    assert "waves" in failure["reason"]
    assert not (run.parent / "out" / "result.json").exists()
