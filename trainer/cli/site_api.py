"""Requests of commands to a site's JSON API, with a token or without."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.errors import UserError, to_one_line

if TYPE_CHECKING:
    import httpx

TOKEN_VARIABLE = "DAILYTRAIN_API_TOKEN"  # noqa: S105  (the variable's name)
REQUEST_SECONDS = 30.0
POLL_SECONDS = 1.0
QUIET_POLLS, MAX_POLLS = 10, 900


@dataclass(frozen=True)
class SiteApi:
    """The API of a site. Raises `UserError` with one line for a refusal or no answer."""

    server: str
    token: str = ""

    def get(self, path: str) -> Any:
        return self.request("GET", path)

    def get_text(self, path: str) -> str:
        """Return a page of the site, such as llms.txt."""
        return self.send("GET", path).text

    def request_run(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return the run that the site has created after it has fetched the commit."""
        self.check_token()
        reply, polls = self.request("POST", "runs", content), 0
        while "run" not in reply:
            path = f"run-requests/{reply['request']}"
            if polls == MAX_POLLS:
                address = f"{self.server.rstrip('/')}/api/v1/{path}"
                raise UserError(f"the site has not fetched the commit yet; it goes on by itself, the answer: {address}")
            if polls == QUIET_POLLS:
                sys.stderr.write("waiting for the site to fetch the commit\n")
            time.sleep(POLL_SECONDS)
            reply, polls = self.request("GET", path), polls + 1
        return reply

    def check_token(self) -> None:
        if not self.token:
            raise UserError(f"--server needs a token of the site: --token or ${TOKEN_VARIABLE}")

    def request(self, method: str, path: str, content: dict[str, Any] | None = None) -> Any:
        found = parse_json(self.send(method, f"api/v1/{path}", content))
        if not isinstance(found, dict | list):
            raise UserError(f"{self.server} did not answer with JSON of the API: is --server the address of a site?")
        return found

    def send(self, method: str, path: str, content: dict[str, Any] | None = None) -> httpx.Response:
        import httpx  # imported here, so that `--help` is fast

        address = f"{self.server.rstrip('/')}/{path}"
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            reply = httpx.request(method, address, json=content, headers=headers, timeout=REQUEST_SECONDS)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UserError(f"{address} did not answer: {error}") from error
        if reply.status_code not in (200, 202):
            found = parse_json(reply)
            detail = found.get("detail", found) if isinstance(found, dict) else to_one_line(reply.text)[:200]
            raise UserError(f"the site refuses it ({reply.status_code}): {detail}")
        return reply


def parse_json(reply: httpx.Response) -> Any:
    """Return the content of an answer; None if it is not JSON."""
    try:
        return reply.json()
    except ValueError:
        return None


def add_site_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--server", metavar="URL", help="request a run at this site instead, with a token")
    add("--token", default=os.environ.get(TOKEN_VARIABLE, ""), help=f"of the site (or ${TOKEN_VARIABLE})")
    add("--track", default="", metavar="SLUG", help="the site's track (its default track)")
    add("--repository", default="", metavar="URL", help="where the commit can be fetched (the remote origin)")
