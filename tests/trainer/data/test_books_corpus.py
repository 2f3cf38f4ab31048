from __future__ import annotations

import pytest

from tests.support.paths import REPOSITORY
from trainer.data.corpora import books, find_corpus, open_corpus
from trainer.data.errors import CorpusError
from trainer.protocol.files import hash_file

SHA256 = "5294d1cca98f5f0b0d3fe0dc273176623efeb1a30e825a15cc0638606048c77c"


def test_books_on_every_machine_have_the_same_hash() -> None:
    assert find_corpus("books").fingerprint() == {"files": [["books.jsonl.xz", SHA256]]}
    assert hash_file(books.FILE) == SHA256
    text = "".join(document.text for document in open_corpus("books"))
    assert "Call me Ishmael." in text
    assert 4_000_000 < len(text.encode()) < 5_000_000


def test_books_are_small_and_part_of_the_package() -> None:
    assert books.FILE.stat().st_size < 1_500_000
    assert books.FILE.is_relative_to(REPOSITORY / "trainer")


def test_books_with_an_argument_are_refused() -> None:
    with pytest.raises(CorpusError, match="books takes no argument"):
        find_corpus("books:pg2701")
