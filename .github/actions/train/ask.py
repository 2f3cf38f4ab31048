"""Ask a Daily Train site for a run of this job's commit, with GitHub's own token, and say what becomes of it.

Standard library only. Settings come from the environment (action.yml). Exit codes: 0 it was asked for (and, where it
was waited for, is not known to have failed), 1 the run failed, 2 the site refused or cannot be reached.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

TIMEOUT = 30.0
ATTEMPTS = 5
PAUSE_SECONDS = float(os.environ.get("TRAIN_PAUSE_SECONDS", "5"))
"""Between two attempts; the site is asked how a run is doing every six of these."""
OVER = ("finished", "failed", "cancelled")


class Refused(Exception):
    """The site's answer is no; the message is its sentence."""


def main() -> int:
    site = os.environ["TRAIN_SITE"].rstrip("/")
    try:
        asked = ask(site, bearer(site))
        output(run=asked["run"], page=asked["page"], state=asked["state"])
        print(f"Run {asked['run']}: {asked['page']}")
        state = wait(site, asked["run"], asked["state"], float(os.environ.get("TRAIN_WAIT_MINUTES") or 0))
        output(state=state)
        summary(told(site, asked))
    except Refused as error:
        print(f"::error::{' '.join(str(error).split())}")
        summary(f"**Not asked for:** {error}")
        return 2
    return 1 if state == "failed" else 0


def ask(site: str, token: str) -> dict[str, Any]:
    """Ask; the same commit again gives the same run."""
    architecture, sha = os.environ["TRAIN_ARCHITECTURE"].split(), os.environ["TRAIN_HEAD"]
    if len(architecture) != 1:
        raise Refused("One run is of one architecture: set `architecture` to its name.")
    wanted = {
        "repository": f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_REPOSITORY']}.git",
        "sha": sha,
        "architecture": architecture[0],
        "title": (os.environ.get("TRAIN_TITLE") or f"{architecture[0]} at {sha[:8]}")[:120],
        "track": os.environ.get("TRAIN_TRACK", ""),
        "hypothesis": os.environ.get("TRAIN_HYPOTHESIS", "")[:4000],
        "url": os.environ.get("TRAIN_PAGE", ""),
    }
    answer = http(f"{site}/api/v1/runs", wanted, token)
    assert isinstance(answer, dict)
    return answer


def bearer(site: str) -> str:
    """Return the token to ask with: one that was given, else GitHub's own for this job, meant for the site."""
    if given := os.environ.get("TRAIN_TOKEN"):
        return given
    address, secret = (os.environ.get(f"ACTIONS_ID_TOKEN_REQUEST_{name}") for name in ("URL", "TOKEN"))
    if not address or not secret:
        raise Refused(
            "GitHub gives this job no token. It needs `permissions: id-token: write`; pull requests from forks have "
            "none: open the pull request at the site's own repository, or run the workflow in your fork."
        )
    answer = http(f"{address}&audience={urllib.parse.quote(site, safe='')}", token=secret)
    assert isinstance(answer, dict)
    return str(answer["value"])


def wait(site: str, run: int, state: str, minutes: float) -> str:
    """Watch the run until it is over, or for so long; return its state."""
    until = time.monotonic() + 60 * minutes
    while state not in OVER and time.monotonic() < until:
        time.sleep(6 * PAUSE_SECONDS)
        live = http(f"{site}/api/v1/runs/{run}/live")
        assert isinstance(live, dict)
        if live["state"] != state:
            print(f"{live['state']}: {live['reason']}".strip(": "))
        state = str(live["state"])
    return state


def told(site: str, asked: dict[str, Any]) -> str:
    """Return what the site says of the entry, as in the comment that it writes under pull requests."""
    try:
        said = http(f"{site}/api/v1/entries/{asked['entry']}/summary")
    except Refused:
        said = asked["reason"]
    return f"### [Run {asked['run']}]({asked['page']})\n\n{said}"


def http(address: str, body: dict[str, Any] | None = None, token: str = "") -> Any:
    """Return the answer, from JSON where it is that. Tries again what may pass; raises Refused."""
    headers = {"User-Agent": "dailytrain-action", "Accept": "application/json, text/markdown"}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    data = None if body is None else json.dumps(body).encode()
    headers |= {"Content-Type": "application/json"} if data else {}
    for attempt in range(1, ATTEMPTS + 1):
        try:
            request = urllib.request.Request(address, data, headers)
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                text = answer.read().decode()
                return json.loads(text) if "json" in answer.headers.get("Content-Type", "") else text
        except urllib.error.HTTPError as error:
            sentence = detail(error)
            if (error.code < 500 and error.code != 429) or attempt == ATTEMPTS:
                raise Refused(sentence) from error
        except OSError as error:
            sentence = f"{urllib.parse.urlsplit(address).netloc} cannot be reached: {error}"
            if attempt == ATTEMPTS:
                raise Refused(sentence) from error
        print(sentence)
        time.sleep(PAUSE_SECONDS * attempt)
    raise AssertionError("the last attempt raises")


def detail(error: urllib.error.HTTPError) -> str:
    try:
        said = json.loads(error.read()).get("detail")
    except (ValueError, AttributeError):
        said = None
    return str(said or f"The site answered {error.code}.")


def output(**values: object) -> None:
    if path := os.environ.get("GITHUB_OUTPUT"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(f"{name}={' '.join(str(value).split())}\n" for name, value in values.items())


def summary(text: str) -> None:
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
