"""`manage.py install_schedule`: put the beat schedule into the database, where the admin can edit it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from dailytrain import schedule


class Command(BaseCommand):
    help = "Add the periodic tasks that are missing; those that exist stay as the admin has set them."

    def handle(self, *args: Any, **options: Any) -> None:
        schedule.install()
