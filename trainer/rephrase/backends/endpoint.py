"""Client of any server with OpenAI's chat API: vLLM, llama.cpp's server, a paid service.

Context-length errors are recognized by their text: vLLM "maximum context length", llama.cpp
`exceed_context_size_error`, OpenAI `context_length_exceeded`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any
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
            return tuple(client.list_models())
        except BackendUnavailableError as error:
            raise BackendError(f"{error} Start it first, or name its model with --model.") from error


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
        return [str(model.get("id", "")) for model in reply.get("data", []) if isinstance(model, dict)]

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
        if not isinstance(reply, dict):
            raise BackendUnavailableError(f"The reply of the back end at {self._url} is not a JSON object.")
        return reply


def check_response(response: httpx.Response) -> None:
    """Raise the error that an unsuccessful response stands for."""
    status = response.status_code
    if status < 300:
        return
    message = response.text[:10_000]
    if TOO_LONG_PATTERN.search(message):
        raise PromptTooLongError
    if status >= 500 or status in BUSY_STATUSES:
        raise BackendUnavailableError(f"The back end is busy or broken (status {status}).")
    raise PromptRejectedError(
        f"The back end rejected the request (status {status}): {to_one_line(message)[:MAX_ERROR_CHARS]}"
    )


def parse_completion(reply: Mapping[str, Any]) -> Completion:
    """Parse a chat completion. Raise `BackendUnavailableError` if it is malformed."""
    try:
        choice = reply["choices"][0]
        text = choice["message"].get("content") or ""
        tokens = int((reply.get("usage") or {}).get("completion_tokens") or 0)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise BackendUnavailableError("The back end's reply is not a chat completion.") from error
    return Completion(str(text), "length" if choice.get("finish_reason") == "length" else "stop", max(0, tokens))


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
