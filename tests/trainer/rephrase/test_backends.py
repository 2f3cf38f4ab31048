"""Back ends over real sockets: a server that is there, and servers that we start beside a sitting."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.genesis import texts
from tests.support.model_server import NAME, Words, serving
from tests.support.paths import REPOSITORY
from trainer.rephrase.backends import (
    BackEndError,
    Declined,
    Place,
    PromptTooLong,
    Setup,
    Unavailable,
    endpoint,
    server,
    transformers_cpu,
    vllm,
)
from trainer.rephrase.backends.endpoint import Endpoint
from trainer.rephrase.prompts import prompt

SAMPLING = {"temperature": 0.8, "top_p": 0.95, "max_tokens": 512}
STAND_IN = f'''#!{sys.executable}
"""Stands in for vllm: takes its command line, opens a real socket, is ready after a while."""
import json, os, pathlib, sys, time
words = sys.argv[1:]
here = pathlib.Path(__file__).parent
with (here / "starts").open("a") as file:
    print(json.dumps(words), file=file)
if (here / "broken").exists():
    sys.exit("no kernel image is available for this card")
sys.path[:0] = json.loads((here / "path").read_text())
from trainer.rephrase.serve import Service
from tests.support.model_server import Words
name, port = (words[words.index(flag) + 1] for flag in ("--served-model-name", "--port"))
time.sleep(0.3)
Service(Words(), name, int(port)).server.serve_forever()
'''


def asked(text: str = "") -> str:
    return prompt("easy", text or texts(1)[0])


def test_an_endpoint_answers_and_says_how_it_ended_and_how_much_it_wrote() -> None:
    with serving() as service:
        writer = Endpoint(service.address, NAME)
        answer = writer.write(asked(), SAMPLING, 1)
        assert answer == writer.write(asked(), SAMPLING, 1) != writer.write(asked(), SAMPLING, 2)
        assert answer.ended == "stop"
        assert answer.tokens == len(answer.text.split(" "))
        assert writer.write(asked(), {**SAMPLING, "max_tokens": 5}, 1).ended == "length"
        assert endpoint.models(Setup("endpoint", url=service.address)) == (NAME,)
        writer.close()


def test_each_answer_belongs_to_its_question_however_many_are_asked_at_once() -> None:
    sources = texts(40)
    with serving(Words(seconds=0.01)) as service, ThreadPoolExecutor(20) as pool:
        writer = Endpoint(service.address, NAME)
        answers = list(pool.map(lambda source: writer.write(asked(source), SAMPLING, 7), sources))
        writer.close()
    for source, answer in zip(sources, answers, strict=True):
        assert answer.text.split()[-1] == source.split()[-1] or len(answer.text.split()) >= len(source.split())
        longest = max(source.split(), key=len)
        assert longest in answer.text


def test_what_does_not_fit_is_told_and_the_next_question_is_not_touched() -> None:
    with serving(Words(context=700)) as service:
        writer = Endpoint(service.address, NAME)
        with pytest.raises(PromptTooLong):
            writer.write(asked(" ".join(texts(20))), SAMPLING, 1)
        assert writer.write(asked(), SAMPLING, 1).text
        writer.close()


Reply = Callable[[], tuple[int, str]]


@pytest.fixture
def strange() -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """A server that answers what the test says: its address, and the list of answers."""
    replies: list[tuple[int, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, body = replies.pop(0)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{listener.server_address[1]}/v1", replies
    listener.shutdown()
    listener.server_close()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, '{"error": {"message": "This model\'s maximum context length is 4096 tokens."}}', PromptTooLong),
        (400, '{"error": {"type": "exceed_context_size_error", "n_ctx": 512}}', PromptTooLong),
        (400, '{"error": {"code": "context_length_exceeded"}}', PromptTooLong),
        (500, '{"error": {"message": "the request exceeds the available context size"}}', PromptTooLong),
        (400, '{"error": {"message": "content filter"}}', Declined),
        (401, "no key", Declined),
        (404, "no such model", Declined),
        (429, "slower", Unavailable),
        (503, "loading model", Unavailable),
        (200, "<html>proxy</html>", Unavailable),
        (200, '{"choices": []}', Unavailable),
        (200, "[]", Unavailable),
        (200, '{"choices": [{"message": "text"}]}', Unavailable),
    ],
)
def test_what_servers_say_is_understood(
    strange: tuple[str, list[tuple[int, str]]], status: int, body: str, kind: type[Exception]
) -> None:
    address, replies = strange
    replies.append((status, body))
    writer = Endpoint(address, NAME)
    with pytest.raises(kind):
        writer.write(asked(), SAMPLING, 1)
    writer.close()


def test_nobody_there_is_unavailable() -> None:
    writer = Endpoint(f"http://127.0.0.1:{server.free_port()}/v1", NAME)
    with pytest.raises(Unavailable, match="cannot be reached"):
        writer.write(asked(), SAMPLING, 1)
    writer.close()


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an executable `vllm`, first on the path."""
    import json

    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    (program.parent / "path").write_text(json.dumps([str(REPOSITORY)]))
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(vllm, "program", lambda: str(program))
    return program.parent


