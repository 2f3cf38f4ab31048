"""The release of the trainer that a site gives to its nodes, and the wheel that it serves: signed, reproducible."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from django.core.management import call_command
from django.test import Client
from pytest_django import Settings

from scheduler import storage
from scheduler.release.wheel import Wheel, build_wheel, find_wheel, get_requirement
from trainer.data.corpora import python_docs

pytestmark = pytest.mark.processes


def test_release_contains_only_python_files_and_texts(tmp_path: Path) -> None:
    package = tmp_path / "trainer"
    (package / "__pycache__").mkdir(parents=True)
    for name in ("train.py", "secret.key", "text.jsonl.xz", "questions.jsonl", "__pycache__/train.pyc"):
        (package / name).write_bytes(b"x")
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
        names = archive.getnames()
    assert "trainer/protocol/version.py" in names
    assert f"trainer/data/corpora/{python_docs.FILE.name}" in names, "smoke tests on nodes train on it"


@pytest.fixture(scope="module")
def wheel_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel."""
    return tmp_path_factory.mktemp("wheels")


@pytest.fixture
def wheel(wheel_folder: Path, settings: Settings) -> Wheel:
    settings.WHEELS = wheel_folder
    wheel = find_wheel()
    if wheel is None:
        call_command("build_wheel", verbosity=0)
        wheel = find_wheel()
    assert wheel
    return wheel


def test_wheel_holds_the_trainer_only_and_has_the_same_bytes_again(wheel: Wheel) -> None:
    with zipfile.ZipFile(wheel.path) as archive:
        folders = {name.split("/")[0] for name in archive.namelist()}
    assert {name for name in folders if not name.endswith(".dist-info")} == {"trainer"}
    build_wheel()
    assert find_wheel() == wheel


def test_new_wheel_is_served_before_the_old_one_is_deleted(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.WHEELS, unlink, wheel_counts = tmp_path, Path.unlink, list[int]()
    old_wheel = tmp_path / "dailytrain-0.0.0-py3-none-any.whl"
    old_wheel.write_bytes(b"an old wheel")

    def count_and_unlink(path: Path, missing_ok: bool = False) -> None:
        wheel_counts.append(len(list(tmp_path.glob("*.whl"))))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", count_and_unlink)
    new_wheel = build_wheel()
    assert wheel_counts == [2]
    assert list(tmp_path.iterdir()) == [new_wheel]


def test_served_wheel_has_the_named_hash_and_signature(client: Client, wheel: Wheel) -> None:
    answer = client.get(f"/download/{wheel.path.name}")
    content = b"".join(answer.streaming_content)  # type: ignore[attr-defined]
    assert hashlib.sha256(content).hexdigest() == wheel.sha256
    assert wheel.url.endswith(f"/download/{wheel.path.name}#sha256={wheel.sha256}")
    key = load_pem_public_key(client.get("/download/signing-key.pem").content)
    assert isinstance(key, Ed25519PublicKey)
    signature = client.get(f"/download/{wheel.path.name}.sig").content
    key.verify(signature, content)
    with pytest.raises(InvalidSignature):
        key.verify(signature, content + b"x")
    for other in ("dailytrain-9.9.9-py3-none-any.whl", "signing.key", "..%2Fsigning.key"):
        assert client.get(f"/download/{other}").status_code == 404


def test_requirement_with_package_name_names_no_wheel(wheel: Wheel, settings: Settings) -> None:
    assert get_requirement("training", "gpu") == f"dailytrain[training,gpu] @ {wheel.url}"
    settings.PACKAGE_NAME = "our-train"
    assert get_requirement("training") == "our-train[training]"
    settings.PACKAGE_NAME = ""
    settings.WHEELS = wheel.path.parent / "nothing"
    assert get_requirement("training") == ""
