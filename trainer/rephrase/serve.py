"""`python -m trainer.rephrase.serve --model NAME --port N`: a small model on the processor, behind OpenAI's protocol.

As much of it as a sitting needs: `GET /v1/models`, `GET /health`, `POST /v1/chat/completions`, no streaming. Prompts
that come together are written together. What does not fit is refused with `context_length_exceeded`.
"""

from __future__ import annotations

import argparse
import json
import queue
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Protocol

from trainer.cli.parser import Parser

GATHER_SECONDS = 0.02
"""That a prompt waits for others to be written with."""
BODY_BYTES = 4 << 20


@dataclass(frozen=True)
class Asked:
    prompt: str
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 512
    seed: int = 0


@dataclass(frozen=True)
class Written:
    text: str
    ended: Literal["stop", "length"]
    tokens: int


class Engine(Protocol):
    """A model."""

    context: int
    """Tokens of prompt and answer together."""

    def count(self, prompt: str) -> int:
        """Return how many tokens the prompt is, with all that the model's template puts around it."""

    def write(self, asked: Sequence[Asked]) -> list[Written]:
        """Answer several prompts, each with its own sampling and seed."""


@dataclass
class Batcher:
    """One thread that writes; whoever asks waits for a future."""

    engine: Engine
    most: int
    """Prompts at a time."""
    waiting: queue.SimpleQueue[tuple[Asked, Future[Written]]] = field(default_factory=queue.SimpleQueue)

    def start(self) -> None:
        threading.Thread(target=self._run, name="writing", daemon=True).start()

    def ask(self, asked: Asked) -> Written:
        answer: Future[Written] = Future()
        self.waiting.put((asked, answer))
        return answer.result()

    def _run(self) -> None:
        while True:
            batch = self._gather()
            try:
                written = self.engine.write([asked for asked, _ in batch])
                for (_, answer), one in zip(batch, written, strict=True):
                    answer.set_result(one)
            except Exception as error:  # told to those who asked; the next batch may go well
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)

    def _gather(self) -> list[tuple[Asked, Future[Written]]]:
        batch = [self.waiting.get()]
        until = time.monotonic() + GATHER_SECONDS
        while len(batch) < self.most:
            try:
                batch.append(self.waiting.get(timeout=max(0.0, until - time.monotonic())))
            except queue.Empty:
                break
        return batch


class Service:
    """The HTTP server around an engine."""

    def __init__(self, engine: Engine, name: str, port: int = 0, most: int = 8) -> None:
        """`name`: what its model is called; `port`: 0 takes any."""
        self.engine = engine
        self.name = name
        self.asked = 0
        """Questions so far."""
        self.closed = False
        self.batcher = Batcher(engine, most)
        self.batcher.start()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def parse_request(self) -> bool:
                fits = super().parse_request()
                self.close_connection = self.close_connection or service.closed
                return fits and not service.closed

            def do_GET(self) -> None:
                known = {"/health": {}, "/v1/models": service.models()}
                found = known.get(self.path)
                self.reply(*((200, found) if found is not None else complaint(404, "There is nothing here.")))

            def do_POST(self) -> None:
                content = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), BODY_BYTES))
                if self.path != "/v1/chat/completions":
                    self.reply(*complaint(404, "There is nothing here."))
                    return
                self.reply(*service.complete(content))

            def reply(self, status: int, body: dict[str, Any]) -> None:
                if service.closed:
                    self.close_connection = True
                    return
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        class Listener(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_: object) -> None:
                pass  # somebody who asked has left

        self.server = Listener(("127.0.0.1", port), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def models(self) -> dict[str, Any]:
        one = {"id": self.name, "object": "model", "owned_by": "dailytrain", "max_model_len": self.engine.context}
        return {"object": "list", "data": [one]}

    def complete(self, content: bytes) -> tuple[int, dict[str, Any]]:
        """Return status and body."""
        self.asked += 1
        try:
            asked = read(content, self.name)
        except (ValueError, TypeError, KeyError) as error:
            return complaint(400, f"This question cannot be read: {error}.")
        prompted = self.engine.count(asked.prompt)
        if prompted + asked.max_tokens > self.engine.context:
            sentence = (
                f"The model's maximum context length is {self.engine.context} tokens; the prompt is {prompted} and"
                f" {asked.max_tokens} are asked for."
            )
            return complaint(400, sentence, "context_length_exceeded")
        try:
            written = self.batcher.ask(asked)
        except Exception as error:
            return complaint(500, f"The model failed ({type(error).__name__}: {error}).")
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": written.text},
            "finish_reason": written.ended,
        }
        usage = {"prompt_tokens": prompted, "completion_tokens": written.tokens}
        return 200, {"object": "chat.completion", "model": self.name, "choices": [choice], "usage": usage}

    def start(self) -> Service:
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def close(self) -> None:
        """Leave, in the middle of whatever it is."""
        self.closed = True
        self.server.shutdown()
        self.server.server_close()


def complaint(status: int, sentence: str, code: str = "") -> tuple[int, dict[str, Any]]:
    return status, {"error": {"message": sentence, "code": code or None, "type": "invalid_request_error"}}


def read(content: bytes, name: str) -> Asked:
    """Read a question. Raise ValueError, TypeError or KeyError."""
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    if found.get("model") != name:
        raise ValueError(f"there is no model {found.get('model')!r} here, only {name!r}")
    prompt = "\n\n".join(str(message["content"]) for message in found["messages"])
    return Asked(
        prompt,
        temperature=float(found.get("temperature", 1.0)),
        top_p=float(found.get("top_p", 1.0)),
        max_tokens=int(found.get("max_tokens") or 512),
        seed=int(found.get("seed") or 0),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until asked to end; return 2, with a line on standard error, for a model that cannot be loaded."""
    options = arguments(argv)
    from trainer.rephrase.causal import Causal  # here: it takes seconds

    try:
        engine = Causal(options.model, options.revision or None, options.context)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{options.model} cannot be loaded: {' '.join(str(error).split())}\n")
        return 2
    service = Service(engine, options.served_as or options.model, options.port, options.batch)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.stderr.write(f"{service.name} at {service.address}\n")
    service.server.serve_forever()
    return 0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m trainer.rephrase.serve", description="A small model behind OpenAI's protocol.")
    add = parser.add_argument
    add("--model", required=True, help="a folder, or a name at the Hub")
    add("--revision", default="", help="of the name")
    add("--served-as", default="", metavar="NAME", help="what it is called here (as --model)")
    add("--port", type=int, default=0, help="of 127.0.0.1 (any)")
    add("--context", type=int, default=4096, help="tokens of prompt and answer (%(default)s, or as many as it has)")
    add("--batch", type=int, default=8, help="prompts that are written together (%(default)s)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
