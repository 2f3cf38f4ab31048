"""`manage.py export_person USER`: print everything about a user as JSON."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder

from dailytrain.personal_data.export import export_person


class Command(BaseCommand):
    help = "Print everything that the site knows about a user as JSON, without secrets."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username", metavar="USER")

    def handle(self, *, username: str, **options: Any) -> None:
        user = User.objects.filter(username=username).first()
        if user is None:
            raise CommandError(f"There is no user {username!r}.")
        self.stdout.write(json.dumps(export_person(user), indent=1, cls=DjangoJSONEncoder))
