"""The site's own release: a wheel of `trainer`, which nodes, volunteers and contributors install."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from django.conf import settings
from django.urls import reverse

from trainer.protocol.files import hash_file


@dataclass(frozen=True)
class Wheel:
    path: Path
    sha256: str

    @property
    def url(self) -> str:
        """Address with the hash, which pip checks."""
        return f"{settings.SITE_URL}{reverse('download', args=[self.path.name])}#sha256={self.sha256}"


def build_wheel() -> Path:
    """Build the wheel of this checkout in `settings.WHEELS`, in place of older ones; return its path.

    The same checkout gives the same bytes. Raises CalledProcessError with pip's or hatchling's output.
    """
    folder = Path(settings.WHEELS)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as temporary:
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", temporary]
        subprocess.run(command, cwd=settings.BASE_DIR, check=True, capture_output=True, text=True)
        [built] = Path(temporary).glob("*.whl")
        wheel = built.replace(folder / built.name)
    for old in folder.glob("*.whl"):
        if old != wheel:
            old.unlink()
    return wheel


def find_wheel() -> Wheel | None:
    """Return the wheel that this site serves, None if none was built."""
    path = next(Path(settings.WHEELS).glob("*.whl"), None)
    if path is None:
        return None
    status = path.stat()
    return Wheel(path, hash_wheel(path, status.st_mtime_ns, status.st_size))


@cache
def hash_wheel(path: Path, modified: int, size: int) -> str:
    """Return the hash of a file. Time and size are arguments, so that a new file is hashed again."""
    return hash_file(path)


def get_requirement(*extras: str) -> str:
    """Return what pip installs: the package `PACKAGE_NAME` or the site's wheel; empty if there is neither."""
    if settings.PACKAGE_NAME:
        return f"{settings.PACKAGE_NAME}[{','.join(extras)}]"
    wheel = find_wheel()
    return f"dailytrain[{','.join(extras)}] @ {wheel.url}" if wheel else ""
