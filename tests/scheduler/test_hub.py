"""Errors of the Hub's client, and of the disk, as sentences."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import requests

from scheduler.hub import HubBusyError, translate_errors


@pytest.mark.parametrize("kind", [ConnectionResetError, TimeoutError, requests.ConnectionError, requests.Timeout])
def test_connection_error_is_reported_as_unreachable_hub(kind: type[OSError]) -> None:
    with pytest.raises(HubBusyError, match=rf"The Hub cannot be reached \({kind.__name__}\)."), translate_errors("o/n"):
        raise kind


def test_error_of_the_disk_is_reported_with_its_path(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(HubBusyError, match=f"^{missing}: No such file or directory.$"), translate_errors("o/n"):
        missing.read_bytes()
    with (
        pytest.raises(HubBusyError, match=f"^{tmp_path}: No space left on device.$"),
        translate_errors("o/n", tmp_path),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
