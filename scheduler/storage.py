"""Content-addressed files in Django's default storage: a folder, or S3 with presigned URLs.

A `Blob` row is created only after the whole file has arrived with the right hash.
"""

from __future__ import annotations

import hashlib
import io
import secrets
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from django.conf import settings
from django.core.files.base import File
from django.core.files.storage import default_storage
from django.db import IntegrityError, transaction
from django.db.models import ManyToOneRel, Model

import trainer
from scheduler.errors import InvalidMessageError, TooLargeError
from scheduler.models import Blob
from trainer import protocol

CHUNK = 2**20
RELEASED = (".py", ".jsonl", ".jsonl.xz")
"""Ends of the names of a release's files: sources, and texts that jobs read."""


class HashingStream(File):  # type: ignore[type-arg]
    """A stream that is hashed and counted while the storage reads it. Raises TooLargeError beyond `limit` bytes."""

    def __init__(self, read: Callable[[int], bytes], limit: int) -> None:
        super().__init__(None, name="incoming")
        self.reader = read
        self.limit = limit
        self.hash = hashlib.sha256()
        self.received = 0

    def read(self, size: int = -1) -> bytes:
        data = self.reader(CHUNK if size is None or size < 0 else size)
        self.received += len(data)
        if self.received > self.limit:
            raise TooLargeError(f"The file is larger than {self.limit:,} bytes.")
        self.hash.update(data)
        return data

    def chunks(self, chunk_size: int | None = None) -> Iterator[bytes]:
        while data := self.read(chunk_size or CHUNK):
            yield data

    def seekable(self) -> bool:
        return False

    def readable(self) -> bool:
        return True

    @property
    def closed(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing: the caller closes the stream."""


def store_stream(sha256: str, read: Callable[[int], bytes], limit: int | None = None) -> Blob:
    """Store a stream and return its blob. Raises TooLargeError, or InvalidMessageError for another hash.

    A file that is stored already is read to its end too: the sender has to prove that it has the file.
    """
    incoming = HashingStream(read, settings.BLOB_MAX_BYTES if limit is None else limit)
    known = Blob.objects.filter(sha256=sha256).first()
    if known is not None:
        for _ in incoming.chunks():
            pass
        check_hash(incoming.received, incoming.hash.hexdigest(), sha256)
        return known
    name = build_blob_name(sha256)
    try:
        default_storage.save(name, incoming)
        check_hash(incoming.received, incoming.hash.hexdigest(), sha256)
        return create_blob(sha256, name, incoming.received)
    except BaseException:
        default_storage.delete(name)
        raise


def check_hash(received: int, found: str, sha256: str) -> None:
    if found != sha256:
        raise InvalidMessageError(
            f"The {received:,} received bytes have the hash {found[:12]}, not {sha256[:12]}. "
            "Nothing was stored. Send the file again."
        )


class LocalFile(File):  # type: ignore[type-arg]
    """A file on this disk, which a storage folder on the same disk moves instead of copying it."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        super().__init__(file, name=path.name)
        self._path = path

    def temporary_file_path(self) -> str:
        return str(self._path)


def store_local_file(sha256: str, path: Path) -> Blob:
    """Store a file of this disk and return its blob. May move it. Raises InvalidMessageError for another hash."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
        check_hash(size, found, sha256)
        if known := Blob.objects.filter(sha256=sha256).first():
            return known
        file.seek(0)
        name = build_blob_name(sha256)
        try:
            default_storage.save(name, LocalFile(path, file))
            return create_blob(sha256, name, size)
        except BaseException:
            default_storage.delete(name)
            raise


def build_blob_name(sha256: str) -> str:
    return f"blobs/{sha256[:2]}/{sha256}.{secrets.token_hex(6)}"


def create_blob(sha256: str, name: str, size: int) -> Blob:
    """Return the file's row. If another sender was faster, delete this file and return the other one's row."""
    blob, created = Blob.objects.get_or_create(sha256=sha256, defaults={"name": name, "size": size})
    if not created:
        default_storage.delete(name)
    return blob


def store_bytes(content: bytes) -> Blob:
    """Store bytes and return their blob; equal bytes are stored once."""
    sha256 = hashlib.sha256(content).hexdigest()
    known = Blob.objects.filter(sha256=sha256).first()
    return known or store_stream(sha256, io.BytesIO(content).read, limit=len(content))


def open_blob(blob: Blob) -> File:  # type: ignore[type-arg]
    """Return the file, open for reading bytes."""
    return default_storage.open(blob.name, "rb")


def read_blob(blob: Blob) -> bytes:
    """Return the content of a small file."""
    with open_blob(blob) as file:
        content: bytes = file.read()
    return content


def copy_to_disk(blob: Blob, folder: Path) -> Path:
    """Return the file's path on this disk; a file in a bucket is downloaded to `folder`."""
    try:
        return Path(default_storage.path(blob.name))
    except NotImplementedError:
        path = folder / blob.sha256
        with open_blob(blob) as source, path.open("wb") as out:
            shutil.copyfileobj(source, out, CHUNK)
        return path


def get_presigned_url(blob: Blob) -> str | None:
    """Return a short-lived address to fetch the file from, or None where it has to go through us."""
    return default_storage.url(blob.name) if settings.S3_BUCKET else None


def delete_unreferenced_blob(sha256: str) -> bool:
    """Delete a file that no row refers to; return whether it was deleted.

    The row goes first. Names are never reused, so a file that is uploaded again meanwhile is another one. If a row
    begins to refer to it before the commit, the database raises IntegrityError, and everything stays.
    """
    with suppress(IntegrityError), transaction.atomic():
        blob = Blob.objects.select_for_update().filter(sha256=sha256).first()
        if blob is not None and not is_referenced(blob):
            blobs = Blob.objects.filter(sha256=sha256)
            blobs._raw_delete(blobs.db)  # blob.delete() would cascade to the references
            transaction.on_commit(lambda: default_storage.delete(blob.name))
            return True
    return False


def is_referenced(row: Model, *, except_by: type[Model] | None = None) -> bool:
    """Return whether a row of any app refers to this one, rows of `except_by` aside."""
    relations = [field for field in row._meta.get_fields(include_hidden=True) if isinstance(field, ManyToOneRel)]
    return any(
        relation.related_model._base_manager.filter(**{relation.field.name: row}).exists()
        for relation in relations
        if relation.related_model is not except_by
    )


def build_file_reference(blob: Blob, path: str) -> protocol.FileRef:
    return protocol.FileRef(path=path, sha256=blob.sha256, size=blob.size)


# --- the site's release of the trainer -----------------------------------------------------------------------------


def store_release() -> Blob:
    """Return this installation's `trainer/` as a tar; the same sources give the same bytes."""
    return store_bytes(pack_sources(Path(trainer.__file__).parent))


def pack_sources(package: Path) -> bytes:
    """Return an uncompressed tar of a package's Python files and texts, without owners and times of this machine."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(path for ending in RELEASED for path in package.rglob(f"*{ending}")):
            if path.is_symlink() or not path.is_file():
                continue
            content = path.read_bytes()
            member = tarfile.TarInfo(f"{package.name}/{path.relative_to(package).as_posix()}")
            member.size = len(content)
            member.mode = 0o644
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