def test_vllm_is_started_waited_for_asked_and_ended(stand_in: Path, tmp_path: Path) -> None:
    place = Place(tmp_path / "log")
    with vllm.opened(Setup("vllm", flags=("--quantization", "awq")), "org/model", "abc", place) as writer:
        assert writer.title == "vllm"
        assert writer.write(asked(), SAMPLING, 1).text
    with pytest.raises(Unavailable):
        Endpoint(writer._url, "org/model").write(asked(), SAMPLING, 1)
    (line,) = (stand_in / "starts").read_text().splitlines()
    for words in (
        '"serve", "org/model"',
        '"--revision", "abc"',
        '"--max-model-len", "4096"',
        '"--quantization", "awq"',
    ):
        assert words in line


def test_a_server_that_dies_is_started_anew_and_one_that_always_dies_is_given_up(
    stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path / "log")
    with vllm.opened(Setup("vllm"), "m", "", place) as writer:
        owner = writer.revive.__self__  # type: ignore[attr-defined]
        owner._process.kill()
        owner._process.wait()
        with pytest.raises(Unavailable):
            writer.write(asked(), SAMPLING, 1)
        writer.look_after()
        assert writer.write(asked(), SAMPLING, 1).text
        monkeypatch.setattr(server, "RESTARTS", 1)
        owner._process.kill()
        owner._process.wait()
        with pytest.raises(BackEndError, match="ends again and again"):
            writer.look_after()
    assert len((stand_in / "starts").read_text().splitlines()) == 2


def test_a_server_that_never_gets_ready_is_a_sentence_with_its_last_words(stand_in: Path, tmp_path: Path) -> None:
    (stand_in / "broken").touch()
    with (
        pytest.raises(BackEndError, match=r"ended before it was ready\. Its last words: no kernel image"),
        vllm.opened(Setup("vllm"), "m", "", Place(tmp_path / "log")),
    ):
        pass


def test_a_server_that_nobody_waits_for_any_more_is_ended_at_once(stand_in: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    with vllm.opened(Setup("vllm"), "m", "", Place(tmp_path / "log", unwanted=lambda: True)):
        pass
    assert time.monotonic() - began < 10


def test_what_a_command_line_holds() -> None:
    words = vllm.command_line(Setup("vllm", model="m", weights="folder", context=2048), "m", "r", 80, 2)
    assert words[1:] == [
        *("serve", "folder", "--served-model-name", "m", "--host", "127.0.0.1", "--port", "80"),
        *("--max-model-len", "2048", "--tensor-parallel-size", "2"),
    ]
    assert "--revision" in transformers_cpu.words(Setup("transformers", model="m"), "m", "r", 80)
    for build in (lambda: vllm.command_line(Setup("vllm"), "-rf", "", 80, 1),):
        with pytest.raises(BackEndError, match="no model's name"):
            build()


@pytest.mark.parametrize(
    ("setup", "sentence"),
    [
        (Setup("endpoint", url="localhost:8000"), "is not an address"),
        (Setup("endpoint", url="http://x/v1", served_as="a"), "--served-as needs --model"),
    ],
)
def test_an_endpoint_that_cannot_work_is_a_sentence(setup: Setup, sentence: str) -> None:
    assert sentence in endpoint.why_not(setup)
    assert endpoint.why_not(Setup("endpoint", url="https://x/v1")) == ""
    assert "--model" in transformers_cpu.why_not(Setup("transformers"))
