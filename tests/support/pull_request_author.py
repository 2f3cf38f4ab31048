"""The author of a pull request: opens it, pushes, comments, and reads the comments and checks of the site."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.utils import timezone

from leaderboard import events, outbox
from leaderboard.integrations.github import deliveries
from leaderboard.models import OutboxMessage
from scheduler.models import Job
from tests.leaderboard.conftest import Repository
from tests.support import github_payloads as payloads
from tests.support.github_server import GitHub, compute_user_id
from tests.support.node_jobs import finish_job

BODY = "---\ntrack: small\nhypothesis: It helps.\nexpected_effect: 3 %\ncontact: @ada\n---\n"
REPOSITORY_NAME, NUMBER = "trains/daily", 7


@dataclass
class PullRequestAuthor:
    github: GitHub
    fork: Repository
    sha: str
    payload: dict[str, Any] = field(default_factory=dict)
    repository_name: str = REPOSITORY_NAME

    @classmethod
    def create_fork(cls, github: GitHub, main_repository: Repository, folder: Path) -> PullRequestAuthor:
        fork = main_repository.fork(folder)
        fork.git("checkout", "--quiet", "-b", "idea")
        github.get_or_create_repository(REPOSITORY_NAME).roles["mara"] = "write"
        return cls(github, fork, fork.commit("An idea", {"trainer/models/smear.py": "x = 1\n"}))

    # --- the author ---------------------------------------------------------------------------------------------------

    def open(self, *, process_now: bool = True, **fields: Any) -> None:
        head = payloads.repository("ada/daily", number=2, fork=True, clone_url=f"file://{self.fork.path}")
        author = payloads.user("ada", compute_user_id("ada"))
        fields = {"body": BODY, "head": head, "author": author, **fields}
        self.payload = self.github.open_pull_request(self.repository_name, NUMBER, self.sha, **fields)
        self.process_last_delivery(process_now)

    def commit_files(self, files: dict[str, str], since: str = "") -> None:
        """Commit files, on top of commit `since` if it is given."""
        if since:
            self.fork.git("reset", "--quiet", "--hard", since)
        self.sha = self.fork.commit("Another idea", dict(files))

    def push(self, files: dict[str, str], since: str = "") -> None:
        self.commit_files(files, since)
        self.change("synchronize", head_sha=self.sha)

    def rename_repository(self, name: str) -> None:
        self.github.rename_repository(self.repository_name, name)
        self.repository_name = name

    def change(self, action: str, **fields: Any) -> None:
        self.payload = self.github.change_pull_request(action, self.repository_name, NUMBER, **fields)
        self.process_last_delivery()

    def post_comment(self, login: str, body: str) -> dict[str, Any]:
        comment = self.github.post_comment(self.repository_name, NUMBER, login, body)
        self.process_last_delivery()
        return comment

    # --- the node -----------------------------------------------------------------------------------------------------

    def finish_smoke_test(
        self, passed: bool = True, sentence: str = "It passed: 200 steps on a CPU.", **result: Any
    ) -> None:
        """Finish the queued smoke test with this result."""
        job = Job.objects.get(kind="smoke", state=Job.State.QUEUED)
        finish_job(job, {"passed": passed, "sentence": sentence, "checks": [], "seconds": 40, **result})
        self.process_pending_work()

    # --- the site -----------------------------------------------------------------------------------------------------

    def process_last_delivery(self, process_now: bool = True) -> None:
        """Store GitHub's last delivery, if no webhook is set up, and process what follows from it."""
        if not self.github.hook["url"]:
            delivery = self.github.deliveries[0]
            self.process_delivery(delivery["event"], delivery["payload"])
        if process_now:
            self.process_pending_work()

    def process_delivery(self, event: str, payload: dict[str, Any]) -> None:
        if message := deliveries.store_delivery(event, uuid.uuid4().bytes, payload):
            outbox.process_message(message.pk)

    def process_pending_work(self, *, once: bool = False) -> None:
        """Process events and outbox messages until none is pending."""
        for _ in range(1 if once else 20):
            processed = events.announce_events()
            OutboxMessage.objects.filter(state=OutboxMessage.State.PENDING).update(not_before=timezone.now())
            if not processed + outbox.process_due():
                return
            if once:
                outbox.process_due()

    # --- comments and checks ------------------------------------------------------------------------------------------

    @property
    def comments(self) -> list[str]:
        """The bodies of the comments of the site."""
        rows = self.github.get_or_create_repository(self.repository_name).list_comments_on(NUMBER)
        return [row["body"] for row in rows if row["user"]["login"].endswith("[bot]")]

    @property
    def comment(self) -> str:
        """The body of the comment that the site updates."""
        (body,) = [body for body in self.comments if body.startswith("<!-- dailytrain:pull:")]
        return body

    @property
    def answers(self) -> list[str]:
        return [body for body in self.comments if body.startswith("<!-- dailytrain:answer:")]

    @property
    def check(self) -> tuple[str, str | None, str]:
        return self.find_check(self.sha)

    def find_check(self, sha: str) -> tuple[str, str | None, str]:
        (check,) = [
            row
            for row in self.github.get_or_create_repository(self.repository_name).checks.values()
            if row["head_sha"] == sha
        ]
        return check["status"], check.get("conclusion"), check["output"]["title"]
