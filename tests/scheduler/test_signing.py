"""The site's key: made once, readable by us alone, never replaced."""

from __future__ import annotations

import base64
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from scheduler import signing


@pytest.fixture
def path(tmp_path: Path, settings: Settings) -> Path:
    settings.SIGNING_KEY = tmp_path / "keys" / "signing.key"
    return tmp_path / "keys" / "signing.key"


def test_signature_is_valid_for_exact_bytes_only(path: Path) -> None:
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(signing.get_public_key()))
    signature = base64.b64decode(signing.sign_message(b"train gpt"))
    key.verify(signature, b"train gpt")
    with pytest.raises(InvalidSignature):
        key.verify(signature, b"train gpT")


def test_signing_key_is_readable_by_owner_only(path: Path) -> None:
    signing.get_public_key()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path], "nothing is left beside it"


def test_concurrent_signing_key_creation_keeps_one(path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: signing.create_key(path), range(8)))
    key = path.read_bytes()
    signing.create_key(path)
    assert path.read_bytes() == key
    assert list(path.parent.iterdir()) == [path]


def test_damaged_signing_key_raises_and_stays(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("not a key")
    with pytest.raises(ImproperlyConfigured, match="restore it"):
        signing.sign_message(b"")
    assert path.read_text() == "not a key"
