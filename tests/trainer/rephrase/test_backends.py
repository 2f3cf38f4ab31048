"""Back ends over real sockets: an existing server, servers that we start, and our own with a tiny model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.genesis import texts
from tests.support.http_server import Handler, run_server
from tests.support.model_server import NAME, SynonymModel, serve_model
from tests.support.paths import REPOSITORY
from trainer import protocol
from trainer.distributed.ports import find_free_port
from trainer.rephrase.backends import (
    BackendConfig,
    BackendContext,
    BackendError,
    BackendUnavailableError,
    Completion,
    PromptRejectedError,
    PromptTooLongError,
    endpoint,
    server,
    transformers_cpu,
    vllm,
)
from trainer.rephrase.backends.endpoint import EndpointClient
from trainer.rephrase.backends.protocol import CompletionRequest
from trainer.rephrase.prompts import build_prompt

pytestmark = pytest.mark.processes

GIGABYTE = 10**9
CONTEXT = BackendContext(Path("log"), gpus=(protocol.Gpu(name="NVIDIA A100", memory_bytes=40 * GIGABYTE),) * 2)
FakeServer = tuple[str, list[tuple[int, str]]]
"""URL of a server, and the replies that it sends next: the test appends them."""
SAMPLING = {"temperature": 0.8, "top_p": 0.95, "max_tokens": 512}
FAKE_VLLM = f'''#!{sys.executable}
"""A fake vllm command: parses its command line and serves after a delay."""
import json, os, pathlib, sys, time
words = sys.argv[1:]
here = pathlib.Path(__file__).parent
with (here / "starts").open("a") as file:
    print(json.dumps(words), file=file)
if (here / "broken").exists():
    sys.exit("no kernel image is available for this card")
sys.path.insert(0, {str(REPOSITORY)!r})
from trainer.rephrase.serve import CompletionServer
from tests.support.model_server import SynonymModel
name, port = (words[words.index(flag) + 1] for flag in ("--served-model-name", "--port"))
time.sleep(600 if (here / "hangs").exists() else 0.3)
CompletionServer(SynonymModel(), name, int(port)).serve_forever()
'''


def easy_prompt(text: str = "") -> str:
    return build_prompt("easy", text or texts(1)[0])


def test_endpoint_completion_has_text_end_and_token_count() -> None:
    with serve_model(SynonymModel(context=700)) as service, closing(EndpointClient(service.url, NAME)) as client:
        answer = client.complete(easy_prompt(), SAMPLING, 1)
        assert answer == client.complete(easy_prompt(), SAMPLING, 1) != client.complete(easy_prompt(), SAMPLING, 2)
        assert answer.ended == "stop"
        assert answer.tokens == len(answer.text.split(" "))
        with pytest.raises(PromptTooLongError):
            client.complete(easy_prompt(" ".join(texts(20))), SAMPLING, 1)
        assert client.complete(easy_prompt(), {**SAMPLING, "max_tokens": 5}, 1).ended == "length"
        assert endpoint.list_models(BackendConfig("endpoint", url=service.url)) == (NAME,)
    with (
        closing(EndpointClient(f"http://127.0.0.1:{find_free_port()}/v1", NAME)) as client,
        pytest.raises(BackendUnavailableError, match="cannot be reached"),
    ):
        client.complete(easy_prompt(), SAMPLING, 1)


class ScriptedHandler(Handler):
    replies: list[tuple[int, str]]

    def do_GET(self) -> None:
        self.read_body()
        status, body = self.replies.pop(0)
        self.send(status, body.encode())

    do_POST = do_GET


@pytest.fixture
def fake_server() -> Iterator[FakeServer]:
    replies: list[tuple[int, str]] = []
    with run_server(ScriptedHandler, replies=replies) as url:
        yield f"{url}/v1", replies


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, '{"error": {"message": "This model\'s maximum context length is 4096 tokens."}}', PromptTooLongError),
        (400, '{"error": {"code": "context_length_exceeded"}}', PromptTooLongError),
        (500, '{"error": {"message": "the request exceeds the available context size"}}', PromptTooLongError),
        (400, '{"error": {"message": "content filter"}}', PromptRejectedError),
        (503, "loading model", BackendUnavailableError),
        (200, "<html>proxy</html>", BackendUnavailableError),
        (200, '{"choices": [null]}', BackendUnavailableError),
        (200, '{"error": "Model is still loading, try again later"}', BackendUnavailableError),  # LM Studio
        (200, '{"object": "error", "message": "The model `x` does not exist.", "code": 404}', PromptRejectedError),
        (200, '{"error": {"message": "Unexpected endpoint or method."}}', PromptRejectedError),
        (200, '{"choices": [{"message": {"content": null, "refusal": "No."}}]}', PromptRejectedError),
        (200, '{"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]}', PromptRejectedError),
        (200, '{"choices": [{"message": {"content": "A"}, "finish_reason": "abort"}]}', BackendUnavailableError),
        # DeepSeek, OpenRouter, Gemini, vLLM.
        (
            200,
            '{"choices": [{"text": "A", "finish_reason": "insufficient_system_resource"}]}',
            BackendUnavailableError,
        ),
        (200, '{"choices": [{"message": {"content": "A"}, "error": {"code": 502}}]}', BackendUnavailableError),
        (200, '{"choices": [{"message": {"content": "A"}, "finish_reason": "RECITATION"}]}', PromptRejectedError),
        (200, '{"choices": null, "error": {"message": "max_model_len", "code": "400"}}', PromptTooLongError),
        (200, '{"error": {"message": "Upstream", "code": "503"}}', BackendUnavailableError),
    ],
)
def test_server_error_maps_to_exception(fake_server: FakeServer, status: int, body: str, kind: type[Exception]) -> None:
    address, replies = fake_server
    replies.append((status, body))
    with closing(EndpointClient(address, NAME)) as client, pytest.raises(kind):
        client.complete(easy_prompt(), SAMPLING, 1)


def build_reply(message: object, reason: object = "stop", **fields: object) -> str:
    return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": reason}], **fields})


USAGE = {"prompt_tokens": 3, "completion_tokens": 7}


@pytest.mark.parametrize(
    ("body", "completion"),
    [
        # vLLM, SGLang and llama.cpp with a parser of reasoning; the last token limit was reached within it.
        (build_reply({"content": "A.", "reasoning_content": "Hm."}, usage=USAGE), Completion("A.", "stop", 7)),
        (build_reply({"content": "A.", "reasoning": "H.", "tool_calls": []}, usage=USAGE), Completion("A.", "stop", 7)),
        (build_reply({"content": None, "reasoning_content": "Hm"}, "length", usage=USAGE), Completion("", "length", 7)),
        # Mistral, and proxies of Anthropic's API.
        (
            build_reply(
                {"content": [{"type": "thinking", "thinking": [{"text": "Hm."}]}, {"type": "text", "text": "A."}]}
            ),
            Completion("A.", "stop", 0),
        ),
        (build_reply({"content": [{"text": "A"}, "."]}, "model_length"), Completion("A.", "length", 0)),
        # llama.cpp, Ollama, TGI.
        (build_reply({"content": "A."}, "eos_token", usage={"completion_tokens": None}), Completion("A.", "stop", 0)),
        ('{"choices": [{"text": "A.", "message": null, "finish_reason": "stop"}]}', Completion("A.", "stop", 0)),
        (build_reply({"content": "A."}, "max_output_tokens"), Completion("A.", "length", 0)),
    ],
)
def test_completions_of_servers_are_read(fake_server: FakeServer, body: str, completion: Completion) -> None:
    address, replies = fake_server
    replies.append((200, body))
    with closing(EndpointClient(address, NAME)) as client:
        assert client.complete(easy_prompt(), SAMPLING, 1) == completion


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ('{"object": "list", "data": [{"id": "m", "object": "model"}, null, {"id": null}]}', ("m",)),
        ('{"data": null, "models": [{"name": "m"}]}', ("m",)),
        ('[{"id": "m"}]', ("m",)),
        ('{"object": "list", "data": null}', None),
        ('{"error": "not found"}', None),
    ],
)
def test_models_of_servers_are_listed_or_to_be_named(
    fake_server: FakeServer, body: str, names: tuple[str, ...] | None
) -> None:
    address, replies = fake_server
    replies.append((200, body))
    context = nullcontext() if names else pytest.raises(BackendError, match=r"name (it|its model) with --model")
    with context:
        assert endpoint.list_models(BackendConfig("endpoint", url=address)) == names


@pytest.fixture
def fake_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an executable `vllm`."""
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(FAKE_VLLM)
    program.chmod(0o755)
    monkeypatch.setattr(vllm, "find_program", lambda: str(program))
    return program.parent


