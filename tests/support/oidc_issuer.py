"""A local server of GitHub's OIDC issuer: its two documents and the URL where a CI job requests a token."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key

from tests.support.http_server import Handler, run_server


@cache
def generate_key(key_id: str) -> RSAPrivateKey:
    return generate_private_key(public_exponent=65537, key_size=2048)


class IssuerHandler(Handler):
    issuer: Issuer

    def do_GET(self) -> None:
        self.issuer.requests.append(self.path)
        document = self.issuer.build_response(self.path, self.headers.get("Authorization", ""))
        self.send(self.issuer.status if document is not None else 401, document)


class Issuer:
    """The state of the issuer: it signs with the key `one` and publishes the keys in `published_keys`."""

    def __init__(self) -> None:
        self.url = ""
        self.published_keys = ["one"]
        self.requests: list[str] = []
        """Paths of all requests."""
        self.status = 200
        self.configuration: dict[str, Any] = {}
        """Fields that replace those of the OpenID configuration."""
        self.claims: dict[str, Any] = {}
        """Claims of the CI job that requests a token."""

    def build_response(self, path: str, authorization: str) -> Any:
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.url, "jwks_uri": f"{self.url}/.well-known/jwks", **self.configuration}
        if path == "/.well-known/jwks":
            return {"keys": [self.build_jwk(key_id) for key_id in self.published_keys]}
        if path.startswith("/token?") and authorization == "Bearer of this job":
            return {"value": self.create_token(aud=parse_qs(urlsplit(path).query)["audience"][0])}
        return None

    def build_jwk(self, key_id: str) -> dict[str, Any]:
        jwk = jwt.algorithms.RSAAlgorithm.to_jwk(generate_key(key_id).public_key(), as_dict=True)
        return {**jwk, "kid": key_id, "alg": "RS256", "use": "sig"}

    def create_token(self, *, kid: str = "one", signed_by: str = "", without: str = "", **claims: Any) -> str:
        """Return a token like those of GitHub for a push to trains/daily."""
        now = int(time.time())
        token_claims: dict[str, Any] = {
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
        token_claims.pop(without, None)
        return jwt.encode(token_claims, generate_key(signed_by or kid), algorithm="RS256", headers={"kid": kid})


@contextmanager
def run_oidc_server() -> Iterator[Issuer]:
    issuer = Issuer()
    with run_server(IssuerHandler, issuer=issuer) as issuer.url:
        yield issuer
