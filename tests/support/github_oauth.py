"""GitHub's side of signing in, over a real socket: the three addresses of its OAuth web flow, as documented at
docs.github.com/apps/oauth-apps/building-oauth-apps/authorizing-oauth-apps, PKCE included."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

CLIENT_ID, SECRET = "Iv1.train", "a-secret-of-this-test"


class OAuthServer:
    """A server with one signed-in user, who authorizes the application if `is_authorizing`."""

    def __init__(self) -> None:
        self.user: dict[str, Any] = {"id": 583231, "login": "octocat", "name": "The Octocat", "email": None}
        self.is_authorizing = True
        self.codes: dict[str, dict[str, str]] = {}
        self.tokens: set[str] = set()
        self.authorization_requests: list[dict[str, str]] = []
        github = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                path, query = urlsplit(self.path).path, dict(parse_qsl(urlsplit(self.path).query))
                if path == "/login/oauth/authorize":
                    self.send(302, b"", Location=github.authorize(query))
                elif path == "/user" and self.headers["Authorization"].removeprefix("token ") in github.tokens:
                    self.send(200, json.dumps(github.user).encode(), **{"Content-Type": "application/json"})
                else:
                    self.send(401, b'{"message": "Bad credentials"}', **{"Content-Type": "application/json"})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                answer = github.exchange_code(dict(parse_qsl(body)))
                # As GitHub does: errors have status 200, too, and replies are forms unless the client accepts JSON.
                self.send(
                    200,
                    urlencode(answer).encode(),
                    **{"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"},
                )

            def send(self, status: int, body: bytes, **headers: str) -> None:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def authorize(self, query: dict[str, str]) -> str:
        """Return the address that the browser is redirected to."""
        self.authorization_requests.append(query)
        assert query["client_id"] == CLIENT_ID
        if not self.is_authorizing:
            answer = {"error": "access_denied", "error_description": "The user has denied your application access."}
        else:
            code = f"code-{len(self.authorization_requests)}"
            self.codes[code] = query
            answer = {"code": code}
        return f"{query['redirect_uri']}?{urlencode({**answer, 'state': query['state']})}"

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
