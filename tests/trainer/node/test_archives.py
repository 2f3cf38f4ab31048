"""An archive from the network has only regular files below one folder, or it is not unpacked."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import stdlib_release
from trainer.node.archives import ENTRY_BYTES, MAX_FILES, ArchiveError, unpack_archive


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


def test_unpack_overlays_the_entry_on_the_release(tmp_path: Path) -> None:
    for name, files in (("release", stdlib_release.FILES), ("entry", stdlib_release.ENTRY)):
        (tmp_path / name).write_bytes(stdlib_release.build_tar(files, (member("trainer/models", tarfile.DIRTYPE),)))
    unpack_archive(tmp_path / "release", tmp_path / "source", "trainer", 1_000_000)
    unpack_archive(tmp_path / "entry", tmp_path / "source", "trainer/models", ENTRY_BYTES)
    assert (tmp_path / "source/trainer/models/gpt.py").read_text() == stdlib_release.ENTRY["trainer/models/gpt.py"]
    assert (tmp_path / "source/trainer/train.py").read_text() == stdlib_release.TRAIN


def build_large_tar() -> bytes:
    """Return a tar of one file of 50 MB of zeros."""
    large = member("trainer/models/gpt.py")
    large.size = 50_000_000
    return large.tobuf() + bytes(large.size) + bytes(2 * tarfile.BLOCKSIZE)


def build_sparse_tar() -> bytes:
    """Return a tar whose file has no stored byte and claims a terabyte, in the format of GNU tar."""
    sparse = member("trainer/models/gpt.py")
    sparse.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.size": str(10**12)}
    sparse.pax_headers |= {"GNU.sparse.numblocks": "1", "GNU.sparse.map": f"{10**12},0"}
    return sparse.tobuf(tarfile.PAX_FORMAT) + bytes(2 * tarfile.BLOCKSIZE)


def build_malformed_sparse_tar() -> bytes:
    sparse = member("trainer/models/gpt.py")
    sparse.pax_headers = {"GNU.sparse.map": "1,none"}
    return sparse.tobuf(tarfile.PAX_FORMAT) + bytes(2 * tarfile.BLOCKSIZE)


def build_tar_of_files(*names: str) -> bytes:
    return stdlib_release.build_tar(dict.fromkeys(names, "evil"))


def build_tar_of(*members: tarfile.TarInfo) -> bytes:
    return stdlib_release.build_tar({}, members)


MALICIOUS: dict[str, tuple[Callable[[], bytes], str]] = {
    "other folder": (lambda: build_tar_of_files("trainer/train.py"), "trainer/train.py is outside trainer/models/"),
    "folder with the prefix": (lambda: build_tar_of_files("trainer/modelsx/y.py"), "trainer/modelsx/y.py is outside"),
    "no name": (lambda: build_tar_of_files(""), "'' is not a path"),
    "parent": (lambda: build_tar_of_files("trainer/models/../train.py"), "not a path inside"),
    "root": (lambda: build_tar_of_files("/etc/cron.d/evil"), "'/etc/cron.d/evil' is not a path"),
    "device": (lambda: build_tar_of(member("trainer/models/x", tarfile.CHRTYPE)), "x is neither a file"),
    "symlink": (lambda: build_tar_of(member("trainer/models/x", tarfile.SYMTYPE, "/etc")), "x is neither a file"),
    "link": (lambda: build_tar_of(member("trainer/models/x", tarfile.LNKTYPE, "/etc/passwd")), "x is neither a file"),
    "pipe": (lambda: build_tar_of(member("trainer/models/x", tarfile.FIFOTYPE)), "x is neither a file"),
    "large file": (
        lambda: stdlib_release.build_tar({"trainer/models/gpt.py": "#" * 300_000}),
        "larger than 256,000 bytes",
    ),
    "no tar": (lambda: b"no tar at all", "cannot be opened"),
    # A fixed time in the header: with one in 400 of the others the first block passes for a member without a name.
    "gzip": (lambda: gzip.compress(build_large_tar(), mtime=0), "cannot be opened"),
    "malformed sparse map": (build_malformed_sparse_tar, "cannot be opened"),
    "sparse": (build_sparse_tar, "larger than 256,000 bytes together"),
    "many files": (
        lambda: build_tar_of(*(member(f"trainer/models/{n}") for n in range(MAX_FILES + 1))),
        "more than 5,000 files",
    ),
}


@pytest.mark.parametrize("trick", MALICIOUS)
def test_unpack_of_a_malicious_archive_writes_nothing(tmp_path: Path, trick: str) -> None:
    build, message = MALICIOUS[trick]
    (tmp_path / "entry.tar").write_bytes(build())
    with pytest.raises(ArchiveError) as refusal:
        unpack_archive(tmp_path / "entry.tar", tmp_path / "source", "trainer/models", ENTRY_BYTES)
    assert message in str(refusal.value)
    assert not (tmp_path / "source").exists()
