"""From an opened pull request to its verdict and a green check, over HTTP.

The site and its worker are killed in the middle of each step. Nothing is lost or done twice.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.support import github_payloads as payloads
from tests.support import github_server
from tests.support.github_server import GitHub, compute_user_id
from tests.support.live_site import LiveSite, commit_main, database, git
from tests.support.waits import WAIT_SECONDS
from trainer import protocol

pytestmark = [pytest.mark.processes, pytest.mark.slow]

AT, NUMBER = "trains/daily", 7
BODY = "---\r\ntrack: small\r\nhypothesis: It helps.\r\nexpected_effect: 3 %\r\ncontact: '@ada'\r\n---\r\n"
FILES = {
    "trainer/models/__init__.py": 'ARCHITECTURES = {\n    "gpt": "trainer.models.gpt",\n}\n',
    "trainer/models/base.py": "",
    "trainer/models/gpt.py": "class Model:\n    pass\n",
}
VERDICT = {
    "bits_per_byte": 2.5, "nats_per_token": 5.5, "stderr": 0.01, "tokens": 1000, "bytes": 3200, "documents": 12,
    "parameters": 123456, "train_flops": 2e10, "train_seconds": 10.0,
}  # fmt: skip


class Killer:
    """Kills the worker during a request to GitHub: before GitHub executes it, or before it responds."""

    def __init__(self, github: GitHub, site: LiveSite) -> None:
        self.github, self.site = github, site
        self.next: tuple[str, bool] | None = None
        """Method of the request during which to kill, and whether GitHub executes the request first."""
        self.killed = 0
        self.take_failure, github.take_failure = github.take_failure, self.watch  # type: ignore[method-assign]

    def watch(self, method: str, path: str, *, after: bool) -> Any:
        if self.next == (method, after) and path.startswith(f"/repos/{AT}/") and "worker" in self.site.processes:
            self.next = None
            self.site.kill("worker")
            self.killed += 1
        return self.take_failure(method, path, after=after)


@pytest.fixture
def github() -> Iterator[GitHub]:
    with github_server.run_github_server() as server:
        server.get_or_create_repository(AT).roles["mara"] = "write"
        server.hook["secret"] = "between us"
        yield server


@pytest.fixture
def site(tmp_path: Path, github: GitHub) -> Iterator[LiveSite]:
    with database(tmp_path) as address:
        live = LiveSite(tmp_path, address)
        live.environment |= {
            "GITHUB_API_URL": github.url,
            "GITHUB_REPOSITORY": AT,
            "GITHUB_APP_ID": github_server.APP,
            "GITHUB_PRIVATE_KEY": github_server.get_private_key(),
            "GITHUB_WEBHOOK_SECRET": "between us",
            "SMOKE_UNAPPROVED": "nobody",
        }
        github.hook["url"] = f"{live.url}/github/webhook"
        try:
            live.start_redis()
            yield live
        finally:
            live.stop_all()


def create_repository(folder: Path) -> str:
    """Create a repository with main and a branch `idea`; return the commit of the branch."""
    commit_main(folder, FILES)
    git(folder, "checkout", "--quiet", "-b", "idea")
    (folder / "trainer/models/gpt.py").write_text("class Model:\n    better = True\n")
    git(folder, "commit", "--quiet", "--all", "-m", "An idea")
    sha = git(folder, "rev-parse", "HEAD")
    git(folder, "checkout", "--quiet", "main")
    return sha


class ScriptedNode:
    """Sends the requests of a node's agent, without training."""

    def __init__(self, site: LiveSite, token: str) -> None:
        self.site, self.token = site, token
        self.hardware = protocol.Hardware(
            hostname="cellar", platform="Linux", python="3.11", cpus=2, memory_bytes=2**35, disk_free_bytes=2**40,
            sandboxes=("bubblewrap",),
        )  # fmt: skip

    def call(self, path: str, message: protocol.Message, token: str = "") -> dict[str, Any]:
        answer = httpx.post(
            f"{self.site.url}/api/node/v1{path}",
            content=protocol.encode_message(message),
            headers={"Authorization": f"Bearer {token or self.token}", "Content-Type": "application/json"},
            timeout=WAIT_SECONDS,
        )
        assert answer.is_success, answer.text
        return answer.json() if answer.content else {}  # type: ignore[no-any-return]

    def take(self, kind: str) -> protocol.Lease:
        def poll() -> protocol.Lease | None:
            reply = self.call("/poll", protocol.Poll(hardware=self.hardware))
            return protocol.PollReply.model_validate(reply).lease

        lease: protocol.Lease = self.site.wait(poll, f"a {kind} job")
        if json.loads(lease.spec)["order"]["kind"] == "self_test":
            measured = {"loss": 6.0, "bits_per_byte": 2.5, "train_seconds": 1.0, "score_seconds": 1.0}
            self.finish(lease, {"sandbox": "bubblewrap", "device": "cpu", "gpus": 0, **measured})
            return self.take(kind)
        assert json.loads(lease.spec)["order"]["kind"] == kind
        return lease

    def upload(self, lease: protocol.Lease, path: str, content: bytes) -> protocol.FileRef:
        digest = hashlib.sha256(content).hexdigest()
        answer = httpx.put(
            f"{self.site.url}/api/node/v1/leases/{lease.lease}/blobs/{digest}",
            content=content,
            headers={"Authorization": f"Bearer {lease.token}"},
            timeout=WAIT_SECONDS,
        )
        assert answer.is_success, answer.text
        return protocol.FileRef(path=path, sha256=digest, size=len(content))

    def finish(self, lease: protocol.Lease, result: dict[str, Any], *files: protocol.FileRef) -> None:
        message = protocol.FinishLease(outcome="done", result=result, files=files)
        self.call(f"/leases/{lease.lease}/finish", message, lease.token)


