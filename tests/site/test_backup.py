"""A backup, restored into an empty site, has every row and every file."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.postgres import PostgresNotFoundError, run_postgres
from tests.support.clean_environment import run_python

pytestmark = [pytest.mark.processes, pytest.mark.slow]

FILL = """
from scheduler import storage, signing
from scheduler.models import Blob
from tests.support import scene
scene.create_night_board()
for number in range(20):
    storage.store_bytes(b"weights %d" % number * 1000)
signing.get_public_key()
real = storage.store_bytes(b"a release")
for fake in Blob.objects.exclude(name__startswith="blobs/"):  # those of the scene have no files
    for relation in Blob._meta.get_fields(include_hidden=True):
        if relation.one_to_many and "_" not in relation.related_model.__name__:
            field = relation.field.name
            relation.related_model._default_manager.filter(**{field: fake}).update(**{field: real})
    fake.delete()
"""
READ = """
import hashlib, json
from django.core.files.storage import default_storage
from django.db import connection
from scheduler import signing
from scheduler.models import Blob
tables = {}
with connection.cursor() as cursor:
    for table in sorted(connection.introspection.table_names(cursor)):
        cursor.execute(f'SELECT * FROM "{table}" ORDER BY 1')
        tables[table] = hashlib.sha256(repr(cursor.fetchall()).encode()).hexdigest()
files = {}
for blob in Blob.objects.all():
    with default_storage.open(blob.name) as file:
        files[blob.name] = (hashlib.sha256(file.read()).hexdigest(), blob.sha256)
print(json.dumps({"tables": tables, "files": files, "key": signing.get_public_key()}))
"""
BACK_UP_WHILE_RETENTION_DELETES = """
from django.core.management import call_command
from dailytrain.backup import database
from scheduler import storage
lost, dump = storage.store_bytes(b"an old upload"), database.dump_database
def dump_and_delete(target):
    dump(target)
    assert storage.delete_unreferenced_blob(lost.sha256)
database.dump_database = dump_and_delete
call_command("backup", %r)
"""


@dataclass
class Site:
    home: Path
    database: str = ""

    def manage(self, *arguments: str, fails: bool = False) -> str:
        variables = {"DATABASE_URL": self.database} if self.database else {}
        done = run_python(self.home, "manage.py", *arguments, code=None if fails else 0, **variables)
        return done.stdout + done.stderr

    def run_program(self, program: str) -> str:
        return self.manage("shell", "--no-imports", "--command", program)


@pytest.fixture(params=["sqlite", "postgresql"])
def sites(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Site, Site]]:
    """A filled site and an empty one, on SQLite and on PostgreSQL."""
    old, new = Site(tmp_path / "old"), Site(tmp_path / "new")
    if request.param == "sqlite":
        yield fill(old), new
        return
    if shutil.which("pg_dump") is None:
        pytest.skip("pg_dump is not installed (apt install postgresql-client)")
    try:
        with run_postgres() as (url, _):
            address = url.removesuffix("/postgres")
            for name in ("old", "new"):
                subprocess.run(["psql", "-q", url, "-c", f"CREATE DATABASE {name}"], check=True)
            old.database, new.database = f"{address}/old", f"{address}/new"
            yield fill(old), new
    except PostgresNotFoundError as error:
        pytest.skip(str(error))


def fill(site: Site) -> Site:
    site.manage("migrate", "--verbosity", "0")
    site.run_program(FILL)
    return site


def test_restored_site_has_every_row_file_and_key(sites: tuple[Site, Site], tmp_path: Path) -> None:
    old, new = sites
    folder = tmp_path / "backup"
    said = old.manage("backup", str(folder))
    assert re.search(r"Saved [\d,]+ rows of \d+ tables, 21 files \(\d[\d,]+ bytes; 0 were there\), 2 new keys", said)
    assert "0 files (0 bytes; 21 were there), 0 new keys" in old.manage("backup", str(folder)), "only what is new"
    before = json.loads(old.run_program(READ))
    assert "21 files" in new.manage("restore", str(folder))
    after = json.loads(new.run_program(READ))
    assert {name for name in before["tables"] if before["tables"][name] != after["tables"].get(name)} == set()
    assert before == after
    assert len(after["files"]) == 21
    assert all(found == named for found, named in after["files"].values())
    assert "The database is not empty" in new.manage("restore", str(folder), fails=True)

    check_damaged_backup_is_reported(folder, tmp_path)


def test_file_deleted_after_the_dump_is_in_the_backup(tmp_path: Path) -> None:
    old, new = fill(Site(tmp_path / "old")), Site(tmp_path / "new")
    old.run_program(BACK_UP_WHILE_RETENTION_DELETES % str(tmp_path / "backup"))
    assert "22 files" in new.manage("restore", str(tmp_path / "backup"))


def test_backup_with_other_keys_leaves_the_earlier_backup_whole(tmp_path: Path) -> None:
    old, folder = Site(tmp_path / "old"), tmp_path / "backup"
    old.manage("migrate", "--verbosity", "0")
    old.manage("backup", str(folder))
    key = next(path for path in (folder / "keys").iterdir())
    (old.home / "keys" / key.name).write_text("rotated")
    assert "is another key than" in old.manage("backup", str(folder), fails=True)
    assert "Restored" in Site(tmp_path / "new").manage("restore", str(folder))


def check_damaged_backup_is_reported(folder: Path, tmp_path: Path) -> None:
    engine = json.loads((folder / "manifest.json").read_text())["engine"]
    if engine == "postgresql":
        assert "The backup is of postgresql, and this" in Site(tmp_path / "x").manage(
            "restore", str(folder), fails=True
        )
        return
    first, second = sorted((folder / "blobs").glob("*/*"))[:2]
    first.write_bytes(b"other bytes")
    second.unlink()
    said = Site(tmp_path / "third").manage("restore", str(folder), fails=True)
    assert "19 files" in said, "the others are restored"
    assert "All is restored except 2 files" in said
    assert f"{first.name} of the backup is damaged" in said
    assert re.search(rf"The backup lacks the file \S+{second.name}", said)
    (folder / "manifest.json").unlink()
    assert "is no complete backup" in Site(tmp_path / "fourth").manage("restore", str(folder), fails=True)
