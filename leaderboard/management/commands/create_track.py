"""`manage.py create_track TEMPLATE`: a track for a class of machine or a way of working."""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from leaderboard.models import Run, Season
from leaderboard.schedule.track_templates import TEMPLATES, create_track


class Command(BaseCommand):
    help = "Make a track of the present season from a template. Everything about it can be changed in the admin."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.formatter_class = RawDescriptionHelpFormatter
        lines = [
            f"  {name:16} {', '.join(values['needs_labels'])}: {values['name']}" for name, values in TEMPLATES.items()
        ]
        parser.epilog = "\n".join(["templates:", *lines])
        parser.add_argument("template", choices=TEMPLATES, metavar="template")
        parser.add_argument("--slug", default="", help="in its address; the template's name if not given")
        parser.add_argument("--name", default="")
        parser.add_argument("--start", type=int, metavar="RUN", help="its runs start from the weights of this run")
        parser.add_argument("--step", type=int, help="of its checkpoint; the final weights if not given")

    def handle(self, *args: Any, **options: Any) -> None:
        season = Season.objects.current()
        if season is None:
            raise CommandError("There is no season yet: manage.py prepare_season makes one.")
        start = Run.objects.filter(pk=options["start"]).first()
        if options["step"] is not None and not options["start"]:
            raise CommandError("--step goes with --start: a checkpoint is of a run.")
        if options["start"] and start is None:
            raise CommandError(f"There is no run {options['start']}.")
        try:
            names = {name: options[name] for name in ("slug", "name", "step")}
            track = create_track(options["template"], season, start=start, **names)
        except (ValueError, ValidationError) as error:
            raise CommandError(
                " ".join(error.messages) if isinstance(error, ValidationError) else str(error)
            ) from error
        self.stdout.write(
            f"{track.name}: {track.get_absolute_url()}, needs {', '.join(track.needs_labels) or 'any node'}"
        )
