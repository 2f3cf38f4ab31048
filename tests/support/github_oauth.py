"""GitHub's side of signing in, over a real socket: the three addresses of its OAuth web flow, as documented at
docs.github.com/apps/oauth-apps/building-oauth-apps/authorizing-oauth-apps, PKCE included."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from allauth.socialaccount.providers.github.views import GitHubOAuth2Adapter

from tests.support.http_server import Handler, run_server

CLIENT_ID, SECRET = "Iv1.train", "a-secret-of-this-test"


class OAuthServer:
    """A server with one signed-in user, who authorizes the application."""

    def __init__(self) -> None:
        self.address = ""
        self.user: dict[str, Any] = {"id": 583231, "login": "octocat", "name": "The Octocat", "email": None}
        self.codes: dict[str, dict[str, str]] = {}
        self.tokens: set[str] = set()
        self.authorization_requests: list[dict[str, str]] = []

    def authorize(self, query: dict[str, str]) -> str:
        """Return the address that the browser is redirected to."""
        self.authorization_requests.append(query)
        assert query["client_id"] == CLIENT_ID
        code = f"code-{len(self.authorization_requests)}"
        self.codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def exchange_code(self, form: dict[str, str]) -> dict[str, str]:
        """Return a token for a code, once, to the client that requested the code."""
        if (form["client_id"], form["client_secret"]) != (CLIENT_ID, SECRET):
            return {"error": "incorrect_client_credentials"}
        request = self.codes.pop(form["code"], None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if request is None or request["redirect_uri"] != form["redirect_uri"] or request["code_challenge"] != challenge:
            return {"error": "bad_verification_code"}
        token = f"gho_{len(self.tokens)}"
        self.tokens.add(token)
        return {"access_token": token, "scope": request.get("scope", ""), "token_type": "bearer"}


class OAuthHandler(Handler):
    github: OAuthServer

    def do_GET(self) -> None:
        path, query = urlsplit(self.path).path, dict(parse_qsl(urlsplit(self.path).query))
        if path == "/login/oauth/authorize":
            self.send(302, b"", {"Location": self.github.authorize(query)})
        elif path == "/user" and self.headers["Authorization"].removeprefix("token ") in self.github.tokens:
            self.send(200, self.github.user)
        else:
            self.send(401, {"message": "Bad credentials"})

    def do_POST(self) -> None:
        answer = self.github.exchange_code(dict(parse_qsl(self.read_body().decode())))
        # As GitHub does: errors have status 200, too, and replies are forms unless the client accepts JSON.
        self.send(200, urlencode(answer).encode(), {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"})


@contextmanager
def run_oauth_server(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[OAuthServer]:
    """Run the server and let this process's site sign in with it."""
    github = OAuthServer()
    with run_server(OAuthHandler, github=github) as github.address:
        for name, path in (("authorize", "/login/oauth/authorize"), ("access_token", "/login/oauth/access_token")):
            monkeypatch.setattr(GitHubOAuth2Adapter, f"{name}_url", github.address + path)
        monkeypatch.setattr(GitHubOAuth2Adapter, "profile_url", f"{github.address}/user")
        app = {"client_id": CLIENT_ID, "secret": SECRET}
        settings.SOCIALACCOUNT_PROVIDERS = {"github": {"APPS": [app], "OAUTH_PKCE_ENABLED": True}}
        yield github
