"""Client of any server with OpenAI's chat API: vLLM, SGLang, llama.cpp, Ollama, LM Studio, TGI, a paid service.

Replies are read as these servers write them, which differs from the documentation.
Context-length errors are recognized by their text: vLLM "maximum context length", llama.cpp
`exceed_context_size_error`, OpenAI `context_length_exceeded`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, NoReturn
from urllib.parse import urlsplit

import httpx

from trainer.errors import to_one_line
from trainer.rephrase.backends.protocol import (
    BackendConfig,
    BackendContext,
    BackendError,
    BackendUnavailableError,
    Completion,
    PromptRejectedError,
    PromptTooLongError,
)

DEFAULT_PARALLEL = 8
COMPLETION_SECONDS = 600.0  # timeout of one completion: 2,000 tokens on a CPU
REQUEST_SECONDS = 15.0  # timeout of requests that need no model
TOO_LONG_PATTERN = re.compile(
    r"maximum context length|context_length_exceeded|exceed_context_size|context (?:size|window)|maximum model length"
    r"|max_model_len|longer than the maximum",
    re.IGNORECASE,
)
BUSY_PATTERN = re.compile(r"overload|busy|queue|loading|try again|rate.?limit|timed? ?out", re.IGNORECASE)
# Reasons to finish, of which every server has its own. Others end an answer: `stop`, `eos_token`, `end_turn`.
LENGTH_REASONS = re.compile(r"length|limit|max_|context")
REFUSED_REASONS = re.compile(r"filter|refus|safety|prohibit|blocklist|recitation|tool|function")
ABORTED_REASONS = re.compile(r"abort|cancel|error|time_?out|insufficient")
MAX_TOKENS = 2**31
BUSY_STATUSES = {408, 409, 425, 429}
MAX_ERROR_CHARS = 200  # of a server's error message in ours


def choose_parallel(context: BackendContext) -> int:
    return DEFAULT_PARALLEL


def find_problem(config: BackendConfig) -> str:
    if not config.url.startswith(("http://", "https://")):
        return f"--endpoint {config.url!r} is not an address such as http://127.0.0.1:8000/v1."
    if config.served_as and not config.model:
        return "--served-as needs --model: the campaigns' name for the endpoint's model."
    return ""


def list_models(config: BackendConfig) -> tuple[str, ...] | None:
    if config.model:
        return (config.model,)
    with open_client(config, "", "", None) as client:
        try:
            models = tuple(client.list_models())
        except (BackendUnavailableError, PromptRejectedError) as error:
            raise BackendError(f"{error} Start it first, or name its model with --model.") from error
    if not models:
        raise BackendError(f"The back end at {config.url} names no model: load one, or name it with --model.")
    return models


def open_client(
    config: BackendConfig, model: str, revision: str, context: BackendContext | None
) -> closing[EndpointClient]:
    """Connect to the endpoint. `revision` cannot be checked: the volunteer is responsible for it."""
    return closing(EndpointClient(config.url, config.served_as or model, config.api_key))


class EndpointClient:
    def __init__(self, url: str, model: str, api_key: str = "", title: str = "endpoint") -> None:
        address = urlsplit(url)
        is_local = address.hostname in ("localhost", "127.0.0.1", "::1")
        # As in the node's client: load certificates only for HTTPS, use no proxy for local servers.
        self._http = httpx.Client(
            verify=address.scheme == "https",
            trust_env=not is_local,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=COMPLETION_SECONDS,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
        )
        self._url = url.rstrip("/")
        self.model = model
        self.title = title
        self.recover: Callable[[], None] = lambda: None  # set by `BackendServer` for a server that we started

    def close(self) -> None:
        self._http.close()

    def list_models(self) -> list[str]:
        """Return the server's model names. Raise `BackendUnavailableError` or `PromptRejectedError`."""
        reply = self._request("GET", "/models", timeout=REQUEST_SECONDS)
        models = reply.get("data") or reply.get("models") or []
        names = (model.get("id") or model.get("name") for model in models if isinstance(model, dict))
        return [str(name) for name in names if name]

    def complete(self, prompt: str, sampling: Mapping[str, float], seed: int) -> Completion:
        messages = [{"role": "user", "content": prompt}]
        body = {"model": self.model, "messages": messages, "stream": False, "seed": seed, **sampling}
        return parse_completion(self._request("POST", "/chat/completions", json=body))

    def _request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = self._http.request(method, self._url + path, **options)
            check_response(response)
            reply = response.json()
        except httpx.HTTPError as error:
            raise BackendUnavailableError(
                f"The back end at {self._url} cannot be reached ({type(error).__name__})."
            ) from error
        except ValueError as error:
            raise BackendUnavailableError(f"The reply of the back end at {self._url} is not JSON.") from error
        if isinstance(reply, list) and path == "/models":  # of Together's API
            reply = {"data": reply}
        if not isinstance(reply, dict):
            raise BackendUnavailableError(f"The reply of the back end at {self._url} is not a JSON object.")
        check_reply(reply)
        return reply


