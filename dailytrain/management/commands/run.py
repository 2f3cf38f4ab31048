"""`manage.py run`: the whole site with one node on one machine, on embedded defaults."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from dailytrain.local_site import LocalSite, build_node_process, check_port

NODE_NAME = "this-machine"


class Command(BaseCommand):
    is_complete = False
    """Whether all entries that can be trained here are entered."""
    help = "Run site, queue, background work and one CPU node on this machine until Ctrl-C. Run it again to continue."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=8000)
        parser.add_argument("--no-node", action="store_true", help="run the site only")

    def handle(self, *args: Any, port: int, no_node: bool, **options: Any) -> None:
        self.site = LocalSite(port)
        self.site.stop_on_signals()
        self.lock = acquire_lock(settings.HOME / "run.lock")
        check_port(port)
        os.environ.setdefault("SITE_URL", self.site.url)  # the children inherit it
        try:
            self.start_processes(no_node)
            self.supervise()
        finally:
            self.site.stop()
            self.site.print_message("Everything has stopped. `make run` continues from here.")

    def start_processes(self, no_node: bool) -> None:
        site = self.site
        site.prepare_database()
        sandbox_problem = None if no_node else find_sandbox_problem()
        if not site.stopping.is_set():
            site.print_message("Preparing the dataset")
            call_command("prepare_season")
        if site.stopping.is_set():
            return
        call_command("bootstrap_site", main_only=True)
        self.is_complete = sandbox_problem is not None  # then no other entry can be trained
        call_command("build_wheel")
        site.start_services()
        if not no_node:
            if sandbox_problem:
                self.print_sandbox_problem(sandbox_problem)
            token = get_join_token(settings.HOME / "node" / "identity.json", site.url)
            sandbox = "none" if sandbox_problem else "bubblewrap"
            site.start(build_node_process(NODE_NAME, site.url, token, "--sandbox", sandbox))
        site.console.print(f"\n  The board is at [bold]{site.url}[/bold]   (Ctrl-C stops everything)\n")

    def print_sandbox_problem(self, problem: str) -> None:
        site = self.site
        site.console.rule("[bold]no sandbox[/bold]")
        site.print_message(problem)
        site.print_message("Only `main`, the code of this checkout, is trained, with full access to this machine.")
        site.print_message("To train other entries, install it (Debian: apt install bubblewrap) and run again.")
        site.console.rule()

    def supervise(self) -> None:
        """Until the command is stopped, restart processes that exit and print events."""
        self.site.skip_events()
        while not self.site.stopping.wait(1):
            self.site.restart_exited()
            self.site.print_events()
            self.enter_architectures()

    def enter_architectures(self) -> None:
        from leaderboard.schedule.first_season import enter_after_first_run
        from leaderboard.submissions.intake import IntakeError

        if self.is_complete:
            return
        try:
            self.is_complete = enter_after_first_run()
        except IntakeError as error:
            self.site.print_message(f"Only main is trained: {error}")
            self.is_complete = True


def acquire_lock(path: Path) -> IO[str]:
    """Return the open lock file of the folder; raise CommandError if another process holds it."""
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CommandError(f"Another `run` uses {path.parent}: stop it first, or set DAILYTRAIN_HOME.") from None
    return lock


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


def find_sandbox_problem() -> str | None:
    """Return why bubblewrap does not work here, or None. The check is that of the node agent."""
    code = "from trainer.sandbox import get_driver; print(get_driver('bubblewrap').find_problem() or '')"
    checked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return checked.stdout.strip() or (checked.stderr.strip().splitlines() or [""])[-1] or None
