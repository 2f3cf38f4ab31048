from __future__ import annotations

import gzip
import json
import lzma
import os
from pathlib import Path

import pytest

from trainer.data.corpora import Document, find_corpus, open_corpus
from trainer.data.corpora import files as files_corpus
from trainer.data.errors import CorpusError


def texts(spec: str) -> dict[str, str]:
    return {document.id: document.text for document in open_corpus(spec)}


def lines(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def test_glob_reads_plain_and_compressed_files_in_name_order(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes("zwei\r\nüber".encode())
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one"))
    (tmp_path / "c.txt.xz").write_bytes(lzma.compress(b"three"))
    assert list(open_corpus(f"files:{tmp_path}/*")) == [
        Document("a.txt.gz", "one"),
        Document("b.txt", "zwei\r\nüber"),
        Document("c.txt.xz", "three"),
    ]


@pytest.mark.parametrize(("ending", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_jsonl_line_is_a_document(tmp_path: Path, ending: str, pack: object) -> None:
    data = b"\xef\xbb\xbf" + lines({"text": "first\nlines"}, {"id": 7, "text": ""}, {"text": "third"}) + b"\n"
    (tmp_path / f"x.jsonl{ending}").write_bytes(pack(data))  # type: ignore[operator]
    found = texts(f"files:{tmp_path}/x.jsonl{ending}")
    assert found == {f"x.jsonl{ending}:1": "first\nlines", f"x.jsonl{ending}:3": "third"}


def test_overlapping_globs_read_each_file_once(tmp_path: Path) -> None:
    for name in ("one/a.txt", "two/a.txt", "two/b.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    spec = f"files:{tmp_path}/two/*.txt, {tmp_path}/one,{tmp_path}/one/../two/*"
    assert list(texts(spec)) == ["one/a.txt", "two/a.txt", "two/b.md"]


def test_file_name_may_contain_a_comma(tmp_path: Path) -> None:
    (tmp_path / "a,b.txt").write_text("text")
    assert texts(f"files:{tmp_path}/a,b.txt") == {"a,b.txt": "text"}


def test_folder_yields_text_files_only(tmp_path: Path) -> None:
    for name in ("deep/er/a.txt", "b.JSONL.gz", "picture.png", ".hidden/c.txt", ".d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(gzip.compress(lines({"text": "j"})) if name.endswith("gz") else b"t")
    assert texts(f"files:{tmp_path}") == {"b.JSONL.gz:1": "j", "deep/er/a.txt": "t"}


def test_ids_do_not_depend_on_location(tmp_path: Path) -> None:
    for home in ("here", "there/deeper"):
        (tmp_path / home / "books").mkdir(parents=True)
        (tmp_path / home / "books" / "a.txt").write_text("text")
    here, there = (f"files:{tmp_path}/{home}/books/*" for home in ("here", "there/deeper"))
    assert texts(here) == texts(there) == {"a.txt": "text"}
    assert find_corpus(here).fingerprint() == find_corpus(there).fingerprint()


def test_invalid_utf8_error_names_file_and_offset(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 au lait")
    with pytest.raises(CorpusError, match=r"^a.txt is not UTF-8 text: byte 0xe9 at offset 3$"):
        texts(f"files:{tmp_path}/a.txt")
    (tmp_path / "b.jsonl").write_bytes(lines({"text": "x"}) + b'{"text": "caf\xe9"}\n')
    with pytest.raises(CorpusError, match=r"^b.jsonl is not UTF-8 text: byte 0xe9 at offset 27$"):
        texts(f"files:{tmp_path}/b.jsonl")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{nonsense}\n", "x.jsonl, line 2, is not JSON"),
        (b"[1]\n", 'x.jsonl, line 2, has no "text"'),
        (b'{"text": 3}\n', 'x.jsonl, line 2, has no "text"'),
        (b'{"text": "\\ud800"}\n', "x.jsonl, line 2, holds half a surrogate pair"),
    ],
)
def test_invalid_jsonl_error_names_line(tmp_path: Path, line: bytes, complaint: str) -> None:
    (tmp_path / "x.jsonl").write_bytes(lines({"text": "good"}) + line)
    with pytest.raises(CorpusError, match=complaint):
        texts(f"files:{tmp_path}/x.jsonl")


@pytest.mark.parametrize(("name", "pack"), [("a.txt.gz", gzip.compress), ("a.txt.xz", lzma.compress)])
def test_truncated_archive_error_names_file(tmp_path: Path, name: str, pack: object) -> None:
    data = pack(os.urandom(3000).hex().encode())  # type: ignore[operator]
    for damaged in (data[:-200], b"not an archive"):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(CorpusError, match=f"^{name} is damaged or cut short"):
            texts(f"files:{tmp_path}/{name}")


@pytest.mark.parametrize("argument", ["", "nowhere/*.txt", "nowhere.txt", ",", "x" * 5000, "~nobody-of-that-name/x"])
def test_pattern_without_matches_raises_one_line(argument: str) -> None:
    with pytest.raises(CorpusError) as caught:
        open_corpus(f"files:{argument}")
    assert "\n" not in str(caught.value)
    assert argument.strip(",") in str(caught.value)


def test_unknown_kind_error_lists_kinds() -> None:
    with pytest.raises(CorpusError, match="files, finephrase, fineweb-edu, python-docs"):
        open_corpus("wikipedia")


@pytest.mark.parametrize("text", ["word line\n" * 40, "aé€😀" * 40, "\n" + "x" * 300, "x" * 64])
def test_large_file_is_split_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(files_corpus, "LARGEST_DOCUMENT", 64)
    (tmp_path / "a.txt").write_text(text)
    documents = list(open_corpus(f"files:{tmp_path}/a.txt"))
    assert "".join(document.text for document in documents) == text
    assert all(len(document.text.encode()) <= 64 for document in documents)
    assert len({document.id for document in documents}) == len(documents)


def test_fingerprint_changes_with_content_at_same_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    before, times = find_corpus(f"files:{path}").fingerprint(), path.stat()
    path.write_text("two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert find_corpus(f"files:{path}").fingerprint() != before
