from __future__ import annotations

import gzip
import json
import lzma
import os
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from trainer.data.corpora import Document, file_formats, find_corpus, open_corpus
from trainer.errors import CorpusError


def texts(spec: str) -> dict[str, str]:
    return {document.id: document.text for document in open_corpus(spec)}


def lines(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def test_glob_reads_plain_and_compressed_files_in_name_order(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes("zwei\r\nüber".encode())
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one"))
    (tmp_path / "c.txt.xz").write_bytes(lzma.compress(b"three"))
    (tmp_path / "d.txt").write_bytes("Grüße\r\n".encode("utf-16"))
    rows = lines({"text": "first\nlines"}, {"id": 7, "text": ""}, {"text": "third"})
    (tmp_path / "e.jsonl").write_bytes(b"\xef\xbb\xbf" + rows + b"\n")
    assert list(open_corpus(f"files:{tmp_path}/*")) == [
        Document("a.txt.gz", "one"),
        Document("b.txt", "zwei\r\nüber"),
        Document("c.txt.xz", "three"),
        Document("d.txt", "Grüße\r\n"),
        Document("e.jsonl:1", "first\nlines"),
        Document("e.jsonl:3", "third"),
    ]


def compress_zstd(data: bytes) -> bytes:
    """Return two frames, as parallel compressors write them."""
    half = len(data) // 2
    return b"".join(bytes(pyarrow.compress(part, "zstd", asbytes=True)) for part in (data[:half], data[half:]))


def pretty(*records: object) -> bytes:
    return b"\n".join(json.dumps(record, indent=2).encode() for record in records)


def pack_gzip(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)  # the names of tests contain it


TWO = ({"text": "one"}, {"text": "two", "id": 7})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c4-train.00000-of-01024.json.gz", pack_gzip(lines(*TWO))),
        ("v1_5r2_sample-0.json.gz", pack_gzip(lines({"text": "one", "source": "dolma"}, TWO[1]))),
        ("wiki_00", lines(*TWO)),
        ("x.txt", lines(*TWO)),
        ("x.txt", pack_gzip(lines(*TWO))),
        ("x.jsonl.zst", compress_zstd(lines(*TWO))),
        ("x.jsonl.zst", b"\x50\x2a\x4d\x18\4\0\0\0size" + compress_zstd(lines(*TWO))),  # as pzstd writes it
        ("x.json", json.dumps(TWO).encode()),
        ("x.json", b"\xef\xbb\xbf\n" + pretty(TWO)),
        ("x.json", b'["one", "two"]'),
        ("x.txt", b'"one"\n"tw\\u006f"\n'),
        ("x.json.xz", lzma.compress(json.dumps([*TWO, {"text": None}, {"text": ""}]).encode())),
        (
            "x.jsonl",
            json.dumps(TWO[0]).encode("utf-16") + "\n".encode("utf-16-le") + json.dumps(TWO[1]).encode("utf-16-le"),
        ),
    ],
)
def test_file_is_what_its_content_says(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert list(texts(f"files:{tmp_path}/{name}").values()) == ["one", "two"]


def test_parquet_rows_are_documents(tmp_path: Path) -> None:
    table = pyarrow.table({"id": [1, 2, 3], "text": ["one", None, "two"]})
    parquet.write_table(table, tmp_path / "train-00000.parquet")
    assert texts(f"files:{tmp_path}") == {"train-00000.parquet:1": "one", "train-00000.parquet:3": "two"}
    parquet.write_table(pyarrow.table({"content": ["one"]}), tmp_path / "train-00001.parquet")
    with pytest.raises(CorpusError, match=r"train-00001\.parquet has no column text: its columns are content"):
        texts(f"files:{tmp_path}")


@pytest.mark.parametrize("size", [7, 64, 1 << 20])
def test_json_array_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    records = [{"text": f"é{number} " * number, "meta": {"list": [1, "]"]}} for number in range(1, 60)]
    (tmp_path / "x.json").write_bytes(json.dumps(records, ensure_ascii=False, indent=1).encode())
    monkeypatch.setattr(file_formats, "HEAD_BYTES", max(size, 1200))
    found = texts(f"files:{tmp_path}/x.json")
    assert found == {f"x.json:{number}": record["text"] for number, record in enumerate(records, start=1)}


TABLES = (
    b"id,text\n1,one\n",
    b',text,label\n0,"a, ""b""\nc",1\n1,"d\n\ne",0\n',
    b"\ttext\n0\tone\n1\ttwo\n",
    b"sep=;\nid;text\n" + b"7;one, two\n" * 19,
    b"name, age, city\n" + b"Ada, 36, London\n" * 5,
    b"5,really good,0\n" * 5,
    b"1\tthe\tDT\n2\tship\tNN\n\n" * 5,
    b"id,text\n" + b"1,one, two\n2,three\nfour\n" * 9,
    b'id,text\n1,"he said \\"no\\", and"\n2,two\n',
    b"1\x01one\n2\x01two\n",
    b'"text"\n"one"\n"two"\n',
    b"id,text\n" + b'1,"' + b"one\n" * (1 << 19) + b'"\n',
)


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("x.json", b'{"data": [1]}', r"is JSON without a \"text\".*its keys are data"),
        ("package.json", pretty({"name": "x", "version": "1"}), "its keys are name, version"),
        ("x.json", b"", "is not JSON with documents"),
        ("x.json", b'[{"text": "one"}, {"text": "tw', "item 2, is not JSON, or the file is cut short"),
        ("x.json", b'[{"text": "one"}, {"text": "two"}', "item 3, is not JSON, or the file is cut short"),
        ("x.txt", b"PK\x03\x04" + bytes(40), "is a ZIP archive"),
        ("x.tar.gz", pack_gzip(b"name" + bytes(253) + b"ustar" + bytes(250)), "is a tar archive"),
        ("x.txt", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a pointer of Git LFS"),
        ("x.warc.wet.gz", pack_gzip(b"WARC/1.0\r\nWARC-Type: conversion\r\n\r\none"), "is an archive of a web crawl"),
        ("x.txt", lines({"content": "one"}, {"content": "two"}), "is JSON without.*its keys are content"),
        ("x.md", pack_gzip(lines({"body": "x", "id": 1}) * 9), "its keys are body, id"),
        ("x.txt", b"\n<!DOCTYPE HTML>\n<p>one</p>", "is an HTML page"),
        ("x", b"\xef\xbb\xbf<html lang='en'>one</html>", "is an HTML page"),
        ("x.txt", b"<?xml version='1.0'?><pages/>", "is an XML document"),
        ("x.bin", b"ab\0cd", "has NUL bytes"),
        ("x.csv", b"one\n", "is a table"),
        *((f"x{ending}", b"one\n", "is markup or code") for ending in (".xml", ".html", ".sql", ".yaml.gz"[:5])),
        *(
            ("x.txt", content, "is markup or code")
            for content in (b"<p>a</p>\n", b"<meta a='b'>", b"<page>\na\n</page>")
        ),
        *(("x.txt", content, "lists or dicts") for content in (b'[1, "a"]\n[2, "b"]\n', b"{'text': 'one'}\n")),
        ("x.txt", b'[["id", "text"], [1, "one"]]', "lists or dicts"),
        ("x.txt", b'{"content": "one"}', "its keys are content"),
        ("x.txt", b'A title\n{"text": "one"}\n{"text": "two"}\n', "has a line before"),
        *(("x", content, "is a table") for content in TABLES),
        *(("x.txt.gz", pack_gzip(content), "is a table") for content in TABLES),
        ("x", b'[{"body": "one"}, {"body": "two"}]', "its keys are body"),
        ("x.txt", b'{"data": [{"text": "one"}]}', "its keys are data"),
        ("x.txt", b'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/">', "is an XML document"),
        ("x.txt", b"<!-- saved -->\n<head><title>", "is an HTML page"),
        ("x.txt.gz", pack_gzip(pack_gzip(b"one")), "is compressed once more"),
        ("x.txt", b"one\n" * (1 << 19) + b"\0", "has NUL bytes"),
        ("x.jsonl.gz", b"<html>not found</html>", "is damaged or cut short"),
        ("x.jsonl.zst", compress_zstd(lines(*TWO) * 99)[:-9], "is damaged or cut short|cannot be read"),
        ("x.parquet", b"PAR1" + bytes(40), "is damaged or cut short"),
        ("x.txt.gz", pack_gzip(bytes(range(256)) * 9)[:-200], "is damaged or cut short"),
        ("x.txt.xz", b"not an archive", "is damaged or cut short"),
        ("x.txt", b"caf\xe9 au lait", "is not UTF-8 text: byte 0xe9 at offset 3$"),
        ("x.jsonl", lines({"text": "x"}) + b'{"text": "caf\xe9"}\n', "is not UTF-8 text: byte 0xe9 at offset 27$"),
        ("x.jsonl", lines({"text": "good"}) + b"{nonsense}\n", "line 2, is not JSON"),
        ("x.jsonl", lines({"text": "good"}, {"text": 3}), 'line 2, has no "text"'),
        ("x.jsonl", lines({"text": "good"}) + b'{"text": "\\ud800"}\n', "line 2, holds half a surrogate pair"),
    ],
)
def test_file_without_documents_is_refused_and_named(tmp_path: Path, name: str, content: bytes, found: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=f"^{name}.*({found})"):
        texts(f"files:{tmp_path}/{name}")