def check_response(response: httpx.Response) -> None:
    """Raise the error that an unsuccessful response stands for."""
    if response.status_code >= 300:
        raise_error(response.status_code, response.text[:10_000])


def raise_error(status: int, message: str) -> NoReturn:
    """`status` 0: unknown."""
    if TOO_LONG_PATTERN.search(message):
        raise PromptTooLongError
    if status >= 500 or status in BUSY_STATUSES or (status == 0 and BUSY_PATTERN.search(message)):
        raise BackendUnavailableError(f"The back end is busy or broken (status {status or 200}).")
    raise PromptRejectedError(
        f"The back end rejected the request (status {status or 200}): {to_one_line(message)[:MAX_ERROR_CHARS]}"
    )


def parse_completion(reply: Mapping[str, Any]) -> Completion:
    """Parse a chat completion. Raise `BackendUnavailableError` if it is malformed, `PromptRejectedError` if refused.

    Reasoning that the server separates from the answer (`reasoning_content`, `reasoning`) is left out. What it does not
    separate is removed by `checks.clean_output`.
    """
    choices = reply.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = (
        choice.get("message") or {} if isinstance(choice, dict) and ({"message", "text"} & choice.keys()) else None
    )
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise BackendUnavailableError("The back end's reply is not a chat completion.")
    check_reply({"error": choice.get("error")})
    reason = str(choice.get("finish_reason") or "stop").lower()
    text = join_parts(message.get("content") or choice.get("text"))
    if REFUSED_REASONS.search(reason) or (message.get("refusal") and not text):
        raise PromptRejectedError(
            f"The back end declined the prompt ({to_one_line(message.get('refusal') or reason)})."
        )
    if ABORTED_REASONS.search(reason):
        raise BackendUnavailableError(f"The back end aborted the completion ({reason}).")
    usage = reply.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    count = int(tokens) if isinstance(tokens, int | float) and 0 < tokens < MAX_TOKENS else 0
    return Completion(text, "length" if LENGTH_REASONS.search(reason) else "stop", count)


def join_parts(content: object) -> str:
    """Return the text of a message: a string, null, or a list of parts of which some may be reasoning."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [
        part if isinstance(part, str) else part.get("text")
        for part in parts
        if isinstance(part, str) or (isinstance(part, dict) and part.get("type", "text") in ("text", "output_text"))
    ]
    return "".join(text for text in texts if isinstance(text, str))


def check_reply(reply: Mapping[str, Any]) -> None:
    """Raise the error that a reply with status 200 may stand for: several servers report errors that way."""
    error = reply if reply.get("object") == "error" else reply.get("error")
    if not error or reply.get("choices"):
        return
    fields = error if isinstance(error, dict) else {"message": error}
    codes = (str(fields.get(key)) for key in ("code", "status", "http_code"))
    raise_error(next((int(code) for code in codes if code.isdecimal()), 0), json.dumps(error, ensure_ascii=False))


def wait_until_ready(
    client: EndpointClient, is_alive: Callable[[], bool], is_canceled: Callable[[], bool], seconds: float
) -> None:
    """Wait until the server serves the client's model. Raise `BackendError` if it dies first or takes too long."""
    deadline = time.monotonic() + seconds
    while not is_canceled():
        try:
            models = client.list_models()
            if client.model in models:
                return
            raise BackendError(f"The back end serves {', '.join(models)}, not {client.model}.")
        except (BackendUnavailableError, PromptRejectedError):
            pass
        if not is_alive():
            raise BackendError("The back end's server ended before it was ready.")
        if time.monotonic() > deadline:
            raise BackendError(f"The back end's server was not ready within {seconds:.0f} seconds.")
        time.sleep(0.1)
