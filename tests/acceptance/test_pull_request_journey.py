"""From an opened pull request to its verdict and a green check, over HTTP: the site and its worker are killed at each
step, in the middle of what they were doing, and nothing is lost or done twice."""

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

pytestmark = pytest.mark.slow

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
    """Kills the worker while GitHub has one of its requests: before it does what is asked, or before it answers."""

    def __init__(self, github: GitHub, site: LiveSite) -> None:
        self.github, self.site = github, site
        self.next: tuple[str, bool] | None = None
        """Method of the request to kill over, and whether GitHub does it first."""
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
        made = LiveSite(tmp_path, address)
        made.environment |= {
            "GITHUB_API_URL": github.url,
            "GITHUB_REPOSITORY": AT,
            "GITHUB_APP_ID": github_server.APP,
            "GITHUB_PRIVATE_KEY": github_server.get_private_key(),
            "GITHUB_WEBHOOK_SECRET": "between us",
            "SMOKE_UNAPPROVED": "nobody",
            "QUEUE_READ_SECONDS": "0",
        }
        github.hook["url"] = f"{made.url}/github/webhook"
        try:
            made.start_redis()
            yield made
        finally:
            made.stop_all()


def repository(folder: Path) -> str:
    """Make a main and a branch with an idea; return the idea's commit."""
    commit_main(folder, FILES)
    git(folder, "checkout", "--quiet", "-b", "idea")
    (folder / "trainer/models/gpt.py").write_text("class Model:\n    better = True\n")
    git(folder, "commit", "--quiet", "--all", "-m", "An idea")
    sha = git(folder, "rev-parse", "HEAD")
    git(folder, "checkout", "--quiet", "main")
    return sha


class ScriptedNode:
    """Says what a node's agent says, and trains nothing."""

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
        def ask() -> protocol.Lease | None:
            said = self.call("/poll", protocol.Poll(hardware=self.hardware, wait_seconds=0))
            return protocol.PollReply.model_validate(said).lease

        lease: protocol.Lease = self.site.wait(ask, f"a {kind} job")
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
        said = protocol.FinishLease(outcome="done", result=result, files=files)
        self.call(f"/leases/{lease.lease}/finish", said, lease.token)


FORGET = (
    "UPDATE leaderboard_outboxmessage SET claimed_until = '2000-01-01 00:00:00+00:00' WHERE claimed_until IS NOT NULL",
    "UPDATE leaderboard_delivery SET claimed_until = '2000-01-01 00:00:00+00:00' WHERE claimed_until IS NOT NULL",
)


def forget_claims(site: LiveSite) -> None:
    """As if the ten minutes were over for which a process that died keeps others away."""
    address = site.environment["DATABASE_URL"]
    if address.startswith("sqlite"):
        with sqlite3.connect(address.removeprefix("sqlite:///"), timeout=WAIT_SECONDS) as rows:
            for change in FORGET:
                rows.execute(change)
        rows.close()
        return
    with psycopg.connect(address, autocommit=True) as connection:
        for change in FORGET:
            connection.execute(change)


def begin(site: LiveSite) -> None:
    """One thread: of two that ask GitHub at the same moment, only one could be killed over its request."""
    site.start_worker(threads=1)


def revive(site: LiveSite) -> None:
    forget_claims(site)
    begin(site)


def comments(github: GitHub) -> list[str]:
    return [
        row["body"]
        for row in github.get_or_create_repository(AT).list_comments_on(NUMBER)
        if row["user"]["login"].endswith("[bot]")
    ]


def checks(github: GitHub) -> list[tuple[str, str | None]]:
    return [(row["status"], row.get("conclusion")) for row in github.get_or_create_repository(AT).checks.values()]


@pytest.mark.timeout(3600)
def test_a_pull_request_reaches_its_verdict_though_the_site_is_killed_at_each_step(
    site: LiveSite, github: GitHub
) -> None:
    killer = Killer(github, site)
    sha = repository(site.repository)
    token = site.call("pull_requests.create_small_track")
    node = ScriptedNode(site, token)

    # Opened while the site is down: GitHub keeps the delivery, and a maintainer has it sent again.
    head = payloads.repository("ada/daily", number=2, fork=True, clone_url=f"file://{site.repository}")
    shown = {"body": BODY, "head": head, "author": payloads.user("ada", compute_user_id("ada"))}
    github.open_pull_request(AT, NUMBER, sha, **shown)
    site.start_web()
    assert github.redeliver(github.deliveries[0]["id"]) == 202
    site.kill("web")  # it said thank you, and is gone

    # The worker dies over the first comment: it is there, and nobody has noted so. Then over the check.
    killer.next = ("POST", True)
    site.start_web()
    begin(site)
    site.wait(lambda: killer.killed == 1, "the worker to be killed over its first comment")
    killer.next = ("POST", False)
    revive(site)
    site.wait(lambda: killer.killed == 2, "the worker to be killed over the check")
    revive(site)
    site.wait(lambda: checks(github) == [("queued", None)], "the check")
    assert len(comments(github)) == 1
    assert f"`/approve {sha[:8]}`" in comments(github)[0]

    # Approved in a comment: the worker dies before it can nod at it; the same delivery comes twice.
    killer.next = ("POST", False)
    github.post_comment(AT, NUMBER, "mara", "/approve")
    assert github.redeliver(github.deliveries[0]["id"]) == 200
    site.wait(lambda: killer.killed == 3, "the worker to be killed over its nod")
    site.kill("web")
    site.start_web()
    revive(site)

    # The smoke run, then the training: the web process dies in the middle of it.
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

    # The verdict: the worker dies over the comment that says it, after GitHub has it.
    scoring = node.take("score")
    site.wait(lambda: checks(github) == [("in_progress", None)], "the check to say that it is under way")
    killer.next = ("PATCH", True)
    node.finish(scoring, VERDICT)
    site.wait(lambda: killer.killed == 4, "the worker to be killed over the verdict")
    revive(site)
    site.wait(lambda: checks(github) == [("completed", "success")], "a green check")
    site.wait(lambda: "2.5000 bits per byte" in comments(github)[0], "the verdict in the comment")
    time.sleep(2)

    books = site.call("pull_requests.read_entries")
    assert books["entries"] == [[sha, "approved"]]
    assert books["runs"] == ["finished"]
    assert books["jobs"] == [["smoke", "done"], ["train", "done"], ["score", "done"]]
    assert books["left"] == []
    assert len(comments(github)) == 1
    assert [content for _, content in github.get_or_create_repository(AT).reactions] == ["+1"]
