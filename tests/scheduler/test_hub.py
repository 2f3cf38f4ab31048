"""Errors of the Hub's client, and of the disk, as sentences."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

from scheduler.hub import HubBusyError, translate_errors

FULL = Path("/dev/full")
"""A device whose every write fails like that on a full disk."""


@pytest.mark.parametrize("kind", [ConnectionResetError, TimeoutError, requests.ConnectionError, requests.Timeout])
def test_connection_error_is_reported_as_unreachable_hub(kind: type[OSError]) -> None:
    with pytest.raises(HubBusyError, match=rf"The Hub cannot be reached \({kind.__name__}\)."), translate_errors("o/n"):
        raise kind


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_full_disk_is_reported_with_folder(tmp_path: Path) -> None:
    sentence = f"{tmp_path}: No space left on device."
    with (
        pytest.raises(HubBusyError, match=f"^{sentence}$"),
        translate_errors("o/n", tmp_path),
        FULL.open("wb", buffering=0) as file,
    ):
        file.write(b"a")


def test_missing_file_is_reported_with_its_name(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(HubBusyError, match=f"^{missing}: No such file or directory.$"), translate_errors("o/n"):
        missing.read_bytes()
