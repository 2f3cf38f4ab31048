"""An archive from the network holds plain files below one folder, or nothing of it is written."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import small_release
from trainer.node.archives import ENTRY_BYTES, ArchiveError, unpack_archive


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


TRICKS: dict[str, Callable[[], bytes]] = {
    "trainer/train.py is outside trainer/models/": lambda: small_release.build_tar({"trainer/train.py": "evil"}),
    "trainer/modelsx/y.py is outside": lambda: small_release.build_tar({"trainer/modelsx/y.py": "evil"}),
    "'' is not a path": lambda: small_release.build_tar({"": "evil"}),
    "device is neither a file": lambda: small_release.build_tar(
        {}, (member("trainer/models/device", tarfile.CHRTYPE),)
    ),
    "not a path inside": lambda: small_release.build_tar({"trainer/models/../train.py": "evil"}),
    "'/etc/cron.d/evil' is not a path": lambda: small_release.build_tar({"/etc/cron.d/evil": "evil"}),
    "x is neither a file": lambda: small_release.build_tar({}, (member("trainer/models/x", tarfile.SYMTYPE, "/etc"),)),
    "y is neither a file": lambda: small_release.build_tar(
        {}, (member("trainer/models/y", tarfile.LNKTYPE, "/etc/passwd"),)
    ),
    "z is neither a file": lambda: small_release.build_tar({}, (member("trainer/models/z", tarfile.FIFOTYPE),)),
    "larger than 256,000 bytes": lambda: small_release.build_tar({"trainer/models/gpt.py": "#" * 300_000}),
    "cannot be opened": lambda: b"no tar at all",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_unpack_of_a_malicious_archive_writes_nothing(tmp_path: Path, trick: str) -> None:
    (tmp_path / "entry.tar").write_bytes(TRICKS[trick]())
    with pytest.raises(ArchiveError) as refusal:
        unpack_archive(tmp_path / "entry.tar", tmp_path / "source", "trainer/models", ENTRY_BYTES)
    assert trick in str(refusal.value)
    assert not (tmp_path / "source").exists()


def test_unpack_overlays_the_entry_on_the_release(tmp_path: Path) -> None:
    for name, files in (("release", small_release.FILES), ("entry", small_release.ENTRY)):
        (tmp_path / name).write_bytes(small_release.build_tar(files, (member("trainer/models", tarfile.DIRTYPE),)))
    unpack_archive(tmp_path / "release", tmp_path / "source", "trainer", 1_000_000)
    unpack_archive(tmp_path / "entry", tmp_path / "source", "trainer/models", ENTRY_BYTES)
    assert (tmp_path / "source/trainer/models/gpt.py").read_text() == small_release.ENTRY["trainer/models/gpt.py"]
    assert (tmp_path / "source/trainer/train.py").read_text() == small_release.TRAIN