def test_vllm_server_serves_and_is_restarted_until_a_limit(
    fake_vllm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BackendConfig("vllm", flags=("--quantization", "awq"))
    with vllm.open_client(config, "org/model", "abc", BackendContext(tmp_path / "log")) as client:
        assert client.title == "vllm"
        assert client.complete(easy_prompt(), SAMPLING, 1).text
        owner = client.recover.__self__  # type: ignore[attr-defined]
        owner._process.kill()
        owner._process.wait()
        with pytest.raises(BackendUnavailableError):
            client.complete(easy_prompt(), SAMPLING, 1)
        client.recover()
        assert client.complete(easy_prompt(), SAMPLING, 1).text
        monkeypatch.setattr(server, "MAX_RESTARTS", 1)
        owner._process.kill()
        owner._process.wait()
        with pytest.raises(BackendError, match="keeps crashing"):
            client.recover()
    with pytest.raises(BackendUnavailableError):
        EndpointClient(client._url, "org/model").complete(easy_prompt(), SAMPLING, 1)
    first, second = (fake_vllm / "starts").read_text().splitlines()
    assert first == second
    flags = ('"serve", "org/model"', '"--revision", "abc"', '"--max-model-len", "4096"', '"--quantization", "awq"')
    assert all(flag in first for flag in flags)


def test_server_that_fails_to_start_reports_last_log_line(fake_vllm: Path, tmp_path: Path) -> None:
    (fake_vllm / "broken").touch()
    with (
        pytest.raises(BackendError, match=r"ended before it was ready\. Its last output: no kernel image"),
        vllm.open_client(BackendConfig("vllm"), "m", "", BackendContext(tmp_path / "log")),
    ):
        pass


def test_server_start_stops_when_cancelled(fake_vllm: Path, tmp_path: Path) -> None:
    (fake_vllm / "hangs").touch()
    with vllm.open_client(BackendConfig("vllm"), "m", "", BackendContext(tmp_path / "log", is_canceled=lambda: True)):
        pass


def test_command_lines_contain_configuration() -> None:
    assert "--revision" in transformers_cpu.build_command(BackendConfig("transformers", model="m"), "m", "r", 80)
    with pytest.raises(BackendError, match="not a model's name"):
        vllm.build_command(BackendConfig("vllm"), "-rf", "", 80, CONTEXT)


@pytest.mark.parametrize(
    ("name", "gigabytes", "count", "needs", "options", "parallel"),
    [
        ("NVIDIA RTX 3060", 12, 1, 12, ["--max-num-seqs", "64"], 64),
        ("NVIDIA RTX 4090", 24, 1, 12, ["--max-num-seqs", "128"], 128),
        ("NVIDIA H100 80GB HBM3", 80, 1, 4, ["--max-num-seqs", "384"], 384),
        ("NVIDIA RTX 4090", 24, 2, 12, ["--max-num-seqs", "128", "--data-parallel-size", "2"], 256),
        ("NVIDIA RTX 4090", 24, 2, 40, ["--max-num-seqs", "256", "--tensor-parallel-size", "2"], 256),
        ("Tesla T4", 16, 1, 12, ["--max-num-seqs", "64", "--dtype", "half"], 64),
        ("", 0, 1, None, ["--max-num-seqs", "64"], 64),
    ],
)
def test_vllm_options_fit_the_cards(
    name: str, gigabytes: int, count: int, needs: float | None, options: list[str], parallel: int
) -> None:
    gpus = (protocol.Gpu(name=name, memory_bytes=gigabytes * GIGABYTE),) * count
    context = BackendContext(Path("log"), gpus=gpus, needs_gigabytes=needs)
    assert vllm.choose_options(context) == options
    assert vllm.choose_parallel(context) == parallel
    flag, value = vllm.choose_options(replace(context, speculative_tokens=8))[-2:]
    assert flag == "--speculative-config", "if the campaign enables it"
    assert json.loads(value) == {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 4}


@pytest.mark.parametrize(
    ("setup", "sentence"),
    [
        (BackendConfig("endpoint", url="localhost:8000"), "is not an address"),
        (BackendConfig("endpoint", url="http://x/v1", served_as="a"), "--served-as needs --model"),
    ],
)
def test_impossible_configuration_is_reported(setup: BackendConfig, sentence: str) -> None:
    assert sentence in endpoint.find_problem(setup)
    assert endpoint.find_problem(BackendConfig("endpoint", url="https://x/v1")) == ""
    assert "--model" in transformers_cpu.find_problem(BackendConfig("transformers"))


# --- our own server ---------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    from trainer.rephrase.causal import CausalCompletionModel

TINY_CONTEXT = 96


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
    config = GPT2Config(vocab_size=97, n_positions=TINY_CONTEXT, n_embd=16, n_layer=2, n_head=2, eos_token_id=95)
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
    assert (model.context, model.count_tokens("abc")) == (TINY_CONTEXT, 5)
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
        assert http.get("/models").json()["data"][0]["max_model_len"] == TINY_CONTEXT
