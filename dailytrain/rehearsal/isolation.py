"""Folder and environment of a rehearsal, without anything of the production site but its tracks and its main.

The cache of prepared datasets is in the folder, too. A rehearsal leaves it in a temporary folder.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from django.conf import settings
from django.core.management.base import CommandError

MARK_VARIABLE = "DAILYTRAIN_REHEARSAL"
"""Of a process with the settings of a rehearsal's own site: its folder."""
INHERITED = (
    *(
        "PATH",
        "LD_LIBRARY_PATH",
        "HOME",
        "LANG",
        "LC_ALL",
        "TZ",
        "TERM",
        "COLUMNS",
        "TMPDIR",
        "PYTHONPATH",
        "VIRTUAL_ENV",
    ),
    *("PYTHONWARNINGS", "PYTHONDONTWRITEBYTECODE", "COVERAGE_PROCESS_CONFIG"),
)
"""Variables that name no database, no storage and no account. The last one makes `coverage` measure a child process."""
MAX_PATH = 90
"""Characters of the folder's path. The path of Redis's socket below it may have 107."""


def create_folder(requested: str | None) -> Path:
    """Create the folder of the rehearsal's site. Raises CommandError if it is in use."""
    if requested is None:
        return Path(tempfile.mkdtemp(prefix="rehearsal-")).resolve()
    folder = Path(requested).resolve()
    if len(str(folder)) > MAX_PATH:
        raise CommandError(f"{folder} is too long for the address of a socket. Give a --home of {MAX_PATH} characters.")
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise CommandError(f"{folder} is not empty. Give another --home.")
    return folder


def build_environment(folder: Path, port: int) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {
        **inherited,
        MARK_VARIABLE: str(folder),
        "DAILYTRAIN_HOME": str(folder),
        "DAILYTRAIN_CACHE": str(folder / "cache"),
        "SITE_URL": f"http://127.0.0.1:{port}",
        "SITE_NAME": "Rehearsal",
        "MAIN_REPOSITORY": settings.MAIN_REPOSITORY,
        "MAIN_BRANCH": settings.MAIN_BRANCH,
        "OMP_NUM_THREADS": "1",
    }
