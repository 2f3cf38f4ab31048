"""Any server that speaks OpenAI's chat protocol: vLLM, llama.cpp's server, a paid one. It is there already.

Errors are told apart by what the servers say: vLLM "maximum context length", llama.cpp `exceed_context_size_error`,
OpenAI `context_length_exceeded`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from trainer.rephrase.backends.protocol import Answer, BackEndError, Declined, Place, PromptTooLong, Setup, Unavailable

PARALLEL = 8
SECONDS = 600.0
"""That one answer may take: two thousand tokens on a processor."""
SOON = 15.0
"""For what needs no model."""
TOO_LONG = re.compile(
    r"maximum context length|context_length_exceeded|exceed_context_size|context (?:size|window)|maximum model length"
    r"|max_model_len|longer than the maximum",
    re.IGNORECASE,
)
BUSY = {408, 409, 425, 429}
TOLD = 200
"""Letters of a server's complaint that are passed on."""


def why_not(setup: Setup) -> str:
    if not setup.url.startswith(("http://", "https://")):
        return f"--endpoint {setup.url!r} is not an address such as http://127.0.0.1:8000/v1."
    if setup.served_as and not setup.model:
        return "--served-as needs --model: the name that campaigns have for what the endpoint serves."
    return ""


def models(setup: Setup) -> tuple[str, ...] | None:
    if setup.model:
        return (setup.model,)
    with opened(setup, "", "", None) as writer:
        try:
            return tuple(writer.served())
        except Unavailable as error:
            raise BackEndError(f"{error} Start it first, or name its model with --model.") from error


@contextmanager
def opened(setup: Setup, model: str, revision: str, place: Place | None) -> Iterator[Endpoint]:
    """`revision` cannot be seen from here: the volunteer vouches for it."""
    made = Endpoint(setup.url, setup.served_as or model, setup.key)
    try:
        yield made
    finally:
        made.close()


class Endpoint:
    def __init__(self, url: str, model: str, key: str = "", title: str = "endpoint", seconds: float = SECONDS) -> None:
        address = urlsplit(url)
        local = address.hostname in ("localhost", "127.0.0.1", "::1")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        # As in the agent's client: certificates only where they are needed, no proxy to ourselves.
        self._http = httpx.Client(
            verify=address.scheme == "https", trust_env=not local, headers=headers, timeout=seconds, limits=limits
        )
        self._url = url.rstrip("/")
        self.model = model
        self.title = title
        self.revive: Callable[[], None] = lambda: None
        """What `look_after` does where the server is ours."""

    def close(self) -> None:
        self._http.close()

    def served(self) -> list[str]:
        """Return the names of its models. Raise `Unavailable`, or `Declined`."""
        found = self._ask("GET", "/models", None, SOON)
        return [str(model.get("id", "")) for model in found.get("data", []) if isinstance(model, dict)]

    def write(self, prompt: str, sampling: Mapping[str, float], seed: int) -> Answer:
        question = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "stream": False,
            "seed": seed,
            **sampling,
        }
        return answer(self._ask("POST", "/chat/completions", question, None))

    def look_after(self) -> None:
        self.revive()

    def _ask(self, method: str, path: str, question: dict[str, Any] | None, seconds: float | None) -> dict[str, Any]:
        patience = self._http.timeout if seconds is None else httpx.Timeout(seconds)
        try:
            reply = self._http.request(method, self._url + path, json=question, timeout=patience)
            check(reply)
            found = reply.json()
        except httpx.HTTPError as error:
            raise Unavailable(f"The back end at {self._url} cannot be reached ({type(error).__name__}).") from error
        except ValueError as error:
            raise Unavailable(f"The back end at {self._url} answers with something that is no JSON.") from error
        if not isinstance(found, dict):
            raise Unavailable(f"The back end at {self._url} answers with something else than an object.")
        return found


def check(reply: httpx.Response) -> None:
    """Raise what an answer means that is no success."""
    status = reply.status_code
    if status < 300:
        return
    said = reply.text[:10_000]
    if TOO_LONG.search(said):
        raise PromptTooLong
    if status >= 500 or status in BUSY:
        raise Unavailable(f"The back end is busy or in trouble ({status}).")
    raise Declined(f"The back end declines ({status}): {' '.join(said.split())[:TOLD]}")


def answer(found: Mapping[str, Any]) -> Answer:
    """Read a chat completion. Raise `Unavailable` for what is none."""
    try:
        choice = found["choices"][0]
        text = choice["message"].get("content") or ""
        tokens = int((found.get("usage") or {}).get("completion_tokens") or 0)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise Unavailable("The back end's answer is no chat completion.") from error
    return Answer(str(text), "length" if choice.get("finish_reason") == "length" else "stop", max(0, tokens))


def wait_until_ready(
    server: Endpoint, model: str, alive: Callable[[], bool], unwanted: Callable[[], bool], seconds: float
) -> None:
    """Return when the server serves that model; raise `BackEndError` when it has ended, or takes too long."""
    until = time.monotonic() + seconds
    while not unwanted():
        try:
            if model in server.served():
                return
            raise BackEndError(f"The back end serves {', '.join(server.served())}, not {model}.")
        except (Unavailable, Declined):
            pass
        if not alive():
            raise BackEndError("The back end's server ended before it was ready.")
        if time.monotonic() > until:
            raise BackEndError(f"The back end's server was not ready within {seconds:.0f} seconds.")
        time.sleep(0.1)