EXPIRE_CLAIMS = (
    "UPDATE leaderboard_outboxmessage SET claimed_until = '2000-01-01 00:00:00+00:00' WHERE claimed_until IS NOT NULL",
)


def expire_claims(site: LiveSite) -> None:
    """Expire the claims of dead processes, which last ten minutes."""
    address = site.environment["DATABASE_URL"]
    if address.startswith("sqlite"):
        with sqlite3.connect(address.removeprefix("sqlite:///"), timeout=WAIT_SECONDS) as rows:
            for change in EXPIRE_CLAIMS:
                rows.execute(change)
        rows.close()
        return
    with psycopg.connect(address, autocommit=True) as connection:
        for change in EXPIRE_CLAIMS:
            connection.execute(change)


def start_worker(site: LiveSite) -> None:
    """Start the worker with one thread, since `Killer` kills during one request at a time."""
    site.start_worker(threads=1)


def restart_worker(site: LiveSite) -> None:
    expire_claims(site)
    start_worker(site)


def list_comments(github: GitHub) -> list[str]:
    return [
        row["body"]
        for row in github.get_or_create_repository(AT).list_comments_on(NUMBER)
        if row["user"]["login"].endswith("[bot]")
    ]


def list_checks(github: GitHub) -> list[tuple[str, str | None]]:
    return [(row["status"], row.get("conclusion")) for row in github.get_or_create_repository(AT).checks.values()]


@pytest.mark.timeout(3600)
def test_pull_request_with_site_killed_at_each_step_reaches_its_verdict(site: LiveSite, github: GitHub) -> None:
    killer = Killer(github, site)
    sha = create_repository(site.repository)
    [token] = site.call("faults.create_site", nodes=1)
    node = ScriptedNode(site, token)

    # The pull request is opened while the site is down. A maintainer redelivers the webhook later.
    head = payloads.repository("ada/daily", number=2, fork=True, clone_url=f"file://{site.repository}")
    shown = {"body": BODY, "head": head, "author": payloads.user("ada", compute_user_id("ada"))}
    github.open_pull_request(AT, NUMBER, sha, **shown)
    site.start_web()
    assert github.redeliver(github.deliveries[0]["id"]) == 202
    site.kill("web")  # right after it has acknowledged the delivery

    # The worker is killed after GitHub has created the comment and before the site records it, then during the check.
    killer.next = ("POST", True)
    site.start_web()
    start_worker(site)
    site.wait(lambda: killer.killed == 1, "the worker to be killed during its first comment")
    killer.next = ("POST", False)
    restart_worker(site)
    site.wait(lambda: killer.killed == 2, "the worker to be killed during the check")
    restart_worker(site)
    site.wait(lambda: list_checks(github) == [("queued", None)], "the check")
    assert len(list_comments(github)) == 1
    assert f"`/approve {sha[:8]}`" in list_comments(github)[0]

    # A comment approves. The worker is killed before its reaction to it, and the same delivery arrives twice.
    killer.next = ("POST", False)
    github.post_comment(AT, NUMBER, "mara", "/approve")
    assert github.redeliver(github.deliveries[0]["id"]) == 200
    site.wait(lambda: killer.killed == 3, "the worker to be killed during its reaction")
    site.kill("web")
    site.start_web()
    restart_worker(site)

    # The smoke test, then the training, during which the web process is killed.
    smoke = node.take("smoke")
    node.finish(smoke, {"passed": True, "sentence": "It passed.", "checks": [], "seconds": 40})
    training = node.take("train")
    site.kill("web")
    site.start_web()
    weights = node.upload(training, "checkpoints/step-00000020/model.safetensors", b"weights")
    checkpoint = protocol.Checkpoint(step=20, files=(weights,))
    node.call(
        f"/leases/{training.lease}/checkpoints", protocol.CheckpointUploaded(checkpoint=checkpoint), training.token
    )
    about = node.upload(training, "run.json", b'{"format": 1, "arch": "gpt"}')
    node.finish(training, {"step": 20}, about)

    # The worker is killed after GitHub has updated the comment with the verdict.
    scoring = node.take("score")
    site.wait(lambda: list_checks(github) == [("in_progress", None)], "the check to be in progress")
    killer.next = ("PATCH", True)
    node.finish(scoring, VERDICT)
    site.wait(lambda: killer.killed == 4, "the worker to be killed during the verdict")
    restart_worker(site)
    site.wait(lambda: list_checks(github) == [("completed", "success")], "a green check")
    site.wait(lambda: "2.5000 bits per byte" in list_comments(github)[0], "the verdict in the comment")
    time.sleep(2)

    state = site.call("pull_requests.read_entries")
    assert state["entries"] == [[sha, "approved"]]
    assert state["runs"] == ["finished"]
    assert state["jobs"] == [["smoke", "done"], ["train", "done"], ["score", "done"]]
    assert state["left"] == []
    assert len(list_comments(github)) == 1
    assert [content for _, content in github.get_or_create_repository(AT).reactions] == ["+1"]
