"""Sampling of text from a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.cli.main import main
from trainer.data.tokenizer import Tokenizer, load_tokenizer
from trainer.data.tokenizer_training import train_bpe
from trainer.inference.sampling import Sampler, TextGenerator, complete_prompt, decode_stream, generate_tokens
from trainer.models import ARCHITECTURES, load_architecture
from trainer.models.base import LanguageModel


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


def test_generation_continues_prompt(tokenizer: Tokenizer) -> None:
    first = tokenizer.encode("a")[-1]
    expected = tokenizer.decode(range(first + 1, first + 5))
    assert complete_prompt(SuccessorModel(tokenizer.vocabulary_size), tokenizer, "a", tokens=4) == expected


def test_generation_stops_at_end_of_text(tokenizer: Tokenizer) -> None:
    model = SuccessorModel(tokenizer.vocabulary_size)
    with torch.no_grad():
        model.table.zero_()[:, tokenizer.end_of_text] = 1000
    assert complete_prompt(model, tokenizer, "a", tokens=4) == ""


def test_full_context_restarts_with_last_half(tokenizer: Tokenizer) -> None:
    model = SuccessorModel(tokenizer.vocabulary_size)
    reader = TextGenerator(model, context=8)
    reader.add(range(6))
    assert list(generate_tokens(reader, Sampler(), -1, tokens=8)) == list(range(6, 14))
    assert model.lengths == [6, 7, 8, 4, 5, 6, 7, 8]


def test_long_prompt_is_cut_at_start(tokenizer: Tokenizer) -> None:
    model = SuccessorModel(tokenizer.vocabulary_size)
    reader = TextGenerator(model, context=8)
    reader.add(range(20))
    assert int(reader.predict().argmax()) == 20
    assert model.lengths == [4]


def test_fixed_size_state_reads_each_token_once(tokenizer: Tokenizer) -> None:
    model = CountingModel(tokenizer.vocabulary_size)
    reader = TextGenerator(model, context=8)
    reader.add(range(6))
    assert list(generate_tokens(reader, Sampler(), -1, tokens=20)) == list(range(6, 26))
    assert model.lengths == [6, *[1] * 19]
    assert reader.state == 25


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
@torch.no_grad()
def test_cached_generation_equals_full_recomputation(name: str) -> None:
    module = load_architecture(name)
    torch.manual_seed(0)
    model = module.Model(module.Config.sized(2, 300, 24)).eval()
    for parameter in model.parameters():
        parameter.add_(0.05 * torch.randn_like(parameter))  # branches that end in zeros would hide everything
    tokens = torch.randint(0, 300, (2, 24))
    state, parts = None, []
    for part in tokens.split([7, 1, 1, 9, 1, 5], dim=1):
        features, state = model.advance(part, state)
        parts.append(features)
    torch.testing.assert_close(torch.cat(parts, dim=1), model.features(tokens), rtol=1e-4, atol=1e-4)


def test_complete_prompt_restores_mode_and_generators(tokenizer: Tokenizer) -> None:
    model = SuccessorModel(tokenizer.vocabulary_size).train()
    before = torch.get_rng_state()
    complete_prompt(model, tokenizer, "a", tokens=4)
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)


def draw_tokens(sampler: Sampler, logits: Tensor) -> set[int]:
    return {sampler.sample(logits) for _ in range(200)}


def test_temperature_0_takes_most_likely_token() -> None:
    logits = torch.tensor([0.0, 0.1, 0.0])
    assert draw_tokens(Sampler(temperature=0), logits) == {1}
    assert draw_tokens(Sampler(temperature=1.0), logits) == {0, 1, 2}


def test_top_k_and_top_p_exclude_unlikely_tokens() -> None:
    logits = torch.tensor([0.1, 0.4, 0.3, 0.2]).log()
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


def test_decode_stream_equals_tokenizer_decode(tokenizer: Tokenizer) -> None:
    generator = torch.Generator().manual_seed(5)
    for _ in range(50):
        tokens = torch.randint(0, tokenizer.vocabulary_size, (20,), generator=generator).tolist()
        assert "".join(decode_stream(tokenizer, tokens)) == tokenizer.decode(tokens)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--max-tokens", "-1"], "--max-tokens cannot be negative"),
        (["--temperature", "-1"], "the temperature must be a number of at least 0"),
        (["--temperature", "nan"], "the temperature must be a number of at least 0"),
        (["--seed", str(10**20)], "the seed must be from 0"),
        (["--top-k", "0"], "top-k must leave"),
        (["--top-p", "1.5"], "top-p is a probability"),
        (["--device", "cuda"], "torch finds no GPU here"),
    ],
)
def test_sample_invalid_flags_print_one_line(
    flags: list[str], sentence: str, tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sample", str(tiny_run), *flags]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert sentence in err
