"""`python-packages`: the documentation and source code of pinned versions of SymPy and NetworkX.

PyTorch needs both packages, so they are installed on every machine that trains. Their wheels have no compiled files and
are the same for every version of Python and every machine, and two fifths of their text are docstrings. The SHA-256
of all files is pinned here: the text is this one or an error, for any version of Python.

Not covered: tests, tables of benchmarks, generated parsers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from trainer.data.corpora import Corpus, CorpusInfo, Document
from trainer.errors import CorpusError

PACKAGES = {"networkx": "3.6.1", "sympy": "1.14.0"}  # as in the group dev of pyproject.toml
SHA256 = "ece55cc9ba13e15916a1e1eb935cb1817d6843fb51fa288a81e4a4864a69cd2a"
"""Hash of the names and contents of all files."""
SKIPPED_FOLDERS = {"_antlr", "benchmarks", "test", "tests"}

INFO = CorpusInfo(
    license="BSD 3-Clause (SymPy and NetworkX)",
    size="about 19 MB of text",
    source=", ".join(f"{name} {version}" for name, version in PACKAGES.items()),
)


def build_corpus(argument: str) -> Corpus:
    if argument:
        raise CorpusError(f"python-packages takes no argument, but {argument!r} was given")
    files = _find_files()
    return Corpus(fingerprint=lambda: _check_files(files), documents=lambda: _iterate_documents(files))


def _find_files() -> dict[str, Path]:
    """Return the files by name. Raise CorpusError if a package is missing or has another version."""
    files: dict[str, Path] = {}
    for name, version in PACKAGES.items():
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise _build_error(f"{name} is not installed") from None
        if package.version != version:
            raise _build_error(f"{name} {package.version} is installed")
        for file in package.files or ():
            if file.suffix == ".py" and not SKIPPED_FOLDERS.intersection(file.parts):
                files[file.as_posix()] = Path(str(package.locate_file(file)))
    return files


def _build_error(problem: str) -> CorpusError:
    wanted = " ".join(f"{name}=={version}" for name, version in PACKAGES.items())
    return CorpusError(f"python-packages reads pinned packages, but {problem}: pip install {wanted}")


def _check_files(files: dict[str, Path]) -> dict[str, Any]:
    digest = hashlib.sha256()
    for name in sorted(files):
        data = _read(name, files[name])
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    if digest.hexdigest() != SHA256:
        raise _build_error("their files were changed (add --force-reinstall)")
    return {"sha256": SHA256}


def _iterate_documents(files: dict[str, Path]) -> Iterator[Document]:
    # Ordered by hash, so that a limit takes text from all parts.
    for name in sorted(files, key=lambda name: hashlib.sha256(name.encode()).digest()):
        text = _read(name, files[name]).decode()
        if text.strip():
            yield Document(name, text)


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _build_error(f"{name} cannot be read: {error.strerror or error}") from error
