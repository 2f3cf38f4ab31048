"""The site's Ed25519 key. It signs every job spec; nodes pin the public key."""

from __future__ import annotations

import base64
import os
import secrets
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured


def sign_message(message: bytes) -> str:
    """Return the signature of exactly these bytes, base64."""
    return base64.b64encode(sign_bytes(message)).decode()


def sign_bytes(message: bytes) -> bytes:
    """Return the 64 bytes of the signature."""
    return load_private_key(Path(settings.SIGNING_KEY)).sign(message)


def get_public_key() -> str:
    """Return the key that nodes pin, base64 of its 32 bytes."""
    public = load_private_key(Path(settings.SIGNING_KEY)).public_key()
    return base64.b64encode(public.public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()


def get_public_pem() -> bytes:
    """Return the key that nodes pin as PEM, for `openssl`."""
    public = load_private_key(Path(settings.SIGNING_KEY)).public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@cache
def load_private_key(path: Path) -> Ed25519PrivateKey:
    """Return the key in `path`; create it at the first use."""
    if not path.exists():
        create_key(path)
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ImproperlyConfigured(f"{path} holds no Ed25519 key. Nodes have pinned the old key: restore it.")
    return key


def create_key(path: Path) -> None:
    """Write a new key with mode 600. Concurrent processes are safe: a hard link never replaces a file."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(descriptor)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return
    finally:
        temporary.unlink()
