"""An archive from the network has only regular files below one folder, or it is not unpacked."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import stdlib_release
from trainer.node.archives import ENTRY_BYTES, MAX_FILES, ArchiveError, unpack_archive


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


TRICKS: dict[str, Callable[[], bytes]] = {
    "trainer/train.py is outside trainer/models/": lambda: stdlib_release.build_tar({"trainer/train.py": "evil"}),
    "trainer/modelsx/y.py is outside": lambda: stdlib_release.build_tar({"trainer/modelsx/y.py": "evil"}),
    "'' is not a path": lambda: stdlib_release.build_tar({"": "evil"}),
    "device is neither a file": lambda: stdlib_release.build_tar(
        {}, (member("trainer/models/device", tarfile.CHRTYPE),)
    ),
    "not a path inside": lambda: stdlib_release.build_tar({"trainer/models/../train.py": "evil"}),
    "'/etc/cron.d/evil' is not a path": lambda: stdlib_release.build_tar({"/etc/cron.d/evil": "evil"}),
    "x is neither a file": lambda: stdlib_release.build_tar({}, (member("trainer/models/x", tarfile.SYMTYPE, "/etc"),)),
    "y is neither a file": lambda: stdlib_release.build_tar(
        {}, (member("trainer/models/y", tarfile.LNKTYPE, "/etc/passwd"),)
    ),
    "z is neither a file": lambda: stdlib_release.build_tar({}, (member("trainer/models/z", tarfile.FIFOTYPE),)),
    "larger than 256,000 bytes": lambda: stdlib_release.build_tar({"trainer/models/gpt.py": "#" * 300_000}),
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
    for name, files in (("release", stdlib_release.FILES), ("entry", stdlib_release.ENTRY)):
        (tmp_path / name).write_bytes(stdlib_release.build_tar(files, (member("trainer/models", tarfile.DIRTYPE),)))
    unpack_archive(tmp_path / "release", tmp_path / "source", "trainer", 1_000_000)
    unpack_archive(tmp_path / "entry", tmp_path / "source", "trainer/models", ENTRY_BYTES)
    assert (tmp_path / "source/trainer/models/gpt.py").read_text() == stdlib_release.ENTRY["trainer/models/gpt.py"]
    assert (tmp_path / "source/trainer/train.py").read_text() == stdlib_release.TRAIN


def build_large_tar() -> bytes:
    """Return a tar of one file of 50 MB of zeros."""
    zeros = 50_000_000
    large = member("trainer/models/gpt.py")
    large.size = zeros
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(large, io.BytesIO(bytes(zeros)))
    return packed.getvalue()


def build_zip() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("trainer/models/gpt.py", bytes(50_000_000))
    return packed.getvalue()


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


BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    # A fixed time in the header: with one in 400 of the others the first block passes for a member without a name.
    "gzip": (lambda: gzip.compress(build_large_tar(), mtime=0), "cannot be opened"),
    "xz": (lambda: lzma.compress(build_large_tar()), "cannot be opened"),
    "zip": (build_zip, "cannot be opened"),
    "malformed sparse map": (build_malformed_sparse_tar, "cannot be opened"),
    "sparse": (build_sparse_tar, "larger than 256,000 bytes together"),
    "many files": (
        lambda: stdlib_release.build_tar({}, tuple(member(f"trainer/models/{n}") for n in range(MAX_FILES + 1))),
        "more than 5,000 files",
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_unpack_of_a_small_archive_of_much_content_writes_nothing(tmp_path: Path, bomb: str) -> None:
    build, message = BOMBS[bomb]
    (tmp_path / "entry.tar").write_bytes(build())
    with pytest.raises(ArchiveError, match=message):
        unpack_archive(tmp_path / "entry.tar", tmp_path / "source", "trainer/models", ENTRY_BYTES)
    assert not (tmp_path / "source").exists()
