"""A pull request from its author's side: it is opened, pushed to, talked in, and what the site says there is read."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.utils import timezone

from leaderboard import events, outbox
from leaderboard.integrations.github import deliveries
from leaderboard.models import OutboxMessage
from scheduler.job_kinds import get_job_kind
from scheduler.models import Job
from tests.leaderboard.conftest import Repository
from tests.support import github_payloads as payloads
from tests.support.github_server import GitHub, person

BODY = "---\ntrack: small\nhypothesis: It helps.\nexpected_effect: 3 %\ncontact: @ada\n---\n"
AT, NUMBER = "trains/daily", 7


@dataclass
class Conversation:
    github: GitHub
    fork: Repository
    sha: str
    shown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, github: GitHub, main: Repository, folder: Path) -> Conversation:
        fork = main.fork(folder)
        fork.git("checkout", "--quiet", "-b", "idea")
        github.repository(AT).roles["mara"] = "write"
        return cls(github, fork, fork.commit("An idea", {"trainer/models/smear.py": "x = 1\n"}))

    # --- its author ---------------------------------------------------------------------------------------------------

    def open(self, *, settled: bool = True, **fields: Any) -> None:
        head = payloads.repository("ada/daily", number=2, fork=True, clone_url=f"file://{self.fork.path}")
        author = payloads.user("ada", person("ada"))
        fields = {"body": BODY, "head": head, "author": author, **fields}
        self.shown = self.github.open(AT, NUMBER, self.sha, **fields)
        self.hear(settled)

    def write(self, files: dict[str, str], since: str = "") -> None:
        """Commit; `since`: begin anew from there."""
        if since:
            self.fork.git("reset", "--quiet", "--hard", since)
        self.sha = self.fork.commit("Another idea", dict(files))

    def push(self, files: dict[str, str], since: str = "") -> None:
        self.write(files, since)
        self.change("synchronize", head_sha=self.sha)

    def change(self, action: str, **fields: Any) -> None:
        self.shown = self.github.change(action, AT, NUMBER, **fields)
        self.hear()

    def say(self, login: str, body: str) -> dict[str, Any]:
        said = self.github.say(AT, NUMBER, login, body)
        self.hear()
        return said

    # --- the node -----------------------------------------------------------------------------------------------------

    def smoke(self, passed: bool = True, sentence: str = "It passed: 200 steps on a CPU.", **found: Any) -> None:
        """Let the smoke run that is queued come to its end."""
        job = Job.objects.get(kind="smoke", state=Job.State.QUEUED)
        Job.objects.filter(pk=job.pk).update(state=Job.State.DONE)
        job.refresh_from_db()
        get_job_kind(job).handle_done(
            job, {"passed": passed, "sentence": sentence, "checks": [], "seconds": 40, **found}
        )
        self.settle()

    # --- the site

    def hear(self, settled: bool = True) -> None:
        """Take over what GitHub tried to tell last, where no webhook is set up, and do what follows."""
        if not self.github.hook["url"]:
            last = self.github.deliveries[0]
            self.hand_over(last["event"], last["payload"], last["guid"])
        if settled:
            self.settle()

    def hand_over(self, event: str, payload: dict[str, Any], guid: str = "") -> None:
        deliveries.store_delivery(guid or str(uuid.uuid4()), event, uuid.uuid4().bytes, payload)
        deliveries.process_due()

    def settle(self, *, once: bool = False) -> None:
        """Do what waits, and what follows from it, until nothing does."""
        for _ in range(1 if once else 20):
            told = deliveries.process_due() + events.announce_events()
            OutboxMessage.objects.filter(state=OutboxMessage.State.PENDING).update(not_before=timezone.now())
            if not told + outbox.process_due():
                return
            if once:
                outbox.process_due()

    # --- what is read there

    @property
    def comments(self) -> list[str]:
        """What the site wrote."""
        rows = self.github.repository(AT).about(NUMBER)
        return [row["body"] for row in rows if row["user"]["login"].endswith("[bot]")]

    @property
    def comment(self) -> str:
        """The one that is rewritten."""
        (found,) = [body for body in self.comments if body.startswith("<!-- dailytrain:pull:")]
        return found

    @property
    def answers(self) -> list[str]:
        return [body for body in self.comments if body.startswith("<!-- dailytrain:answer:")]

    @property
    def check(self) -> tuple[str, str | None, str]:
        return self.check_of(self.sha)

    def check_of(self, sha: str) -> tuple[str, str | None, str]:
        (found,) = [row for row in self.github.repository(AT).checks.values() if row["head_sha"] == sha]
        return found["status"], found.get("conclusion"), found["output"]["title"]
