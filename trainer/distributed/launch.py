"""Start one training process per device on one machine, stop them together, and report why they ended.

torch's elastic multiprocessing, the part of torchrun that runs processes, starts and watches them. torchrun itself does
not fit: it has one timeout for a requested stop, which needs minutes to write a checkpoint, and for the remaining
processes when one is lost, which must end soon. Its rendezvous is not needed on one machine.

The launching process only forwards signals. If a process dies, the steps since the last checkpoint are lost.
"""

from __future__ import annotations

import logging
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.distributed.ports import find_free_port
from trainer.errors import RESUME_HINT, ExitCode, print_error, write_failure

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing import PContext
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

POLL_SECONDS = 0.1
STOP_SECONDS = 3600
"""Time for all processes to write a checkpoint after a signal. The node that sent it kills them sooner."""


def launch_processes(argv: Sequence[str], devices: int, run_folder: Path) -> int:
    """Run `python -m trainer.train` with these arguments once per device. Return the exit code and print the reason."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes

    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)  # one line is enough
    flags = [flag for flag, is_set in (("-s", sys.flags.no_user_site), ("-P", sys.flags.safe_path)) if is_set]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port()), "NODE_RANK": "0"}
    with tempfile.TemporaryDirectory(prefix="dailytrain-") as folder:
        processes = start_processes(
            "train",
            sys.executable,
            args=dict.fromkeys(range(devices), (*flags, "-m", "trainer.train", *argv)),
            envs={rank: {**address, "LOCAL_RANK": str(rank)} for rank in range(devices)},
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        failures = wait_for_processes(processes)
        if not failures:
            return ExitCode.OK
        reason, code = explain_failures(failures, devices)
        is_reported = any(Path(failure.error_file).is_file() for failure in failures.values())
    if code == ExitCode.INFRASTRUCTURE and not is_reported:  # otherwise that process has written `failure.json`
        write_failure(run_folder, "machine", reason)
    return print_error("dailytrain train", reason, code) if reason else code


def wait_for_processes(processes: PContext) -> Mapping[int, ProcessFailure]:
    """Return the failures once all processes have ended. A first signal lets them save; a second one kills them."""
    from torch.distributed.elastic.multiprocessing import SignalException

    try:
        try:
            result = processes.wait(period=POLL_SECONDS)
        except SignalException as stop:
            processes.close(stop.sigval, timeout=STOP_SECONDS)
            result = processes.wait(0)
    except SignalException as second:
        raise KeyboardInterrupt from second
    finally:
        processes.close(signal.SIGKILL)
    assert result is not None
    return result.failures


def explain_failures(failures: Mapping[int, ProcessFailure], count: int) -> tuple[str, int]:
    """Return the reason and the exit code for all: what a process reported, else how the first one ended."""
    reported = [failure for failure in failures.values() if Path(failure.error_file).is_file()]
    for code in (ExitCode.USER_ERROR, ExitCode.MODEL_ERROR, ExitCode.INFRASTRUCTURE):
        for failure in reported:
            if failure.exitcode == code:
                return failure.message, code
    # A process that lost another one ends with 1, and the remaining ones get SIGTERM: neither is the cause.
    first = min(failures.values(), key=lambda failure: (failure.exitcode in (1, -signal.SIGTERM), failure.timestamp))
    if first.exitcode == ExitCode.INTERRUPTED:
        return "", ExitCode.INTERRUPTED
    how = f"was killed by signal {-first.exitcode}" if first.exitcode < 0 else f"ended with exit code {first.exitcode}"
    reason = f"Process {first.local_rank + 1} of {count} {how}. {RESUME_HINT}"
    return reason, ExitCode.INFRASTRUCTURE
