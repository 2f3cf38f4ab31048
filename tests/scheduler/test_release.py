"""The site's release of the trainer: a reproducible tar."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from scheduler import storage
from trainer.data.corpora import python_docs


def test_release_contains_only_python_files_and_texts(tmp_path: Path) -> None:
    package = tmp_path / "trainer"
    (package / "__pycache__").mkdir(parents=True)
    (package / "train.py").write_text("# train\n")
    (package / "secret.key").write_text("secret")
    (package / "text.jsonl.xz").write_bytes(b"x")
    (package / "questions.jsonl").write_bytes(b"x")
    (package / "__pycache__" / "train.pyc").write_bytes(b"x")
    (package / "link.py").symlink_to("/etc/passwd")
    with tarfile.open(fileobj=io.BytesIO(storage.pack_sources(package))) as archive:
        assert archive.getnames() == ["trainer/questions.jsonl", "trainer/text.jsonl.xz", "trainer/train.py"]
        member = archive.getmembers()[0]
        assert (member.uid, member.gid, member.mtime, member.uname, member.mode) == (0, 0, 0, "", 0o644)


@pytest.mark.django_db
def test_release_of_installation_is_stored_once() -> None:
    blob = storage.store_release()
    assert storage.store_release() == blob
    with tarfile.open(fileobj=io.BytesIO(storage.read_blob(blob))) as archive:
        assert "trainer/protocol/version.py" in archive.getnames()
        assert f"trainer/data/corpora/{python_docs.FILE.name}" in archive.getnames(), "smoke tests on nodes train on it"
