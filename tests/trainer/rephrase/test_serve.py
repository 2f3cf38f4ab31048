"""A real, tiny model of transformers' behind the protocol: sampling, batches, and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.model_server import serving
from trainer.rephrase.serve import Asked, Written, arguments, main

if TYPE_CHECKING:
    from trainer.rephrase.causal import Causal

CONTEXT = 96


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 of two layers with random weights, and a tokenizer of letters."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("tiny")
    letters = {chr(code): number for number, code in enumerate(range(32, 127))} | {"<end>": 95, "\n": 96}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(path)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=97, n_positions=CONTEXT, n_embd=16, n_layer=2, n_head=2, eos_token_id=95)
    GPT2LMHeadModel(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Causal:
    from trainer.rephrase.causal import Causal

    return Causal(str(folder), None, 4096)


def test_its_context_is_the_models_where_that_is_smaller(model: Causal) -> None:
    assert model.context == CONTEXT
    assert model.count("abc") == 5


def test_a_prompt_gets_the_same_answer_alone_and_in_a_batch(model: Causal) -> None:
    asked = [
        Asked("short", temperature=0, max_tokens=20),
        Asked("a longer prompt than the first", temperature=0.8, top_p=0.9, max_tokens=12, seed=4),
        Asked("x", temperature=1.5, max_tokens=30, seed=9),
    ]
    together = model.write(asked)
    assert together == [model.write([one])[0] for one in asked]
    assert all(written.tokens <= one.max_tokens for written, one in zip(together, asked, strict=True))
    assert {written.ended for written in together} <= {"stop", "length"}


def test_seeds_make_the_difference(model: Causal) -> None:
    texts = {model.write([Asked("x", max_tokens=20, seed=seed)])[0].text for seed in range(5)}
    assert len(texts) == 5


def test_over_http_what_does_not_fit_is_refused_and_nonsense_too(model: Causal) -> None:
    with serving(model, "tiny") as service, httpx.Client(base_url=service.address) as http:
        question = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 10}
        answer = http.post("/chat/completions", json=question).json()
        assert answer["usage"] == {"prompt_tokens": 7, "completion_tokens": 10}
        long = http.post("/chat/completions", json={**question, "max_tokens": 90})
        assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
        for content in (b"{", b"[]", b"{}", json.dumps({**question, "model": "other"}).encode()):
            assert http.post("/chat/completions", content=content).status_code == 400
        assert http.get("/nowhere").status_code == http.post("/nowhere").status_code == 404
        assert http.get("/models").json()["data"][0]["max_model_len"] == CONTEXT


def test_a_model_that_fails_tells_those_who_asked_and_goes_on() -> None:
    class Failing:
        context = 100
        left = 1

        def count(self, prompt: str) -> int:
            return 1

        def write(self, asked: list[Asked]) -> list[Written]:
            self.left -= 1
            if self.left == 0:
                raise RuntimeError("out of memory")
            return [Written("text", "stop", 1) for _ in asked]

    question = {"model": "f", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 10}
    with serving(Failing(), "f") as service, httpx.Client(base_url=service.address) as http:
        assert http.post("/chat/completions", json=question).status_code == 500
        assert http.post("/chat/completions", json=question).status_code == 200


def test_a_model_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert arguments(["--model", "x"]).batch == 8
    assert main(["--model", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
