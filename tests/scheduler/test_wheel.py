"""The wheel that a site serves: reproducible, signed and named in install commands."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from django.core.management import call_command
from django.test import Client
from pytest_django import Settings

from scheduler.release.wheel import Wheel, build_wheel, find_wheel, get_requirement

pytestmark = pytest.mark.processes


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


def test_wheel_holds_the_trainer_only(wheel: Wheel) -> None:
    with zipfile.ZipFile(wheel.path) as archive:
        folders = {name.split("/")[0] for name in archive.namelist()}
    assert {name for name in folders if not name.endswith(".dist-info")} == {"trainer"}


def test_wheel_of_same_checkout_has_same_bytes(wheel: Wheel) -> None:
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


@pytest.mark.parametrize("name", ["dailytrain-9.9.9-py3-none-any.whl", "signing.key", "..%2Fsigning.key"])
def test_other_file_is_not_found(client: Client, wheel: Wheel, name: str) -> None:
    assert client.get(f"/download/{name}").status_code == 404


def test_requirement_with_package_name_names_no_wheel(wheel: Wheel, settings: Settings) -> None:
    assert get_requirement("training", "gpu") == f"dailytrain[training,gpu] @ {wheel.url}"
    settings.PACKAGE_NAME = "our-train"
    assert get_requirement("training") == "our-train[training]"
    settings.PACKAGE_NAME = ""
    settings.WHEELS = wheel.path.parent / "nothing"
    assert get_requirement("training") == ""


def test_pip_refuses_wheel_with_another_hash(wheel: Wheel, tmp_path: Path) -> None:
    """pip checks the hash that the commands name."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-index", "--dest", str(tmp_path)]
    accepted = subprocess.run(
        [*command, f"dailytrain @ file://{wheel.path}#sha256={wheel.sha256}"], capture_output=True
    )
    assert accepted.returncode == 0, accepted.stderr
    refused = subprocess.run([*command, f"dailytrain @ file://{wheel.path}#sha256={'0' * 64}"], capture_output=True)
    assert refused.returncode != 0
    assert b"HASHES" in refused.stderr.upper()
