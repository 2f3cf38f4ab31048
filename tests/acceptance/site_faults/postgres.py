"""A PostgreSQL server for one test, which can be restarted and killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from benchmarks.postgres import find_programs
from tests.support.full_disk import build_library
from tests.support.waits import WAIT_SECONDS
from trainer.distributed.ports import find_free_port


class PostgresServer:
    def __init__(self) -> None:
        self._programs = find_programs()
        self.folder = Path(tempfile.mkdtemp(prefix="faults-pg-"))
        self._as_user: list[str] = []
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            self._as_user = ["runuser", "-u", "postgres", "--"]
            shutil.chown(self.folder, "postgres")
        self._full_disk = self.folder / "disk-is-full"
        self._preload = ("env", f"LD_PRELOAD={build_library(self.folder)}", f"FULL_DISK={self._full_disk}")
        self.port = find_free_port()
        self.url = f"postgres://train@127.0.0.1:{self.port}/postgres"
        self._run(self._programs / "initdb", "-D", self._data, "-U", "train", "-A", "trust", "--no-sync")

    @property
    def _data(self) -> Path:
        return self.folder / "pg"

    def _run(self, *command: str | Path, check: bool = True) -> int:
        done = subprocess.run([*self._as_user, *self._preload, *command], check=check, stdout=subprocess.DEVNULL)
        return done.returncode

    def _control(self, *words: str, check: bool = True) -> int:
        return self._run(self._programs / "pg_ctl", "-D", self._data, "-l", self.folder / "log", *words, check=check)

    def start(self) -> None:
        """Start the server if it does not run, and wait for its recovery. Processes of a killed server end late."""
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c max_connections=200"
        deadline = time.monotonic() + WAIT_SECONDS
        while not self._accepts_connections():
            self._control("-w", "-o", options, "start", check=False)
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.2)

    def _accepts_connections(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=10).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, mode: str) -> None:
        """Stop the server. "fast" closes connections and writes a checkpoint, "immediate" does neither."""
        self._control("-w", "-t", f"{WAIT_SECONDS}", "-m", mode, "stop")

    def kill(self) -> None:
        """Send SIGKILL to the main process. The others then end."""
        os.kill(self.read_pid(), signal.SIGKILL)

    def fill_disk(self) -> None:
        """Stop all files from growing: inserts fail, and the server ends when its log needs more space."""
        self._full_disk.touch()

    def empty_disk(self) -> None:
        """Let files grow again, and start the server if it has ended."""
        self._full_disk.unlink()
        self.start()

    def read_pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def close(self) -> None:
        self._control("-m", "immediate", "stop", check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
