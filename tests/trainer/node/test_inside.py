"""What a job has written is read without trusting it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainer.node.inside import Unsafe, names, one_line, open_file, parse_object, read_object, relative
from trainer.node.workspace import wipe


@pytest.mark.parametrize("name", ["", "/x", "../x", "a/../b", "a//b", "./a", "a\\b", "a\0b", "a/"])
def test_names_that_may_lead_out_are_refused(name: str) -> None:
    with pytest.raises(Unsafe):
        relative(name)


def test_links_are_not_followed_wherever_they_are(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text('{"a": 1}')
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "folder").symlink_to(tmp_path / "outside")
    (tmp_path / "out" / "file").symlink_to(tmp_path / "outside" / "secret")
    for name in ("folder/secret", "file"):
        with pytest.raises(OSError):
            open_file(tmp_path / "out", name)
        assert read_object(tmp_path / "out", name, 1000) is None
    assert names(tmp_path / "out", "folder") == []


def test_a_pipe_is_no_file_and_does_not_keep_us_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Unsafe, match="not a plain file"):
        open_file(tmp_path, "pipe")


def test_a_plain_object_is_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x.json").write_text('{"a": [1, 2.5, "b", null, true]}')
    assert read_object(tmp_path, "folder/x.json", 1000) == {"a": [1, 2.5, "b", None, True]}
    assert read_object(tmp_path, "folder/x.json", 10) is None
    assert read_object(tmp_path, "missing", 10) is None


def test_what_no_database_takes_is_replaced() -> None:
    assert parse_object(b'{"a": NaN, "b": "\\u0000\\ud800", "c": 1e999, "d": 99999999999999999999}') == {
        "a": None,
        "b": "\ufffd?",
        "c": None,
        "d": 1e20,
    }
    for garbage in (b"", b"[]", b"\xff", b"[" * 100_000, b'{"a":' * 30 + b"1" + b"}" * 30):
        assert parse_object(garbage) is None


def test_a_strangers_words_become_one_printable_line() -> None:
    assert one_line("  It\tbroke:\n\n \x1b[31mred\u202e ") == "It broke: [31mred"
    assert one_line("x" * 1000) == "x" * 399 + "…"
    assert one_line(7) == ""


def test_a_folder_is_wiped_whatever_rights_it_has_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "out" / "closed" / "deep").mkdir(parents=True)
    (tmp_path / "out" / "closed" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "out" / "closed").chmod(0)
    wipe(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "kept").is_dir()
