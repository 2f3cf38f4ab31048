"""`manage.py restore DIR`: fill an empty database and storage from a backup (`dailytrain/backup`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from dailytrain.backup import database, files


class Command(BaseCommand):
    help = "Restore database, files and keys from a backup. The database must be empty, and the site stopped."
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, metavar="DIR")

    def handle(self, *, folder: Path, **options: Any) -> None:
        facts = self.read_manifest(folder)
        if tables := database.count_rows():
            raise CommandError(f"The database is not empty: it has {len(tables)} tables. Restore into a new one.")
        keys = files.copy_keys(folder / "keys", files.get_keys_folder(), replace=True)
        database.restore_database(folder / "database.dump")
        copied = files.load_blobs(folder)
        rows = database.count_rows()
        self.stdout.write(
            f"Restored {sum(rows.values()):,} rows of {len(rows)} tables, {copied.copied:,} files ({copied.bytes:,} "
            f"bytes), {keys} keys of {facts['at']}. Run manage.py migrate, then start the site."
        )
        if copied.problems:
            problems = "\n".join(copied.problems)
            raise CommandError(f"All is restored except {len(copied.problems)} files:\n{problems}")

    def read_manifest(self, folder: Path) -> dict[str, Any]:
        try:
            facts: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
        except (OSError, ValueError):
            raise CommandError(f"{folder} is no complete backup: it has no valid manifest.json.") from None
        if facts["engine"] != connection.vendor:
            raise CommandError(f"The backup is of {facts['engine']}, and this database is {connection.vendor}.")
        return facts
