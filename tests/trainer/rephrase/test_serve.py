"""The completion server with a tiny transformers model: sampling, batches, errors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.model_server import serve_model
from trainer.rephrase.backends import Completion
from trainer.rephrase.backends.protocol import CompletionRequest
from trainer.rephrase.serve import build_parser, main

pytestmark = pytest.mark.processes

if TYPE_CHECKING:
    from trainer.rephrase.causal import CausalCompletionModel

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
def model(folder: Path) -> CausalCompletionModel:
    from trainer.rephrase.causal import CausalCompletionModel

    return CausalCompletionModel(str(folder), None, 4096)


def test_completion_is_the_same_alone_and_in_batch(model: CausalCompletionModel) -> None:
    requests = [
        CompletionRequest("short", temperature=0, max_tokens=20),
        CompletionRequest("a longer prompt than the first", temperature=0.8, top_p=0.9, max_tokens=12, seed=4),
        CompletionRequest("x", temperature=1.5, max_tokens=30, seed=9),
    ]
    batch = model.complete(requests)
    assert batch == [model.complete([request])[0] for request in requests]
    assert all(one.tokens <= request.max_tokens for one, request in zip(batch, requests, strict=True))
    assert {one.ended for one in batch} <= {"stop", "length"}
    assert (model.context, model.count_tokens("abc")) == (CONTEXT, 5)
    assert len({model.complete([CompletionRequest("x", max_tokens=20, seed=seed)])[0].text for seed in range(5)}) == 5
    greedy, limited = model.complete(
        [CompletionRequest("x", temperature=t, top_k=k, max_tokens=20) for t, k in ((0, 0), (2, 1))]
    )
    assert greedy.text == limited.text


def test_server_rejects_long_prompts_and_malformed_requests(model: CausalCompletionModel) -> None:
    with serve_model(model, "tiny") as server, httpx.Client(base_url=server.url) as http:
        request = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 10}
        reply = http.post("/chat/completions", json=request).json()
        assert reply["usage"] == {"prompt_tokens": 7, "completion_tokens": 10}
        long = http.post("/chat/completions", json={**request, "max_tokens": 90})
        assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
        for content in (b"{", b"[]", b"{}", json.dumps({**request, "model": "other"}).encode()):
            assert http.post("/chat/completions", content=content).status_code == 400
        assert http.get("/nowhere").status_code == http.post("/nowhere").status_code == 404
        assert http.get("/models").json()["data"][0]["max_model_len"] == CONTEXT


def test_server_continues_after_model_failure() -> None:
    class FailingModel:
        context = 100
        left = 1

        def count_tokens(self, prompt: str) -> int:
            return 1

        def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
            self.left -= 1
            if self.left == 0:
                raise RuntimeError("out of memory")
            return [Completion("text", "stop", 1) for _ in requests]

    request = {"model": "f", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 10}
    with serve_model(FailingModel(), "f") as server, httpx.Client(base_url=server.url) as http:
        assert http.post("/chat/completions", json=request).status_code == 500
        assert http.post("/chat/completions", json=request).status_code == 200


def test_missing_model_is_reported_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert build_parser().parse_args(["--model", "x"]).batch == 8
    assert main(["--model", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
