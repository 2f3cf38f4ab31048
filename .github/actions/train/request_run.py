"""Request a run of this job's commit from a Daily Train site, with GitHub's own token, and report its state.

Standard library only. Settings come from the environment (action.yml). Exit codes: 0 the run was requested (and, after
waiting, has not failed), 1 the run failed, 2 the site refused the request or cannot be reached.
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
"""Between two attempts. A run's state is read every six pauses."""
MAX_POLLS, POLLS_OF_A_LINE = 180, 12  # 15 minutes and one, with the default pause
FINAL_STATES = ("finished", "failed", "cancelled")


class RequestError(Exception):
    """The site refused a request; the message is its explanation."""


def main() -> int:
    site = os.environ["TRAIN_SITE"].rstrip("/")
    try:
        run = request_run(site, get_token(site))
        write_outputs(run=run["run"], page=run["page"], state=run["state"])
        print(f"Run {run['run']}: {run['page']}")
        state = wait_for_run(site, run["run"], run["state"], float(os.environ.get("TRAIN_WAIT_MINUTES") or 0))
        write_outputs(state=state)
        write_summary(fetch_summary(site, run))
    except RequestError as error:
        print(f"::error::{' '.join(str(error).split())}")
        write_summary(f"**No run was requested:** {error}")
        return 2
    return 1 if state == "failed" else 0


def request_run(site: str, token: str) -> dict[str, Any]:
    """Request a run of the commit. Repeated requests for a commit return the same run. Raises `RequestError`."""
    architecture, sha = os.environ["TRAIN_ARCHITECTURE"].split(), os.environ["TRAIN_HEAD"]
    if len(architecture) != 1:
        raise RequestError("A run trains one architecture: set `architecture` to its name.")
    body = {
        "repository": f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_REPOSITORY']}.git",
        "sha": sha,
        "architecture": architecture[0],
        "title": (os.environ.get("TRAIN_TITLE") or f"{architecture[0]} at {sha[:8]}")[:120],
        "track": os.environ.get("TRAIN_TRACK", ""),
        "hypothesis": os.environ.get("TRAIN_HYPOTHESIS", "")[:4000],
        "url": os.environ.get("TRAIN_PAGE", ""),
    }
    run, polls = send_request(f"{site}/api/v1/runs", body, token), 0
    while "run" not in run:  # the site fetches the commit
        address = f"{site}/api/v1/run-requests/{run['request']}"
        if polls == MAX_POLLS:
            raise RequestError(f"The site has not fetched the commit yet. It goes on by itself; the answer: {address}")
        if polls and polls % POLLS_OF_A_LINE == 0:
            print("Waiting for the site to fetch the commit", flush=True)
        time.sleep(PAUSE_SECONDS)
        run, polls = send_request(address, token=token), polls + 1
    return dict(run)


def get_token(site: str) -> str:
    """Return the token of the setting, else GitHub's token of this job for the site. Raises `RequestError`."""
    if token := os.environ.get("TRAIN_TOKEN"):
        return token
    address, secret = (os.environ.get(f"ACTIONS_ID_TOKEN_REQUEST_{name}") for name in ("URL", "TOKEN"))
    if not address or not secret:
        raise RequestError(
            "GitHub gives this job no token. It needs `permissions: id-token: write`; pull requests from forks have "
            "none: open the pull request at the site's own repository, or run the workflow in your fork."
        )
    reply = send_request(f"{address}&audience={urllib.parse.quote(site, safe='')}", token=secret)
    assert isinstance(reply, dict)
    return str(reply["value"])


def wait_for_run(site: str, run: int, state: str, minutes: float) -> str:
    """Poll the run until its state is final or the time is over; return its state."""
    deadline = time.monotonic() + 60 * minutes
    while state not in FINAL_STATES and time.monotonic() < deadline:
        time.sleep(6 * PAUSE_SECONDS)
        live = send_request(f"{site}/api/v1/runs/{run}/live")
        assert isinstance(live, dict)
        if live["state"] != state:
            print(f"{live['state']}: {live['reason']}".strip(": "))
        state = str(live["state"])
    return state


def fetch_summary(site: str, run: dict[str, Any]) -> str:
    """Return the entry's summary in Markdown, as in the site's comment on pull requests."""
    try:
        summary = send_request(f"{site}/api/v1/entries/{run['entry']}/summary")
    except RequestError:
        summary = run["reason"]
    return f"### [Run {run['run']}]({run['page']})\n\n{summary}"


def send_request(address: str, body: dict[str, Any] | None = None, token: str = "") -> Any:
    """Return the reply, parsed if it is JSON. Retries after network errors, 429 and 5xx. Raises `RequestError`."""
    headers = {"User-Agent": "dailytrain-action", "Accept": "application/json, text/markdown"}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    data = None if body is None else json.dumps(body).encode()
    headers |= {"Content-Type": "application/json"} if data else {}
    for attempt in range(1, ATTEMPTS + 1):
        try:
            request = urllib.request.Request(address, data, headers)
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                text = response.read().decode()
                return json.loads(text) if "json" in response.headers.get("Content-Type", "") else text
        except urllib.error.HTTPError as error:
            message = read_error(error)
            if (error.code < 500 and error.code != 429) or attempt == ATTEMPTS:
                raise RequestError(message) from error
        except OSError as error:
            message = f"{urllib.parse.urlsplit(address).netloc} cannot be reached: {error}"
            if attempt == ATTEMPTS:
                raise RequestError(message) from error
        print(message)
        time.sleep(PAUSE_SECONDS * attempt)
    raise AssertionError("the last attempt raises")


def read_error(error: urllib.error.HTTPError) -> str:
    """Return the `detail` of an error's JSON, or its status code in words."""
    try:
        detail = json.loads(error.read()).get("detail")
    except (ValueError, AttributeError):
        detail = None
    return str(detail or f"The site answered {error.code}.")


def write_outputs(**values: object) -> None:
    if path := os.environ.get("GITHUB_OUTPUT"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(f"{name}={' '.join(str(value).split())}\n" for name, value in values.items())


def write_summary(text: str) -> None:
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
