"""Safe reads of files that untrusted code has written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainer.sandbox.safe_files import (
    UnsafeFileError,
    list_folder,
    open_file,
    parse_json_object,
    parse_relative_path,
    read_json_object,
    sanitize_line,
)


@pytest.mark.parametrize("name", ["", "/x", "../x", "a/../b", "a//b", "./a", "a\\b", "a\0b", "a/"])
def test_relative_path_leading_out_is_refused(name: str) -> None:
    with pytest.raises(UnsafeFileError):
        parse_relative_path(name)


def test_links_anywhere_in_path_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text('{"a": 1}')
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "folder").symlink_to(tmp_path / "outside")
    (tmp_path / "out" / "file").symlink_to(tmp_path / "outside" / "secret")
    for name in ("folder/secret", "file"):
        with pytest.raises(OSError):
            open_file(tmp_path / "out", name)
        assert read_json_object(tmp_path / "out", name, 1000) is None
    assert list_folder(tmp_path / "out", "folder") == []


def test_pipe_is_refused_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnsafeFileError, match="not a regular file"):
        open_file(tmp_path, "pipe")


def test_json_object_is_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x.json").write_text('{"a": [1, 2.5, "b", null, true]}')
    assert read_json_object(tmp_path, "folder/x.json", 1000) == {"a": [1, 2.5, "b", None, True]}
    assert read_json_object(tmp_path, "folder/x.json", 10) is None
    assert read_json_object(tmp_path, "missing", 10) is None


def test_json_values_no_database_takes_are_replaced() -> None:
    assert parse_json_object(b'{"a": NaN, "b": "\\u0000\\ud800", "c": 1e999, "d": 99999999999999999999}') == {
        "a": None,
        "b": "\ufffd?",
        "c": None,
        "d": 1e20,
    }
    for garbage in (b"", b"[]", b"\xff", b"[" * 100_000, b'{"a":' * 30 + b"1" + b"}" * 30):
        assert parse_json_object(garbage) is None


def test_untrusted_text_becomes_one_printable_line() -> None:
    assert sanitize_line("  It\tbroke:\n\n \x1b[31mred\u202e ") == "It broke: [31mred"
    assert sanitize_line("x" * 1000) == "x" * 399 + "…"
    assert sanitize_line(7) == ""
