from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from trainer.data.corpora import find_corpus, open_corpus, python_packages
from trainer.errors import CorpusError


def test_text_is_that_of_the_pinned_hash_without_tests_and_tables() -> None:
    corpus = find_corpus("python-packages")
    assert corpus.fingerprint() == {"sha256": python_packages.SHA256}
    found = {document.id: document.text for document in corpus.documents()}
    assert sum(len(text) for text in found.values()) > 18_000_000
    assert "Dijkstra" in found["networkx/algorithms/shortest_paths/weighted.py"]
    assert not any({"tests", "benchmarks", "_antlr"}.intersection(name.split("/")) for name in found)


def test_limit_takes_text_from_both_packages() -> None:
    first = [document.id.split("/")[0] for document, _ in zip(open_corpus("python-packages"), range(60), strict=False)]
    assert set(first) == {"networkx", "sympy"}


def test_versions_are_those_of_a_checkout() -> None:
    pinned = {f"{name}=={version}" for name, version in python_packages.PACKAGES.items()}
    groups = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["dependency-groups"]
    assert pinned <= set(groups["dev"])
    assert pinned <= set((REPOSITORY / "requirements.lock").read_text().split())


@contextmanager
def changed_copy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put a changed copy of NetworkX before the installed one on the path."""
    package = metadata.distribution("networkx")
    site = Path(str(package.locate_file("")))
    for name in ("networkx", "networkx-3.6.1.dist-info"):
        shutil.copytree(site / name, folder / name)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


def test_changed_file_or_other_version_is_refused_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with changed_copy(tmp_path, monkeypatch) as folder:
        assert find_corpus("python-packages").fingerprint() == {"sha256": python_packages.SHA256}
        (folder / "networkx" / "convert.py").write_text("patched = True\n")
        with pytest.raises(CorpusError, match=r"changed .*: pip install networkx==3\.6\.1 sympy==1\.14\.0"):
            find_corpus("python-packages").fingerprint()
        text = (folder / "networkx-3.6.1.dist-info" / "METADATA").read_text()
        (folder / "networkx-3.6.1.dist-info" / "METADATA").write_text(text.replace("Version: 3.6.1", "Version: 3.6"))
        with pytest.raises(CorpusError, match=r"networkx 3\.6 is installed: pip install"):
            find_corpus("python-packages")


def test_argument_is_rejected() -> None:
    with pytest.raises(CorpusError, match="takes no argument"):
        open_corpus("python-packages:3.12")
