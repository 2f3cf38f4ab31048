"""Safe extraction of tar files from the network: regular files below one folder, nothing else."""

from __future__ import annotations

import tarfile
from pathlib import Path, PurePosixPath

from trainer.sandbox.safe_files import UnsafeFileError, parse_relative_path, sanitize_line

RELEASE_BYTES = 64 << 20
ENTRY_BYTES = 256_000  # of an entry's files together; their tar may be a little larger
MAX_FILES = 5000


class ArchiveError(Exception):
    """The archive is refused. The message is a sentence."""


def unpack_archive(archive: Path, target: Path, folder: str, max_bytes: int) -> None:
    """Extract the members, all regular files or folders in `folder`, to `target`; overwrite existing files.

    Raise `ArchiveError`, and write nothing, if any member is refused.
    """
    try:
        with tarfile.open(archive, "r:") as tar:  # uncompressed only: prevents decompression bombs
            members = tar.getmembers()
            check_members(members, PurePosixPath(folder), max_bytes)
            for member in members:
                if member.isfile():
                    write_member(tar, member, target)
    except (tarfile.TarError, OSError, ValueError, OverflowError) as error:  # the last two: of numbers in PAX headers
        raise ArchiveError(f"The archive cannot be opened: {sanitize_line(str(error))}.") from error


def check_members(members: list[tarfile.TarInfo], folder: PurePosixPath, max_bytes: int) -> None:
    if len(members) > MAX_FILES:
        raise ArchiveError(f"The archive holds more than {MAX_FILES:,} files.")
    for member in members:
        try:
            path = parse_relative_path(member.name.removesuffix("/"))
        except UnsafeFileError as error:
            raise ArchiveError(f"The archive is refused: {error}") from error
        if not (member.isfile() or member.isdir()):
            raise ArchiveError(f"The archive is refused: {sanitize_line(member.name)} is neither a file nor a folder.")
        if not path.is_relative_to(folder) and not (member.isdir() and folder.is_relative_to(path)):
            raise ArchiveError(f"The archive is refused: {sanitize_line(member.name)} is outside {folder}/.")
    if sum(member.size for member in members) > max_bytes:
        raise ArchiveError(f"The archive is refused: its files are larger than {max_bytes:,} bytes together.")


def write_member(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    path = target / parse_relative_path(member.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(member)
    assert source is not None
    path.write_bytes(source.read())
