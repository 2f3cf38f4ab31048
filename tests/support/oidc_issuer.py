"""GitHub's issuer of tokens, over a real socket: its two documents, and the address where a job asks for a token."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key


@cache
def key(number: str) -> RSAPrivateKey:
    return generate_private_key(public_exponent=65537, key_size=2048)


class Issuer:
    """Signs with the key `one`, and publishes the keys in `published`."""

    def __init__(self) -> None:
        self.url = ""
        self.published = ["one"]
        self.asked: list[str] = []
        """Paths of all requests."""
        self.status = 200
        self.about: dict[str, Any] = {}
        """Put over what the configuration says."""
        self.claims: dict[str, Any] = {}
        """Of the job that asks for a token."""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                issuer.asked.append(self.path)
                answer = issuer.answer(self.path, self.headers.get("Authorization", ""))
                content = json.dumps(answer).encode()
                self.send_response(issuer.status if answer is not None else 401)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self.handler = Handler

    def answer(self, path: str, authorization: str) -> Any:
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.url, "jwks_uri": f"{self.url}/.well-known/jwks", **self.about}
        if path == "/.well-known/jwks":
            return {"keys": [self.public(number) for number in self.published]}
        if path.startswith("/token?") and authorization == "Bearer of this job":
            return {"value": self.token(aud=parse_qs(urlsplit(path).query)["audience"][0])}
        return None

    def public(self, number: str) -> dict[str, Any]:
        shown = jwt.algorithms.RSAAlgorithm.to_jwk(key(number).public_key(), as_dict=True)
        return {**shown, "kid": number, "alg": "RS256", "use": "sig"}

    def token(self, *, kid: str = "one", signed_by: str = "", without: str = "", **claims: Any) -> str:
        """Return a token as GitHub makes one for a push to trains/daily."""
        now = int(time.time())
        said: dict[str, Any] = {
            "iss": self.url,
            "aud": "http://127.0.0.1:8000",
            "iat": now,
            "nbf": now,
            "exp": now + 300,
            "sub": "repo:trains/daily:ref:refs/heads/idea",
            "jti": "4711",
            "repository": "trains/daily",
            "repository_id": "1001",
            "repository_owner": "trains",
            "ref": "refs/heads/idea",
            "sha": "0" * 40,
            "event_name": "push",
            "actor": "ada",
            "actor_id": "77",
            "workflow_ref": "trains/daily/.github/workflows/train.yml@refs/heads/idea",
            **self.claims,
            **claims,
        }
        said.pop(without, None)
        return jwt.encode(said, key(signed_by or kid), algorithm="RS256", headers={"kid": kid})


@contextmanager
def running() -> Iterator[Issuer]:
    issuer = Issuer()
    with ThreadingHTTPServer(("127.0.0.1", 0), issuer.handler) as server:
        issuer.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield issuer
        server.shutdown()