@pytest.mark.parametrize(
    "content",
    [lines(*TWO), json.dumps(TWO).encode(), pretty(TWO), pretty(*TWO), json.dumps(["\\" * 50, "two"]).encode()],
)
@pytest.mark.parametrize("name", ["x", "x.txt", "x.json"])
def test_record_longer_than_what_decides_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes
) -> None:
    content = content.replace(b"one", b"one " * 50)
    (tmp_path / name).write_bytes(content)
    for size in range(20, 48):
        monkeypatch.setattr(file_formats, "HEAD_BYTES", size)
        assert len(texts(f"files:{tmp_path}/{name}")) == 2, size


@pytest.mark.parametrize(
    "text",
    [
        "{x} is a set.\n",
        "[1] A. Author\n",
        "{}\n",
        '{"a": 1}\n{x} is a set.\n',
        '"Come\\now."\n"No" is short.\n',
        "text\nis what you read.\n",
        "HAMLET:\tTo be.\nGHOST:\tMark me.\n" * 3,
        "1.\tOne\n2.\tTwo\n3.\tThree\n4.\tFour\n5.\tFive\n",
        "ship\ta large boat\nboat\ta small ship\n",
        "Contents\t1\nThe ship\t7\nThe sea\t9\nThe end\t11\nNotes\t12\n",
        "".join(f"Gen|1|{verse}| In the beginning\n" for verse in range(9)),
        "我来,我见,我胜\n" * 9,
        "12:00:01,123 INFO start\n" * 9,
        "1,000 people came.\n" * 9,
        "mov r1,r2\n" * 9 + "add r1,r2,r3\n" * 9,
        "add r1,r2,r3\n" * 9,
        "for(i=0;i<n;i++)\n" * 9,
        "(1,2,3),\n" * 9,
        "a,b\nc,d\n",
        '{"a": 1}\nis JSON.\n',
        "<p>",
        "[]",
        "[section]\nx = 1\n",
        '"Come, Ada."\n"No, never."\n',
        "Of ships, and men,\nOf shoes, and wax,\nOf cabbages, and kings,\nOf seas, and heat,\nOf pigs, and wings,\n",
        "To sow, to reap, to rest\n" * 9,
        "| a | b |\n| - | - |\n| 1 | 2 |\n",
        "A table:\n\na,b\n1,2\n\nIt is short.\n",
        "int a;\nint b;\nint c;\nint d;\nint e;\n",
        "all:\n\tmake a\n\tmake b\n",
        '<p align="center"><img src="x.png"></p>\n\n# x\n',
    ],
)
def test_text_that_looks_like_data_stays_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.md").write_text(text)
    assert texts(f"files:{tmp_path}") == {"x.md": text}


