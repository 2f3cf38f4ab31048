"""A temporary PostgreSQL."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.distributed.ports import find_free_port


class PostgresNotFoundError(ValueError):
    """PostgreSQL is not installed."""


def find_programs() -> Path:
    """Return the folder of initdb and pg_ctl, which Debian does not put on the path."""
    if found := shutil.which("initdb"):
        return Path(found).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if not folders:
        raise PostgresNotFoundError("PostgreSQL is not installed: apt install postgresql.")
    return folders[-1].parent


@contextmanager
def run_postgres() -> Iterator[tuple[str, int]]:
    """Yield the URL and the process of a new, empty database with PostgreSQL's defaults, fsync included."""
    bin, folder = find_programs(), Path(tempfile.mkdtemp(prefix="pool-pg-"))
    # PostgreSQL refuses to run as root.
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if as_user:
        shutil.chown(folder, "postgres")
    port = find_free_port()
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c max_connections=200"

    def control(*words: str | Path) -> None:
        subprocess.run([*as_user, bin / "pg_ctl", "-D", folder / "pg", *words], check=True, stdout=subprocess.DEVNULL)

    try:
        initdb: list[str | Path] = [bin / "initdb", "-D", folder / "pg", "-U", "train", "-A", "trust", "--no-sync"]
        subprocess.run([*as_user, *initdb], check=True, stdout=subprocess.DEVNULL)
        control("-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            postmaster = int((folder / "pg" / "postmaster.pid").read_text().split()[0])
            yield f"postgres://train@127.0.0.1:{port}/postgres", postmaster
        finally:
            control("-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
