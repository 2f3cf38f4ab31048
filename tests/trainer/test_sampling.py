"""Text from a model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from trainer.data.tokenizer import Tokenizer
from trainer.models.base import LanguageModel
from trainer.sampling import choose, continuation


@pytest.fixture(scope="module")
def tokenizer(dataset_folder: Path) -> Tokenizer:
    return Tokenizer.load(dataset_folder / "tokenizer.json")


class Next(LanguageModel):
    """Answers with the token after the last one it saw, for certain, and notes how much it saw."""

    def __init__(self, vocabulary_size: int) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.eye(vocabulary_size).roll(1, dims=1) * 1000)
        self.longest = 0

    def forward(self, tokens: Tensor) -> Tensor:
        self.longest = max(self.longest, tokens.size(1))
        return self.table[tokens]


def test_it_goes_on_from_the_prompt(tokenizer: Tokenizer) -> None:
    first = tokenizer.encode("a")[-1]
    expected = tokenizer.decode(range(first + 1, first + 5))
    assert continuation(Next(tokenizer.vocabulary_size), tokenizer, "a", tokens=4) == expected


def test_it_stops_at_the_end_of_the_text(tokenizer: Tokenizer) -> None:
    model = Next(tokenizer.vocabulary_size)
    with torch.no_grad():
        model.table.zero_()[:, tokenizer.end_of_text] = 1000
    assert continuation(model, tokenizer, "a", tokens=4) == ""


def test_it_sees_no_more_than_its_context(tokenizer: Tokenizer) -> None:
    model = Next(tokenizer.vocabulary_size)
    continuation(model, tokenizer, "the cat sees the dog", tokens=20, context=7)
    assert model.longest == 7


def test_it_leaves_the_model_and_the_global_generator_alone(tokenizer: Tokenizer) -> None:
    model = Next(tokenizer.vocabulary_size).train()
    before = torch.get_rng_state()
    continuation(model, tokenizer, "a", tokens=4)
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)


def test_no_temperature_takes_the_likeliest() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.tensor([0.0, 0.1, 0.0])
    assert {choose(logits, 0, generator) for _ in range(20)} == {1}
    assert {choose(logits, 1.0, generator) for _ in range(50)} == {0, 1, 2}
