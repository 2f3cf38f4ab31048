"""`python-library` — the documentation and the source text that every Python installation carries.

Three parts: the topics of the language reference behind `help()`, the documentation of the built-in types and
functions, and the standard library's own modules. Nothing is downloaded, and the text is the same for every
installation of one Python build: it depends on neither paths, times, compiled files nor installed packages. (A
distribution that patches the standard library has its own text, and so another hash.)

Not taken: modules that Debian and others ship apart, tests, tables of character codes, generated files.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import io
import sys
import sysconfig
import tokenize
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from trainer.data.corpora.document import Corpus, CorpusError, Document

# Not in every installation: packaged apart by distributions, or only on one system.
SHIPPED_APART = {"distutils", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtle", "turtledemo", "venv"}
# Tables rather than text: character codes, and the topics, which are read as topics.
TABLES = {"encodings", "pydoc_data"}
TOPICS = "pydoc_data/topics.py"
SKIPPED_FOLDERS = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test"}
KINDS_OF_DOCUMENTED = (type, type(len))


def find(argument: str) -> Corpus:
    if argument:
        raise CorpusError(f"python-library takes no argument, but {argument!r} was given")
    library = Path(sysconfig.get_path("stdlib"))
    if not (library / "os.py").is_file():
        raise CorpusError("python-library needs a Python with its standard library in a folder; this one has none")
    return Corpus(fingerprint=partial(_fingerprint, library), documents=partial(_documents, library))


def _fingerprint(library: Path) -> dict[str, Any]:
    """The files' bytes, and the build whose built-in documentation is read."""
    digest = hashlib.sha256()
    for name in [TOPICS, *sorted(_modules(library))]:
        data = (library / name).read_bytes() if (library / name).is_file() else b""
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return {"python": sys.version, "sha256": digest.hexdigest()}


def _documents(library: Path) -> Iterator[Document]:
    documents = {**_topics(library), **_builtins()}
    names = [*documents, *_modules(library)]
    # In the order of a hash: whatever a limit takes is spread over the library.
    for name in sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest()):
        text = documents[name] if name in documents else _source(library, name)
        if text.strip():
            yield Document(name, text)


def _topics(library: Path) -> dict[str, str]:
    """The reference behind help("for"): pydoc_data/topics.py is one assignment of a dict of strings."""
    path = library / TOPICS
    if not path.is_file():
        return {}
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        value = getattr(statement, "value", None)
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(value, ast.Dict):
            return {f"topic/{name}": text for name, text in ast.literal_eval(value).items()}
    return {}


def _builtins() -> dict[str, str]:
    documents = {}
    for name, value in sorted(vars(builtins).items()):
        # What `site` adds (copyright, exit, ...) names paths of the installation and is of neither kind.
        if isinstance(value, KINDS_OF_DOCUMENTED) and not name.startswith("_"):
            documents[f"builtin/{name}"] = "\n\n".join(_described(name, value))
    return documents


def _described(name: str, value: Any) -> Iterator[str]:
    yield f"{name}\n{inspect.getdoc(value) or ''}".rstrip()
    for member, method in sorted(vars(value).items()) if isinstance(value, type) else ():
        if not member.startswith("_") and (text := inspect.getdoc(method)):
            yield f"{name}.{member}\n{text}"


def _modules(library: Path) -> Iterator[str]:
    """Names below the library's folder of its .py files, of the modules that this version of Python calls its own."""
    taken = sys.stdlib_module_names - SHIPPED_APART - TABLES
    for top in library.iterdir():
        if top.suffix == ".py" and top.stem in taken:
            yield top.name
        elif top.name in taken and top.is_dir():
            names = (path.relative_to(library) for path in top.rglob("*.py"))
            yield from (name.as_posix() for name in names if not SKIPPED_FOLDERS.intersection(name.parts))


def _source(library: Path, name: str) -> str:
    try:
        data = (library / name).read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding).replace("\r\n", "\n")
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise CorpusError(f"python-library cannot read {name}: {error}") from error
