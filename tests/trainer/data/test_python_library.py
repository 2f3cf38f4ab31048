from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from trainer.data.corpora import Document, open_corpus, python_library
from trainer.errors import CorpusError


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return list(open_corpus("python-library"))


def test_corpus_contains_reference_builtins_and_sources(documents: list[Document]) -> None:
    found = {document.id: document.text for document in documents}
    assert sum(len(text) for text in found.values()) > 6_000_000
    assert 'The "for" statement' in found["topic/for"]
    assert "str.casefold" in found["builtin/str"]
    assert found["json/decoder.py"] == Path(sysconfig.get_path("stdlib"), "json/decoder.py").read_text()


def test_corpus_contains_nothing_of_this_installation(documents: list[Document]) -> None:
    for document in documents:
        assert not document.id.startswith("/")
        assert sys.prefix not in document.text
        assert not {"site-packages", "test", "tests", "tkinter", "idlelib"}.intersection(document.id.split("/"))


def test_order_mixes_all_parts(documents: list[Document]) -> None:
    first = {document.id.split("/")[0] for document in documents[: len(documents) // 4]}
    assert {"topic", "builtin", "asyncio", "email"} <= first


def test_fingerprint_ignores_location_times_and_installed_files(tmp_path: Path) -> None:
    library = Path(sysconfig.get_path("stdlib"))
    for name in ("os.py", "json", "pydoc_data"):
        copy = shutil.copytree if (library / name).is_dir() else shutil.copyfile
        copy(library / name, tmp_path / name)
    before = python_library._compute_fingerprint(tmp_path), list(python_library._iterate_documents(tmp_path))
    for name in ("site-packages/rich/x.py", "json/__pycache__/x.py", "json/tests/x.py", "turtle.py", "mine.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("added = True\n")
    (tmp_path / "os.py").touch()
    assert before == (python_library._compute_fingerprint(tmp_path), list(python_library._iterate_documents(tmp_path)))
    (tmp_path / "json" / "decoder.py").write_text("patched = True\n")
    assert before[0] != python_library._compute_fingerprint(tmp_path)


def test_python_without_library_folder_is_rejected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(CorpusError, match="needs a Python with its standard library"):
        open_corpus("python-library")


def test_argument_is_rejected() -> None:
    with pytest.raises(CorpusError, match="takes no argument"):
        open_corpus("python-library:3.12")
