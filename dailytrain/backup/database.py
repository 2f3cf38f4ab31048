"""Dumps and restores a database with its own tools: pg_dump and pg_restore, or SQLite's online backup."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.db import connection


def dump_database(target: Path) -> None:
    """Write a consistent copy of the database, while the site runs."""
    if connection.vendor == "postgresql":
        run_postgres_program("pg_dump", "--format=custom", "--no-owner", "--no-privileges", "--file", str(target))
        return
    target.unlink(missing_ok=True)
    with closing(sqlite3.connect(connection.settings_dict["NAME"])) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)


def restore_database(dump: Path) -> None:
    """Fill the empty database from a dump, whole or not at all."""
    connection.close()
    if connection.vendor == "postgresql":
        flags = ("--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction")
        run_postgres_program("pg_restore", *flags, "--dbname", connection.settings_dict["NAME"], str(dump))
        return
    with closing(sqlite3.connect(dump)) as copy, closing(sqlite3.connect(connection.settings_dict["NAME"])) as target:
        copy.backup(target)


def run_postgres_program(name: str, *arguments: str) -> None:
    """Run a client program of PostgreSQL on this site's database; raise CommandError if it fails."""
    if shutil.which(name) is None:
        raise CommandError(f"{name} is not installed: apt install postgresql-client.")
    done = subprocess.run([name, *arguments], env=build_environment(), capture_output=True, text=True)
    if done.returncode:
        raise CommandError(f"{name} failed: {done.stderr.strip()}")


def build_environment() -> dict[str, str]:
    """Return the variables that name the database to PostgreSQL's programs. A password is not seen by `ps`."""
    found: dict[str, Any] = connection.settings_dict
    names = {"PGHOST": "HOST", "PGPORT": "PORT", "PGUSER": "USER", "PGPASSWORD": "PASSWORD", "PGDATABASE": "NAME"}
    variables = {name: str(found[key]) for name, key in names.items() if found.get(key)}
    encryption = {f"PG{key.upper()}": str(value) for key, value in found["OPTIONS"].items() if key.startswith("ssl")}
    return {**os.environ, **variables, **encryption}


def count_rows() -> dict[str, int]:
    """Return the number of rows of each table."""
    counts = {}
    with connection.cursor() as cursor:
        for table in sorted(connection.introspection.table_names(cursor)):
            cursor.execute(f"SELECT COUNT(*) FROM {connection.ops.quote_name(table)}")  # noqa: S608  # nosec
            counts[table] = cursor.fetchone()[0]
    return counts
