"""A night in small on this card: site, node, sandbox, training, score and board, by `manage.py rehearse_night`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu.stage import emit, get_folder, is_rehearsal, skip, wait_for_turn
from trainer.sandbox import get_driver

COMMAND = (sys.executable, "manage.py", "rehearse_night")
CARRIED = Path("extra/bubblewrap")  # `bwrap` and all that `ldd` names, for a machine without it
SECONDS, STOP_SECONDS = 200, 20
SCALE = "1e-4"  # 160 steps
IDENTITY = ("-c", "user.name=GPU", "-c", "user.email=gpu@example.org")


def rehearse_night() -> None:
    """Rehearse the night of one H100 on this card; in a rehearsal on CPU cores."""
    wait_for_turn()
    # Not the stage's folder: the path of a socket below it may have about a hundred characters.
    with tempfile.TemporaryDirectory(prefix="night-") as name:
        folder = Path(name)
        add_bubblewrap(folder)
        if missing := find_missing_part():
            skip(missing)
        main = commit_trainer(folder / "main")
        environment = {"MAIN_REPOSITORY": str(main), "MAIN_BRANCH": "main", "DAILYTRAIN_HOME": str(folder / "own")}
        flags = ["--main-only", "--scale", "1e-9"] if is_rehearsal() else ["--gpu", "--scale", SCALE]
        code, printed, seconds = run_rehearsal(["night-h100", *flags, "--home", str(folder / "site")], environment)
        for path in (folder / "site/log").glob("*.log"):
            sys.stderr.write(f"\n----- {path.name}\n{path.read_text(errors='replace')[-6000:]}")
    steps = {step: int(each) for step, each in re.findall(r"(\w+): done in (\d+) s", printed)}
    board = [line.strip() for line in printed.splitlines() if "(baseline)" in line or "main, " in line]
    emit(code=code, wall_s=round(seconds, 1), steps_s=steps, board=board[-1:])
    raise SystemExit(code)


def add_bubblewrap(folder: Path) -> None:
    """Let a carried bubblewrap, started by the loader that came with it, be found where none is installed."""
    if (carried := CARRIED.resolve()).exists():
        program = folder / "bwrap"
        loader = f"{carried}/ld-linux-x86-64.so.2 --library-path {carried}"
        program.write_text(f'#!/bin/sh\nexec {loader} {carried}/bwrap "$@"\n')
        program.chmod(0o755)
        os.environ["PATH"] += f"{os.pathsep}{folder}"


def find_missing_part() -> str | None:
    """Return what a night needs and this machine lacks, None if nothing."""
    if shutil.which("git") is None:
        return "git is not installed"
    if problem := get_driver("bubblewrap").find_problem():
        return problem
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True)
    return (done.stderr.strip().splitlines() or ["manage.py failed"])[-1] if done.returncode else None


def commit_trainer(folder: Path) -> Path:
    """Make a repository with this checkout's trainer on its branch main."""
    shutil.copytree("trainer", folder / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    for command in (("init", "--quiet", "--initial-branch", "main"), ("add", "."), ("commit", "--quiet", "-m", "Main")):
        subprocess.run(["git", *IDENTITY, *command], cwd=folder, check=True)
    return folder


def run_rehearsal(arguments: list[str], environment: dict[str, str]) -> tuple[int, str, float]:
    """Return exit code (124: out of time), output and seconds. Interrupted, it ends its processes.

    What it prints is also in a log of its own, which is there if this process is killed.
    """
    started, limit = time.monotonic(), SECONDS * (3 if is_rehearsal() else 1)
    log = get_folder() / "night-output.log"
    environment = {**os.environ, **environment, "COLUMNS": "160", "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as file:
        process = subprocess.Popen([*COMMAND, *arguments], env=environment, stdout=file, stderr=file)
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        code = 124
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return code, log.read_text(errors="replace"), time.monotonic() - started
