"""Reads settings from environment variables, or from the files that `<NAME>_FILE` point to.

An invalid value raises ImproperlyConfigured, so that no process starts with it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from django.core.exceptions import ImproperlyConfigured

Number = TypeVar("Number", int, float)


def read_text(name: str, default: str = "") -> str:
    """Return a variable, or the contents of the file that `<NAME>_FILE` points to (container secrets)."""
    path = os.environ.get(f"{name}_FILE")
    if not path:
        return os.environ.get(name, default)
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ImproperlyConfigured(f"{name}_FILE is {path!r}, which cannot be read: {error}.") from None


def read_boolean(name: str, default: bool) -> bool:
    value = read_text(name, str(default))
    if value not in ("True", "False"):
        raise ImproperlyConfigured(f"{name} is {value!r}: it must be True or False.")
    return value == "True"


def read_integer(name: str, default: int) -> int:
    return convert_text(name, read_text(name, str(default)), int, "a whole number")


def read_number(name: str, default: float) -> float:
    return convert_text(name, read_text(name, str(default)), float, "a number")


def convert_text(name: str, value: str, convert: Callable[[str], Number], kind: str) -> Number:
    try:
        return convert(value)
    except ValueError:
        raise ImproperlyConfigured(f"{name} is {value!r}: it must be {kind}.") from None


def read_words(name: str, default: str = "") -> list[str]:
    return [word for word in read_text(name, default).replace(",", " ").split() if word]


def read_networks(name: str, default: str = "") -> list[str]:
    """Return IP addresses and networks in CIDR form. All addresses at once (`*`, `0.0.0.0/0`) are refused."""
    words = read_words(name, default)
    for word in words:
        try:
            network = ipaddress.ip_network(word)
        except ValueError as error:
            raise ImproperlyConfigured(
                f"{name} names {word!r}: it takes IP addresses and networks, such as 10.0.0.2 or 10.0.0.0/24 ({error})."
            ) from None
        if network.prefixlen == 0:
            raise ImproperlyConfigured(f"{name} names {word!r}, which are all addresses. Name those of your proxies.")
    return words


def load_or_create_secret(path: Path) -> str:
    """Return the secret in `path`. If several processes create it at once, the first one wins."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        with os.fdopen(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(48))
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
        temporary.unlink()
    return path.read_text()
