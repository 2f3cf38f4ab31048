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


def test_a_signature_holds_for_exactly_these_bytes(path: Path) -> None:
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(signing.get_public_key()))
    signature = base64.b64decode(signing.sign_message(b"train gpt"))
    key.verify(signature, b"train gpt")
    with pytest.raises(InvalidSignature):
        key.verify(signature, b"train gpT")


def test_the_key_is_readable_by_its_owner_alone(path: Path) -> None:
    signing.get_public_key()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path], "nothing is left beside it"


def test_of_many_that_make_it_at_once_one_wins(path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: signing.create_key(path), range(8)))
    key = path.read_bytes()
    signing.create_key(path)
    assert path.read_bytes() == key
    assert list(path.parent.iterdir()) == [path]


def test_a_damaged_key_stops_the_site_and_is_not_replaced(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("not a key")
    with pytest.raises(ImproperlyConfigured, match="restore it"):
        signing.sign_message(b"")
    assert path.read_text() == "not a key"
