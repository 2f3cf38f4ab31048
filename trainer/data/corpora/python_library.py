"""`python-library`: the documentation and source code of this Python installation.

It has three parts: the topics of `help()`, the documentation of built-in types and functions, and the modules of the
standard library. Nothing is downloaded. The text is the same for every installation of one Python build: it does not
depend on paths, times, compiled files or installed packages. A distribution that patches the standard library has other
text and so another hash.

Not covered: modules that Debian and others package separately, tests, tables of character codes, generated files.
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

from trainer.data.corpora import Corpus, CorpusInfo, Document
from trainer.errors import CorpusError

# Not in every installation: packaged separately by distributions, or for one system only.
PACKAGED_SEPARATELY = {"distutils", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtle", "turtledemo", "venv"}
# Tables instead of text: character codes, and the topics, which are read separately.
TABLES = {"encodings", "pydoc_data"}
TOPICS = "pydoc_data/topics.py"
SKIPPED_FOLDERS = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test"}
DOCUMENTED_TYPES = (type, type(len))

INFO = CorpusInfo(license="PSF License 2.0", size="about 25 MB of text", source="this Python installation")


def build_corpus(argument: str) -> Corpus:
    if argument:
        raise CorpusError(f"python-library takes no argument, but {argument!r} was given")
    library = Path(sysconfig.get_path("stdlib"))
    if not (library / "os.py").is_file():
        raise CorpusError("python-library needs a Python with its standard library in a folder; this one has none")
    return Corpus(fingerprint=partial(_compute_fingerprint, library), documents=partial(_iterate_documents, library))


def _compute_fingerprint(library: Path) -> dict[str, Any]:
    """Return the hash of all files, and the Python build, which has the built-in documentation."""
    digest = hashlib.sha256()
    for name in [TOPICS, *sorted(_iterate_modules(library))]:
        data = (library / name).read_bytes() if (library / name).is_file() else b""
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return {"python": sys.version, "sha256": digest.hexdigest()}


def _iterate_documents(library: Path) -> Iterator[Document]:
    documents = {**_load_topics(library), **_load_builtins()}
    names = [*documents, *_iterate_modules(library)]
    # Ordered by hash, so that a limit takes text from the whole library.
    for name in sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest()):
        text = documents[name] if name in documents else _read_source(library, name)
        if text.strip():
            yield Document(name, text)


def _load_topics(library: Path) -> dict[str, str]:
    """Return the topics of `help()`: pydoc_data/topics.py assigns one dict of strings."""
    path = library / TOPICS
    if not path.is_file():
        return {}
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        value = getattr(statement, "value", None)
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(value, ast.Dict):
            return {f"topic/{name}": text for name, text in ast.literal_eval(value).items()}
    return {}


def _load_builtins() -> dict[str, str]:
    documents = {}
    for name, value in sorted(vars(builtins).items()):
        # Excludes what `site` adds (copyright, exit, ...), which contains paths of the installation.
        if isinstance(value, DOCUMENTED_TYPES) and not name.startswith("_"):
            documents[f"builtin/{name}"] = "\n\n".join(_iterate_docstrings(name, value))
    return documents


def _iterate_docstrings(name: str, value: Any) -> Iterator[str]:
    yield f"{name}\n{inspect.getdoc(value) or ''}".rstrip()
    for member, method in sorted(vars(value).items()) if isinstance(value, type) else ():
        if not member.startswith("_") and (text := inspect.getdoc(method)):
            yield f"{name}.{member}\n{text}"


def _iterate_modules(library: Path) -> Iterator[str]:
    """Yield the names, relative to the library, of the .py files of the standard modules of this Python version."""
    included = sys.stdlib_module_names - PACKAGED_SEPARATELY - TABLES
    for top in library.iterdir():
        if top.suffix == ".py" and top.stem in included:
            yield top.name
        elif top.name in included and top.is_dir():
            names = (path.relative_to(library) for path in top.rglob("*.py"))
            yield from (name.as_posix() for name in names if not SKIPPED_FOLDERS.intersection(name.parts))


def _read_source(library: Path, name: str) -> str:
    try:
        data = (library / name).read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding).replace("\r\n", "\n")
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise CorpusError(f"python-library cannot read {name}: {error}") from error
