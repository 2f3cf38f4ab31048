"""`files:`: text, JSON lines, JSON and Parquet in local files, optionally compressed with gzip, xz, bzip2 or zstd.

The argument is a comma-separated list of globs, folders or file names. A glob takes every file it matches (`**` crosses
folders). A folder is searched for files with the endings in `FOLDER_NAMES`. What a file is, its content decides
(`file_formats.py`). A JSON record has either a "text", or a "prompt" and a "response", which are concatenated and of
which only the response is learned. Any other file is one document of UTF-8 text, unchanged but for a byte order mark.
Files are ordered by their names below their common folder, independently of the file system, the locale and the
location.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from trainer.data.corpora import Corpus, CorpusInfo, Document
from trainer.data.corpora.file_formats import LINES_NAMES, TEXT_NAMES, read_documents, strip_compression
from trainer.errors import CorpusError
from trainer.protocol.files import hash_file

# Applies to folders, which contain other files, too. A glob or a name takes any file.
FOLDER_NAMES = (*TEXT_NAMES, *LINES_NAMES, ".json", ".parquet")

INFO = CorpusInfo(license="that of your files", size="that of your files", source="files of this machine")


def build_corpus(argument: str) -> Corpus:
    files = _name_files(_find_files(argument), argument)
    return Corpus(fingerprint=partial(_compute_fingerprint, files), documents=partial(_iterate_documents, files))


def _find_files(argument: str) -> set[Path]:
    found: set[Path] = set()
    # A name may contain a comma, so the whole argument is tried first.
    patterns = [argument] if argument and _has_file(argument) else argument.split(",")
    for pattern in (part.strip() for part in patterns):
        if not pattern:
            raise CorpusError("files: needs a glob, a folder or a file after the colon, such as files:books/*.txt")
        matched = _expand_pattern(pattern)
        if not matched:
            raise CorpusError(f"files:{pattern} matches no file of text")
        found |= matched
    return found


def _has_file(name: str) -> bool:
    try:
        return Path(name).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # name too long, NUL, unknown user: there is no such file
        return False


def _expand_pattern(pattern: str) -> set[Path]:
    whole = os.path.expanduser(pattern)  # noqa: PTH111
    names = [pattern] if _has_file(pattern) else glob.glob(whole, recursive=True)  # noqa: PTH207
    found: set[Path] = set()
    for path in (Path(name).expanduser() for name in names):
        if path.is_dir():
            found |= _walk_folder(path)
        elif path.is_file():
            found.add(Path(os.path.normpath(path.absolute())))
    return found


def _walk_folder(folder: Path) -> set[Path]:
    found = set()
    for parent, folders, names in os.walk(os.path.normpath(folder.absolute()), onerror=_raise_corpus_error):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and strip_compression(name).endswith(FOLDER_NAMES):
                found.add(Path(parent, name))
    return found


def _raise_corpus_error(error: OSError) -> None:
    raise CorpusError(f"{error.filename} cannot be read: {error.strerror}")


def _name_files(paths: set[Path], argument: str) -> list[tuple[str, Path]]:
    """Return (name below the common folder, path), sorted by name. Document ids contain the name, not the path.

    A byte of a name that is not UTF-8 becomes an escape, since ids and messages are text.
    """
    try:
        common = os.path.commonpath([path.parent for path in paths])
    except ValueError as error:  # two drives
        raise CorpusError(f"files:{argument} matches files without a common folder") from error
    names = ((path.relative_to(common).as_posix(), path) for path in paths)
    return sorted((name.encode("utf-8", "backslashreplace").decode(), path) for name, path in names)


def _compute_fingerprint(files: list[tuple[str, Path]]) -> dict[str, Any]:
    return {"files": [[name, _hash_file(name, path)] for name, path in files]}


def _hash_file(name: str, path: Path) -> str:
    try:
        return hash_file(path)
    except OSError as error:
        raise CorpusError(f"{name} cannot be read: {error.strerror or error}") from error


def _iterate_documents(files: list[tuple[str, Path]]) -> Iterator[Document]:
    for name, path in files:
        yield from read_documents(name, path)
