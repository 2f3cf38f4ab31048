"""`manage.py backup DIR`: copy database, files and keys into a folder (`dailytrain/backup`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import connection
from django.utils import timezone

from dailytrain.backup import database, files


class Command(BaseCommand):
    help = "Back up database, files and keys while the site runs. Into the folder of a backup it adds what is new."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, metavar="DIR")

    def handle(self, *, folder: Path, **options: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        manifest, partial = folder / "manifest.json", folder / "database.partial"
        keys = files.copy_keys(files.get_keys_folder(), folder / "keys")  # first: it may refuse the folder
        rows = database.count_rows()
        # Before the dump, since retention may delete a file that the dump names; and after it, for files stored since.
        earlier = files.save_blobs(folder)
        database.dump_database(partial)
        manifest.unlink(missing_ok=True)
        partial.replace(folder / "database.dump")
        later = files.save_blobs(folder)
        facts = {"format": 1, "at": timezone.now().isoformat(), "engine": connection.vendor}
        manifest.write_text(json.dumps(facts, indent=1) + "\n")
        self.stdout.write(
            f"Saved {sum(rows.values()):,} rows of {len(rows)} tables, {earlier.copied + later.copied:,} files "
            f"({earlier.bytes + later.bytes:,} bytes; {earlier.present:,} were there), {keys} new keys in {folder}."
        )
