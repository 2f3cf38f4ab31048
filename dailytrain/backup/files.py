"""Copies blobs between the storage and a folder, by their hash."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from django.conf import settings
from django.core.files.base import File
from django.core.files.storage import default_storage
from django.core.management.base import CommandError

from scheduler.models import Blob
from trainer.protocol.files import hash_file

CHUNK = 2**20


@dataclass
class CopiedFiles:
    copied: int = 0
    present: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)


def get_backup_path(folder: Path, sha256: str) -> Path:
    return folder / "blobs" / sha256[:2] / sha256


def save_blobs(folder: Path) -> CopiedFiles:
    """Copy each blob that the folder lacks. A blob that retention deletes meanwhile is left out."""
    done = CopiedFiles()
    for blob in Blob.objects.order_by("sha256").iterator():
        path = get_backup_path(folder, blob.sha256)
        if path.is_file() and path.stat().st_size == blob.size:
            done.present += 1
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with default_storage.open(blob.name, "rb") as source:
                write_checked(source, path, blob.sha256)
        except FileNotFoundError:
            if Blob.objects.filter(pk=blob.pk).exists():
                raise CommandError(f"The file of blob {blob.sha256} is missing in the storage: {blob.name}.") from None
            continue
        done.copied += 1
        done.bytes += blob.size
    return done


def write_checked(source: IO[bytes] | File, path: Path, sha256: str) -> None:  # type: ignore[type-arg]
    """Write a file whole or not at all; raise CommandError if its content has another hash."""
    partial, found = path.with_suffix(".partial"), hashlib.sha256()
    with partial.open("wb") as out:
        while data := source.read(CHUNK):
            found.update(data)
            out.write(data)
        out.flush()
        os.fsync(out.fileno())
    if found.hexdigest() != sha256:
        partial.unlink()
        raise CommandError(f"A file is damaged: its hash is {found.hexdigest()}, not {sha256}.")
    partial.rename(path)


def load_blobs(folder: Path) -> CopiedFiles:
    """Store the file of each blob of the database. Files that the backup lacks or has damaged become `problems`."""
    done = CopiedFiles()
    for blob in Blob.objects.order_by("sha256").iterator():
        if default_storage.exists(blob.name) and default_storage.size(blob.name) == blob.size:
            done.present += 1
            continue
        path = get_backup_path(folder, blob.sha256)
        if problem := find_problem(path, blob.sha256):
            done.problems.append(problem)
            continue
        with path.open("rb") as file:
            stored = default_storage.save(blob.name, File(file))
        if stored != blob.name:
            default_storage.delete(stored)
            raise CommandError(f"The storage has another file at {blob.name}. Restore into an empty storage.")
        done.copied += 1
        done.bytes += blob.size
    return done


def find_problem(path: Path, sha256: str) -> str:
    """Return what is wrong with a file of the backup, or nothing."""
    if not path.is_file():
        return f"The backup lacks the file {path}."
    found = hash_file(path)
    return "" if found == sha256 else f"The file {path} of the backup is damaged: its hash is {found}."


# --- keys ------------------------------------------------------------------------------------------------------------


def copy_keys(source: Path, target: Path, *, replace: bool = False) -> int:
    """Copy the keys that differ, readable for their owner only; return their number.

    Raises CommandError for a key that the target has with another value. With `replace` that one is kept under another
    name: each process of a new site creates missing keys when it starts.
    """
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    keys = (path for path in sorted(source.glob("*")) if path.is_file() and path.suffix != ".replaced")
    changed = 0
    for path in keys:
        copy = target / path.name
        if copy.exists():
            if copy.read_bytes() == path.read_bytes():
                continue
            if not replace:
                raise CommandError(f"{copy} is another key than {path}. Use another folder for the backup.")
            copy.rename(copy.with_name(f"{copy.name}.replaced"))
        shutil.copyfile(path, copy)
        copy.chmod(0o600)
        changed += 1
    return changed


def get_keys_folder() -> Path:
    return Path(settings.HOME) / "keys"