def test_name_that_is_not_utf8_becomes_an_escape(tmp_path: Path) -> None:
    for name in (b"caf\xe9.txt", b"caf\xe8.txt"):
        (tmp_path / os.fsdecode(name)).write_text("text")
    found = texts(f"files:{tmp_path}")
    assert list(found) == ["caf\\udce8.txt", "caf\\udce9.txt"]
    json.dumps(find_corpus(f"files:{tmp_path}").fingerprint(), ensure_ascii=False).encode()


def test_overlapping_globs_read_each_file_once(tmp_path: Path) -> None:
    for name in ("one/a.txt", "two/a.txt", "two/b.md", "two/c,d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    spec = f"files:{tmp_path}/two/*.txt, {tmp_path}/one,{tmp_path}/one/../two/*"
    assert list(texts(spec)) == ["one/a.txt", "two/a.txt", "two/b.md", "two/c,d.txt"]
    assert texts(f"files:{tmp_path}/two/c,d.txt") == {"c,d.txt": "two/c,d.txt"}


def test_folder_yields_text_files_only(tmp_path: Path) -> None:
    for name in ("deep/er/a.txt", "b.JSONL.gz", "picture.png", ".hidden/c.txt", ".d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(pack_gzip(lines({"text": "j"})) if name.endswith("gz") else b"t")
    assert texts(f"files:{tmp_path}") == {"b.JSONL.gz:1": "j", "deep/er/a.txt": "t"}


@pytest.mark.parametrize("argument", ["", "nowhere/*.txt", "nowhere.txt", ",", "x" * 5000, "~nobody-of-that-name/x"])
def test_pattern_without_matches_raises_one_line(argument: str) -> None:
    with pytest.raises(CorpusError) as caught:
        open_corpus(f"files:{argument}")
    assert "\n" not in str(caught.value)
    assert argument.strip(",") in str(caught.value)


@pytest.mark.parametrize("text", ["word line\n" * 40, "aé€😀" * 40, "\n" + "x" * 300, "x" * 64])
def test_large_file_is_split_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(file_formats, "LARGEST_DOCUMENT", 64)
    (tmp_path / "a.txt").write_text(text)
    documents = list(open_corpus(f"files:{tmp_path}/a.txt"))
    assert "".join(document.text for document in documents) == text
    assert all(len(document.text.encode()) <= 64 for document in documents)
    assert len({document.id for document in documents}) == len(documents)
