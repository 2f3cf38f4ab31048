"""Serve a small transformers model on the CPU with OpenAI's chat API.

`python -m trainer.rephrase.serve --model NAME --port N` answers `GET /v1/models`, `GET /health` and `POST
/v1/chat/completions` without streaming. Concurrent prompts are completed in one batch.

`transformers serve` (checked: 4.57) cannot replace it. It ignores `"stream": false`, always reports finish reason
"stop" and no token counts, has no context-length error, seeds the process-wide generator (so concurrent requests
disturb each other), lists a fixed set of models at `/v1/models`, and needs fastapi and openai.
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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trainer.errors import ExitCode, print_error
from trainer.rephrase.backends.protocol import Completion, CompletionModel, CompletionRequest

BATCH_WAIT_SECONDS = 0.02  # how long a prompt waits for others to share its batch
MAX_BODY_BYTES = 4 << 20


class RequestBatcher:
    """Completes concurrent requests in batches, on one thread."""

    def __init__(self, model: CompletionModel, batch_size: int) -> None:
        self._model = model
        self._batch_size = batch_size
        self._queue: queue.SimpleQueue[tuple[CompletionRequest, Future[Completion]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="completions", daemon=True).start()

    def complete(self, request: CompletionRequest) -> Completion:
        future: Future[Completion] = Future()
        self._queue.put((request, future))
        return future.result()

    def _run(self) -> None:
        while True:
            requests, futures = zip(*self._collect_batch(), strict=True)
            try:
                for future, completion in zip(futures, self._model.complete(requests), strict=True):
                    future.set_result(completion)
            except Exception as error:  # raised again in each request's thread; the next batch may succeed
                for future in futures:
                    if not future.done():
                        future.set_exception(error)

    def _collect_batch(self) -> list[tuple[CompletionRequest, Future[Completion]]]:
        batch = [self._queue.get()]
        deadline = time.monotonic() + BATCH_WAIT_SECONDS
        while len(batch) < self._batch_size:
            try:
                batch.append(self._queue.get(timeout=max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                break
        return batch


class CompletionHandler(BaseHTTPRequestHandler):
    server: CompletionServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        replies = {"/health": {}, "/v1/models": self.server.list_models()}
        self._send(*((200, replies[self.path]) if self.path in replies else build_error(404, "Not found.")))

    def do_POST(self) -> None:
        body = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), MAX_BODY_BYTES))
        is_completion = self.path == "/v1/chat/completions"
        self._send(*(self.server.complete(body) if is_completion else build_error(404, "Not found.")))

    def _send(self, status: int, reply: dict[str, Any]) -> None:
        content = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class CompletionServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, model: CompletionModel, name: str, port: int = 0, batch_size: int = 8) -> None:
        """`name` is the model's name in the API; `port` 0 takes any free port."""
        super().__init__(("127.0.0.1", port), CompletionHandler)
        self.model = model
        self.name = name
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self._batcher = RequestBatcher(model, batch_size)

    def handle_error(self, *_: object) -> None:
        pass  # the client has disconnected

    def list_models(self) -> dict[str, Any]:
        model = {"id": self.name, "object": "model", "owned_by": "dailytrain", "max_model_len": self.model.context}
        return {"object": "list", "data": [model]}

    def complete(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """Return status and body of the reply to a chat-completion request."""
        try:
            request = parse_request(body, self.name)
        except (ValueError, TypeError, KeyError) as error:
            return build_error(400, f"Malformed request: {error}.")
        prompt_tokens = self.model.count_tokens(request.prompt)
        if prompt_tokens + request.max_tokens > self.model.context:
            message = (
                f"The model's maximum context length is {self.model.context} tokens; the prompt has {prompt_tokens} and"
                f" max_tokens is {request.max_tokens}."
            )
            return build_error(400, message, "context_length_exceeded")
        try:
            completion = self._batcher.complete(request)
        except Exception as error:
            return build_error(500, f"The model failed ({type(error).__name__}: {error}).")
        message = {"role": "assistant", "content": completion.text}
        choice = {"index": 0, "message": message, "finish_reason": completion.ended}
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion.tokens}
        return 200, {"object": "chat.completion", "model": self.name, "choices": [choice], "usage": usage}


def build_error(status: int, message: str, code: str | None = None) -> tuple[int, dict[str, Any]]:
    return status, {"error": {"message": message, "code": code, "type": "invalid_request_error"}}


def parse_request(body: bytes, model: str) -> CompletionRequest:
    """Parse a chat-completion request. Raise ValueError, TypeError or KeyError."""
    fields = json.loads(body)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    if fields.get("model") != model:
        raise ValueError(f"the model is {model!r}, not {fields.get('model')!r}")
    return CompletionRequest(
        "\n\n".join(str(message["content"]) for message in fields["messages"]),
        temperature=float(fields.get("temperature", 1.0)),
        top_p=float(fields.get("top_p", 1.0)),
        top_k=int(fields.get("top_k") or 0),
        max_tokens=int(fields.get("max_tokens") or 512),
        seed=int(fields.get("seed") or 0),
    )


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer.rephrase.serve", description="Serve a small model.")
    add = parser.add_argument
    add("--model", required=True, help="a folder, or a name on the Hugging Face Hub")
    add("--revision", default="", help="of the model on the Hub")
    add("--served-as", default="", metavar="NAME", help="name in the API (as --model)")
    add("--port", type=int, default=0, help="of 127.0.0.1 (any)")
    add("--context", type=int, default=4096, help="tokens of prompt and completion (%(default)s, or the model's limit)")
    add("--batch", type=int, default=8, help="prompts per batch (%(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM. Return the exit code."""
    options = build_parser().parse_args(argv)
    from trainer.rephrase.causal import CausalCompletionModel  # here: importing torch takes seconds

    try:
        model = CausalCompletionModel(options.model, options.revision or None, options.context)
    except (OSError, ValueError) as error:
        return print_error(options.model, f"cannot be loaded: {error}", ExitCode.USER_ERROR)
    server = CompletionServer(model, options.served_as or options.model, options.port, options.batch)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.stderr.write(f"{server.name} at {server.url}\n")
    server.serve_forever()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
