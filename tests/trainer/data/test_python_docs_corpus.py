from __future__ import annotations

import pytest

from tests.support.paths import REPOSITORY
from trainer.data.corpora import find_corpus, open_corpus, python_docs
from trainer.errors import CorpusError
from trainer.protocol.files import hash_file

SHA256 = "dd38bc8716dbc85510b1603272e63eed4a04cb4cc9b4b23990c3d9edf10e01eb"


def test_python_docs_on_every_machine_have_the_same_hash() -> None:
    assert find_corpus("python-docs").fingerprint() == {"files": [["python_docs.jsonl.xz", SHA256]]}
    assert hash_file(python_docs.FILE) == SHA256
    text = "".join(document.text for document in open_corpus("python-docs"))
    assert "Whetting Your Appetite" in text
    assert 4_000_000 < len(text.encode()) < 5_000_000


def test_python_docs_are_small_and_part_of_the_package() -> None:
    assert python_docs.FILE.stat().st_size < 1_500_000
    assert python_docs.FILE.is_relative_to(REPOSITORY / "trainer")


def test_python_docs_with_an_argument_are_refused() -> None:
    with pytest.raises(CorpusError, match="python-docs takes no argument"):
        find_corpus("python-docs:tutorial")
