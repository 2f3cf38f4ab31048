"""`manage.py create_track TEMPLATE`: create a track from a template."""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from leaderboard.models import Run, Season
from leaderboard.schedule.track_templates import SWARM_TEMPLATES, TEMPLATES, create_track


class Command(BaseCommand):
    help = "Create a track of the current season from a template. The admin can change all of it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.formatter_class = RawDescriptionHelpFormatter
        templates = {**TEMPLATES, **SWARM_TEMPLATES}
        labels = {key: ", ".join(track.get("needs_labels", ["any node"])) for key, track in templates.items()}
        rows = (f"  {key:16} {labels[key]}: {track['name']}" for key, track in templates.items())
        parser.epilog = "\n".join(["templates:", *rows])
        parser.add_argument("template", choices=templates, metavar="template")
        parser.add_argument("--slug", default="", help="in its URL; default: the template's name")
        parser.add_argument("--name", default="")
        parser.add_argument("--start", type=int, metavar="RUN", help="its runs start from the weights of this run")
        parser.add_argument("--step", type=int, help="of its checkpoint; default: the final weights")

    def handle(self, *args: Any, **options: Any) -> None:
        season = Season.objects.current()
        if season is None:
            raise CommandError("There is no season yet: run manage.py create_season.")
        start = Run.objects.filter(pk=options["start"]).first()
        if options["step"] is not None and not options["start"]:
            raise CommandError("--step needs --start.")
        if options["start"] and start is None:
            raise CommandError(f"There is no run {options['start']}.")
        try:
            names = {name: options[name] for name in ("slug", "name", "step")}
            track = create_track(options["template"], season, start=start, **names)
        except (ValueError, ValidationError) as error:
            raise CommandError("\n".join(getattr(error, "messages", [str(error)]))) from error
        needs = ", ".join(track.needs_labels) or "any node"
        self.stdout.write(f"{track.name}: {track.get_absolute_url()}, needs {needs}")
