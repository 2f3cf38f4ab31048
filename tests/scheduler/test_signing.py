"""The site's signing key: created once, readable by its owner only, never replaced."""

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

pytestmark = pytest.mark.sql


@pytest.fixture
def key_path(tmp_path: Path, settings: Settings) -> Path:
    settings.SIGNING_KEY = tmp_path / "keys" / "signing.key"
    return tmp_path / "keys" / "signing.key"


def test_signature_is_valid_for_exact_bytes_only(key_path: Path) -> None:
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(signing.get_public_key()))
    signature = base64.b64decode(signing.sign_message(b"train gpt"))
    key.verify(signature, b"train gpt")
    with pytest.raises(InvalidSignature):
        key.verify(signature, b"train gpT")


def test_concurrent_signing_key_creation_keeps_one_that_only_its_owner_reads(key_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: signing.create_key(key_path), range(8)))
    key = key_path.read_bytes()
    signing.create_key(key_path)
    assert key_path.read_bytes() == key
    assert stat.S_IMODE(key_path.stat().st_mode) == 0o600
    assert list(key_path.parent.iterdir()) == [key_path], "no temporary file is left"


def test_damaged_signing_key_raises_and_stays(key_path: Path) -> None:
    key_path.parent.mkdir()
    key_path.write_text("not a key")
    with pytest.raises(ImproperlyConfigured, match="restore it"):
        signing.sign_message(b"")
    assert key_path.read_text() == "not a key"
