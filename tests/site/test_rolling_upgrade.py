"""An upgrade while visitors and nodes send requests: migrations first, then new processes; each request is answered.

The new release is this code with one more migration, of the kinds that `test_additive_migrations.py` allows. The test
holds the listening socket, as `dailytrain-web.socket` of systemd does.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.load.generator import build_row
from tests.support.live_site import database
from tests.support.paths import REPOSITORY

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.services, pytest.mark.timeout(1200)]

VISITORS = 3
NEXT_MIGRATION = """
from django.db import migrations, models

class Migration(migrations.Migration):
    dependencies = [("leaderboard", "{latest}")]
    operations = [
        migrations.AddField("run", "note", models.TextField(null=True)),
        migrations.AddField("curvepoint", "weight", models.FloatField(db_default=1.0)),
        migrations.CreateModel("Note", [("id", models.BigAutoField(primary_key=True)), ("text", models.TextField())]),
        migrations.AddIndex("curvepoint", models.Index(fields=["weight"], name="points_by_weight")),
    ]
"""


class Release:
    """The code of one release, as processes on one listening socket."""

    def __init__(self, folder: Path, address: str, listening: socket.socket, **environment: str) -> None:
        self._listening = listening
        self._log = folder / "web.log"
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "REDIS_URL"},
            "DATABASE_URL": address,
            "DAILYTRAIN_HOME": str(folder / "home"),
            "LOG_LEVEL": "WARNING",
            "DJANGO_SETTINGS_MODULE": "dailytrain.settings",
            **environment,
        }

    def run(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=REPOSITORY, env=self._environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self) -> subprocess.Popen[bytes]:
        fd = self._listening.fileno()
        words: tuple[str, ...] = ("-m", "uvicorn", "dailytrain.asgi:application", "--no-proxy-headers")
        words += ("--fd", str(fd), "--lifespan", "on")
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *words], cwd=REPOSITORY, env=self._environment, pass_fds=[fd], stdout=log, stderr=log
            )


class Visitor(threading.Thread):
    """Views pages and reports metrics, one request after the other, each over a new connection.

    A connection that is closed without an answer is tried again, as browsers, proxies and nodes do.
    """

    def __init__(self, url: str, pages: list[str], lease: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.url, self.pages, self.lease = url, pages, lease
        self.statuses: Counter[int] = Counter()
        self.problems: list[str] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        address = f"/api/node/v1/leases/{self.lease['lease']}"
        for number, page in enumerate(cycle(self.pages), start=1):
            rows = [build_row(10 * number + row) for row in range(10)]
            self.send("GET", page)
            self.send("POST", f"{address}/metrics", {"sequence": number, "rows": rows})
            self.send("POST", f"{address}/heartbeat", {"phase": "running", "seconds": number})
            if self.is_over.is_set():
                return

    def send(self, method: str, path: str, message: dict[str, Any] | None = None) -> None:
        headers = {"Authorization": f"Bearer {self.lease['token']}"} if message else {}
        while not self.problems:
            try:
                response = httpx.request(method, self.url + path, json=message, headers=headers, timeout=600)
            except (httpx.RemoteProtocolError, httpx.ReadError):
                continue
            except httpx.TransportError as error:
                self.problems.append(f"{path}: {error!r}")
                return
            self.statuses[response.status_code] += 1
            if response.status_code != 200:
                self.problems.append(f"{path}: {response.status_code} {response.text[:300]}")
            return


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as made:
        made.set_inheritable(True)
        yield made


def write_next_release(folder: Path) -> None:
    """Write settings under which one more migration exists."""
    shutil.copytree(REPOSITORY / "leaderboard" / "migrations", folder / "next_release")
    latest = max(file.stem for file in (folder / "next_release").glob("0*.py"))
    (folder / "next_release" / "9000_next.py").write_text(NEXT_MIGRATION.format(latest=latest))
    (folder / "next_settings.py").write_text(
        'from dailytrain.settings import *\n\nMIGRATION_MODULES = {"leaderboard": "next_release"}\n'
    )


def wait_for_requests(visitors: list[Visitor], count: int) -> None:
    """Wait until each visitor has got so many more answers, or one has met a problem."""
    until = [visitor.statuses.total() + count for visitor in visitors]
    while any(visitor.statuses.total() < goal for visitor, goal in zip(visitors, until, strict=True)):
        if any(visitor.problems for visitor in visitors):
            return
        time.sleep(0.05)


def test_upgrade_under_requests_answers_each(tmp_path: Path, listening: socket.socket) -> None:
    write_next_release(tmp_path)
    with database(tmp_path) as address:
        old = Release(tmp_path, address, listening)
        new = Release(
            tmp_path, address, listening,
            DJANGO_SETTINGS_MODULE="next_settings", PYTHONPATH=os.pathsep.join([str(tmp_path), str(REPOSITORY)]),
        )  # fmt: skip
        filled = json.loads(old.run("-m", "benchmarks.load.fill", "--nodes", str(VISITORS)))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        web = old.start()
        visitors = [Visitor(url, filled["pages"][:6], lease) for lease in filled["leases"]]
        try:
            for visitor in visitors:
                visitor.start()
            wait_for_requests(visitors, 6)
            new.run("manage.py", "migrate", "--verbosity", "0")
            wait_for_requests(visitors, 9)  # answered by the old code from the new tables
            web.terminate()
            web.wait()
            web = new.start()
            wait_for_requests(visitors, 9)
            new.run("manage.py", "migrate", "--check")
        finally:
            for visitor in visitors:
                visitor.is_over.set()
            for visitor in visitors:
                visitor.join(600)
            web.kill()
            web.wait()
        log = (tmp_path / "web.log").read_text()
        assert [problem for visitor in visitors for problem in visitor.problems] == [], log
        assert {status for visitor in visitors for status in visitor.statuses} == {200}
