"""`manage.py rehearse_night TRACK`: a night of the production configuration on this machine, in minutes."""

from __future__ import annotations

import importlib.util
import os
import sys
from argparse import ArgumentParser
from typing import Any, NoReturn

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from dailytrain.local_site import LocalSite
from dailytrain.rehearsal import isolation
from dailytrain.rehearsal.full_tracks import find_tracks, read_tracks, write_tracks
from trainer.distributed.ports import find_free_port


class Command(BaseCommand):
    help = (
        "Rehearse a night: a site of its own on this machine, the track at a small scale, two nodes "
        "that report its hardware, main, the ladder, an entry and its record. Exit code 1 names the step that failed."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("tracks", nargs="+", metavar="TRACK", help="a track of this site, as it is, or a template")
        parser.add_argument("--scale", type=float, default=1e-5, help="of the expected seconds (default: %(default)g)")
        parser.add_argument("--main-only", action="store_true", help="no ladder, no entry: main once on each track")
        parser.add_argument("--gpu", action="store_true", help="main once, on this machine's GPU")
        parser.add_argument("--home", metavar="DIR", help="empty folder for its site; default: a temporary one")
        parser.add_argument("--port", type=int, help="default: a free one")

    def handle(self, *args: Any, tracks: list[str], port: int | None, **options: Any) -> None:
        if importlib.util.find_spec("torch") is None:  # as in the image of the site
            raise CommandError(
                "This Python has no torch, so it cannot train: run `make install`, then .venv/bin/python."
            )
        if os.environ.get(isolation.MARK_VARIABLE) != str(settings.HOME):
            self.restart(tracks, port or find_free_port(), **options)
        from dailytrain.rehearsal.report import print_report, write_logs
        from dailytrain.rehearsal.steps import Rehearsal, StepError, StoppedError

        assert port is not None
        site = LocalSite(port)
        site.stop_on_signals()
        main_only = options["main_only"] or options["gpu"]
        rehearsal = Rehearsal(site, read_tracks(settings.HOME), options["scale"], main_only, options["gpu"])
        try:
            print_report(site.console, rehearsal.run())
        except StoppedError:
            raise CommandError("Stopped.") from None
        except StepError as error:
            log = f" Log: {error.log}" if error.log else ""
            raise CommandError(f"{rehearsal.step} failed: {error}{log}") from error
        finally:
            site.stop()
            if rehearsal.step != "site":  # before, there are no tables
                write_logs(site.console)

    def restart(self, tracks: list[str], port: int, **options: Any) -> NoReturn:
        """Replace this process by one with the environment of the rehearsal."""
        found = find_tracks(tracks)
        folder = isolation.create_folder(options["home"])
        write_tracks(folder, found)
        self.stderr.write(f"The rehearsal has a database and storage of its own in {folder}.", ending="\n")
        arguments = ["rehearse_night", *tracks, "--scale", f"{options['scale']!r}", "--port", f"{port}"]
        arguments += [f"--{name.replace('_', '-')}" for name in ("main_only", "gpu") if options[name]]
        command = [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments]
        os.execve(command[0], command, isolation.build_environment(folder, port))  # noqa: S606  (no shell needed)
