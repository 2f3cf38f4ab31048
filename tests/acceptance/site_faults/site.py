"""A whole site on PostgreSQL and Redis, with a local GitHub and Hub, and the faults that a seed chooses for it."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.acceptance.site_faults.node import FaultyNode
from tests.acceptance.site_faults.postgres import PostgresServer
from tests.support import github_payloads as payloads
from tests.support import github_server, hub_server
from tests.support.full_disk import set_disk_full
from tests.support.github_server import GitHub, compute_user_id
from tests.support.hub_server import Hub
from tests.support.live_site import LiveSite, commit_main, git
from tests.support.paths import REPOSITORY

REPOSITORY_NAME = "trains/daily"
BODY = "---\r\ntrack: small\r\nhypothesis: It helps.\r\nexpected_effect: 3 %\r\ncontact: '@ada'\r\n---\r\n"
FILES = {
    "trainer/models/__init__.py": 'ARCHITECTURES = {\n    "gpt": "trainer.models.gpt",\n}\n',
    "trainer/models/base.py": "",
    "trainer/models/gpt.py": "class Model:\n    pass\n",
}
NODES = 3
LEASE_SECONDS = 6
SERVICES = ("web", "worker", "beat", "second-beat")


class SiteWithFaults:
    def __init__(self, folder: Path, postgres: PostgresServer, github: GitHub, hub: Hub, seed: int, pulls: int) -> None:
        self.postgres, self.github, self.hub = postgres, github, hub
        self.draw = random.Random(seed)
        self.seed, self.fault_counts = seed, Counter[str]()
        self.unsettled: list[Callable[[], None]] = []
        """Functions that end the active faults."""
        self.shas: list[str] = []
        self.live = LiveSite(folder, postgres.url)
        self.live.environment |= {
            "DJANGO_SETTINGS_MODULE": "tests.acceptance.site_faults.settings",
            "PYTHONPATH": str(REPOSITORY),
            "LEASE_SECONDS": str(LEASE_SECONDS),
            "GITHUB_API_URL": github.url,
            "GITHUB_REPOSITORY": REPOSITORY_NAME,
            "GITHUB_APP_ID": github_server.APP,
            "GITHUB_PRIVATE_KEY": github_server.get_private_key(),
            "GITHUB_WEBHOOK_SECRET": "between us",
            "HUB_ENDPOINT": hub.url,
            "HUB_ORGANIZATION": hub_server.ORGANIZATION,
            "HF_TOKEN": hub_server.TOKEN,
            "SMOKE_UNAPPROVED": "nobody",
        }
        github.get_or_create_repository(REPOSITORY_NAME).roles["mara"] = "write"
        github.hook |= {"secret": "between us", "url": f"{self.live.url}/github/webhook"}
        self._commits = make_repository(self.live.repository, pulls)
        tokens = self.live.call("faults.create_site", nodes=NODES)
        self.live.start_redis()
        self.start("web")
        self.live.wait(lambda: self.live.get("/healthz") is not None, "the site to answer")
        for name in SERVICES[1:]:
            self.start(name)
        self.nodes = [FaultyNode(number, self.live.url, token, seed) for number, token in enumerate(tokens)]

    # --- parts --------------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        celery = ("-m", "celery", "-A", "dailytrain")
        if name == "redis":
            self.live.start_redis()
        elif name == "web":
            serve: tuple[str, ...] = ("-m", "uvicorn", "dailytrain.asgi:application", "--no-proxy-headers")
            serve += ("--port", str(self.live.port), "--lifespan", "on")
            self.live.start("web", sys.executable, *serve, DATABASE_POOL="20")
        elif name == "worker":
            self.live.start("worker", sys.executable, *celery, "worker", "--concurrency", "2", "--loglevel", "INFO")
        else:
            self.live.start(name, sys.executable, *celery, "beat", "--pidfile=", "--loglevel", "INFO")

    def kill(self, name: str) -> None:
        if name in self.live.processes:
            self.live.kill(name)

    def restart_dead(self) -> None:
        """Start the processes that have ended, as systemd does."""
        for name in ("redis", *SERVICES):
            process = self.live.processes.get(name)
            if process is None:
                self.start(name)
            elif process.poll() is not None:
                self.fault_counts[f"{name} ended by itself"] += 1
                self.start(name)

    def set_clock(self, seconds: float) -> None:
        """Set the clock of the site ahead by this many seconds."""
        path = self.live.folder / "home" / "clock"
        path.with_suffix(".new").write_text(str(seconds))
        path.with_suffix(".new").rename(path)

    # --- actions of users ---------------------------------------------------------------------------------------------

    def open_pull_request(self) -> None:
        """Open the next pull request."""
        number, (branch_owner, sha) = len(self.shas) + 1, self._commits[len(self.shas)]
        head = payloads.repository(f"{branch_owner}/daily", number=100 + number, fork=True)
        head["clone_url"] = f"file://{self.live.repository}"
        author = payloads.user(branch_owner, compute_user_id(branch_owner))
        self.github.open_pull_request(REPOSITORY_NAME, number, sha, body=BODY, head=head, author=author)
        self.shas.append(sha)

    def approve(self, number: int) -> None:
        self.github.post_comment(REPOSITORY_NAME, number, "mara", "/approve")

    def redeliver_lost(self) -> int:
        """Send unacknowledged deliveries again, oldest first, and return their number."""
        answered = {row["guid"] for row in self.github.deliveries if 200 <= row["status_code"] < 300}
        lost = {row["guid"]: row["id"] for row in reversed(self.github.deliveries) if row["guid"] not in answered}
        for delivery in lost.values():
            self.github.redeliver(delivery)
        return len(lost)

    # --- faults -------------------------------------------------------------------------------------------------------

    def inject_faults(self, seconds: float) -> None:
        """Inject faults that the seed chooses, about one every two seconds, while pull requests are opened."""
        for _ in range(len(self._commits) - 2):
            self.open_pull_request()
            self.approve(len(self.shas))
        self.live.wait(lambda: self.live.call("faults.count_unfinished")["jobs"], "the first job")
        began, unapproved = time.monotonic(), list[int]()
        faults = list[Callable[[], None]]()
        while (passed := time.monotonic() - began) < seconds:
            if len(self.shas) < len(self._commits) and passed > seconds / 5:
                self.open_pull_request()
                unapproved.append(len(self.shas))
            elif unapproved and self.draw.random() < 0.8:
                self.approve(unapproved.pop(0))
            if not faults:  # each kind as often as the others
                faults = list(self.list_faults())
                self.draw.shuffle(faults)
            fault = faults.pop()
            self.fault_counts[fault.__name__] += 1
            fault()
            time.sleep(self.draw.uniform(0.2, 2.0))
            self.settle()
            self.live.call("faults.publish_finished")
        for number in unapproved:
            self.approve(number)

    def list_faults(self) -> list[Callable[[], None]]:
        return [
            self.kill_web, self.kill_worker, self.kill_beat, self.kill_node, self.flush_redis, self.kill_redis,
            self.stop_postgres, self.kill_postgres, self.fill_disk, self.fill_postgres_disk, self.move_clock_forward,
            self.move_clock_back, self.repeat_delivery, self.break_github, self.break_hub,
        ]  # fmt: skip

    def settle(self) -> None:
        """End the active faults and restart dead processes."""
        while self.unsettled:
            self.unsettled.pop()()
        self.restart_dead()

    def kill_web(self) -> None:
        self.kill("web")

    def kill_worker(self) -> None:
        self.kill("worker")

    def kill_beat(self) -> None:
        self.kill(self.draw.choice(("beat", "second-beat")))

    def kill_node(self) -> None:
        self.draw.choice(self.nodes).is_killed.set()

    def flush_redis(self) -> None:
        import redis

        redis.Redis(unix_socket_path=f"{self.live.folder}/redis.sock").flushall()

    def kill_redis(self) -> None:
        self.kill("redis")
        time.sleep(self.draw.uniform(0, 3))

    def stop_postgres(self) -> None:
        self.postgres.stop(self.draw.choice(("fast", "immediate")))
        self.unsettled.append(self.postgres.start)

    def kill_postgres(self) -> None:
        self.postgres.kill()
        self.unsettled.append(self.postgres.start)

    def fill_disk(self) -> None:
        """Make all writes to files fail in the processes of the site."""
        self.set_disk_full(True)
        self.unsettled.append(lambda: self.set_disk_full(False))
        time.sleep(self.draw.uniform(1, 3))  # uploads are rarer than other requests

    def set_disk_full(self, is_full: bool) -> None:
        for name, process in self.live.processes.items():
            if name in SERVICES:
                set_disk_full(process.pid, is_full)

    def fill_postgres_disk(self) -> None:
        self.postgres.fill_disk()
        self.unsettled.append(self.postgres.empty_disk)
        time.sleep(self.draw.uniform(1, 3))

    def move_clock_forward(self) -> None:
        self.set_clock(self.draw.choice((2.0, 20.0, 300.0)))

    def move_clock_back(self) -> None:
        self.set_clock(-self.draw.choice((1.0, 5.0, 60.0)))

    def repeat_delivery(self) -> None:
        """Redeliver an old webhook, acknowledged or not."""
        if self.github.deliveries:
            self.github.redeliver(self.draw.choice(self.github.deliveries)["id"])

    def break_github(self) -> None:
        """Make GitHub fail before or after it executes the next requests."""
        self.github.fail_requests(502, times=2, path="/repos/", after=self.draw.random() < 0.5)

    def break_hub(self) -> None:
        self.hub.fail_requests(self.draw.choice(("POST", "PUT")), "/", 503, times=2)

    # --- the end ------------------------------------------------------------------------------------------------------

    def finish(self, seconds: float) -> None:
        """Stop the faults, correct the clock, expire claims of dead processes, and wait until all work is done."""
        self.settle()
        self.github.failures.clear()
        self.hub.failures.clear()
        for node in self.nodes:
            node.is_calm.set()
        for name in ("worker", "beat", "second-beat"):
            self.kill(name)
        self.set_clock(0.0)
        self.live.call("faults.expire_claims")
        self.restart_dead()
        self.live.wait(self.is_done, "all work to be done", seconds)

    def is_done(self) -> bool:
        self.restart_dead()
        lost = self.redeliver_lost()
        self.live.call("faults.publish_finished")
        left = self.live.call("faults.count_unfinished")
        comments = self.github.get_or_create_repository(REPOSITORY_NAME).comments.values()
        bots = [row for row in comments if row["user"]["login"].endswith("[bot]")]
        return not lost and not any(left.values()) and len(bots) >= len(self.shas)

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self.live.stop_all()

    def read(self) -> dict[str, Any]:
        site: dict[str, Any] = self.live.call("faults.read_site")
        return site


def make_repository(folder: Path, pulls: int) -> list[tuple[str, str]]:
    """Create main and a branch for each pull request; return (owner, commit) pairs."""
    commit_main(folder, FILES)
    commits = []
    for number in range(pulls):
        git(folder, "checkout", "--quiet", "-b", f"idea-{number}", "main")
        (folder / "trainer/models/gpt.py").write_text(f"class Model:\n    better = {number}\n")
        git(folder, "commit", "--quiet", "--all", "-m", f"Idea {number}")
        commits.append((f"ada-{number}", git(folder, "rev-parse", "HEAD")))
    git(folder, "checkout", "--quiet", "main")
    return commits
