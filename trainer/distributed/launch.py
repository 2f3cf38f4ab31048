"""Several processes on one machine, one for each device: started together, watched, ended together.

The command's own process starts them and computes nothing. A signal to it is passed on; where one process ends before
its time, by itself or killed, the others are ended too, and one sentence says why. Nothing is lost but the steps since
the last checkpoint: the same command goes on from there.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trainer import errors
from trainer.config.train_config import TrainConfig
from trainer.training.interruption import StopRequest

REPORT = "DAILYTRAIN_REPORT"
"""Environment variable: the file where a process says how it ended, for the one that started it."""
LOOK_SECONDS = 0.1
GRACE_SECONDS = 5.0
"""For the others to notice that one has ended, and to say what they know."""


def is_launched() -> bool:
    """Is this one of several processes, started here or by torchrun?"""
    return "LOCAL_RANK" in os.environ


def is_first() -> bool:
    return os.environ.get("LOCAL_RANK", "0") == "0"


def report(sentence: str, code: int) -> bool:
    """Tell the process that started this one how it ends; False if there is none, and people are to be told."""
    if REPORT not in os.environ:
        return False
    Path(os.environ[REPORT]).write_text(json.dumps({"sentence": sentence, "code": code}))
    return True


def processes(argv: Sequence[str], config: TrainConfig, interruption: StopRequest) -> int:
    """Train in `config.devices` processes; return the exit code, with the sentence on standard error."""
    interruption.is_graceful = True
    with tempfile.TemporaryDirectory(prefix="dailytrain-") as folder:
        running = start(argv, config.devices, Path(folder))
        try:
            first = watch(running, interruption)
        finally:
            end(running)
        codes = [process.returncode for process in running]
        if not any(codes):
            return errors.ExitCode.OK
        sentence, code = explanation(first, codes, [told(Path(folder) / str(rank)) for rank in range(len(codes))])
    cause = {errors.ExitCode.MODEL_ERROR: "model", errors.ExitCode.INFRASTRUCTURE: "infrastructure"}.get(code)
    if cause is not None:
        errors.write_failure(config.out, cause, sentence)
    if sentence:
        sys.stderr.write(f"dailytrain train: {sentence}\n")
    return code


def start(argv: Sequence[str], devices: int, folder: Path) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "NODE_RANK": "0"}
    command = [sys.executable, *subprocess._args_from_interpreter_flags(), "-m", "trainer.train", *argv]
    return [
        subprocess.Popen(
            command,
            env={**os.environ, **address, "LOCAL_RANK": str(rank), REPORT: str(folder / str(rank))},
            # A signal from the terminal reaches this process alone, which passes it on.
            start_new_session=True,
        )
        for rank in range(devices)
    ]


def watch(running: Sequence[subprocess.Popen[bytes]], interruption: StopRequest) -> int:
    """Return when all have ended, or one before its time and the others had `GRACE_SECONDS`: the rank of that one."""
    asked, first, deadline = False, 0, None
    while any(process.poll() is None for process in running):
        if interruption.is_requested and not asked:
            asked = True
            for process in running:
                process.send_signal(signal.SIGTERM)
        broken = [rank for rank, process in enumerate(running) if process.poll()]
        if deadline is None and broken:
            first, deadline = broken[0], time.monotonic() + GRACE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(LOOK_SECONDS)
    return first


def end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait()


def told(file: Path) -> tuple[str, int]:
    with suppress(OSError, ValueError, KeyError):
        content = json.loads(file.read_text())
        return content["sentence"], content["code"]
    return "", 0


def explanation(first: int, codes: Sequence[int], reports: Sequence[tuple[str, int]]) -> tuple[str, int]:
    """Return the sentence and the exit code for all: what the processes said, else what became of the first to end."""
    for wanted in (errors.ExitCode.USER_ERROR, errors.ExitCode.MODEL_ERROR, errors.ExitCode.INFRASTRUCTURE):
        for sentence, code in reports:
            if sentence and code == wanted:
                return sentence, code
    if codes[first] == errors.ExitCode.INTERRUPTED:
        return "", errors.ExitCode.INTERRUPTED
    how = f"was killed by signal {-codes[first]}" if codes[first] < 0 else f"ended with exit code {codes[first]}"
    sentence = f"Process {first + 1} of {len(codes)} {how}: the same command goes on from the last checkpoint."
    return sentence, errors.ExitCode.INFRASTRUCTURE
