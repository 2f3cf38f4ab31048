"""`manage.py build_wheel`: build the wheel that this site serves to nodes under `/download/`."""

from __future__ import annotations

import subprocess
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from scheduler.release.wheel import build_wheel


class Command(BaseCommand):
    help = "Build the wheel of this checkout. The commands on the site's pages install it."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            path = build_wheel()
        except subprocess.CalledProcessError as error:
            raise CommandError(f"The wheel could not be built:\n{error.stderr}") from error
        if options["verbosity"]:
            self.stdout.write(f"{path.name} is in {path.parent}.")
