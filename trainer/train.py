"""`dailytrain train` and `python -m trainer.train`: train an architecture within a budget.

The run's folder holds `run.json` (what it is), `tokenizer.json`, `metrics.jsonl`, `checkpoints/` and at the end
`result.json` or `failure.json`. Exit codes are in `trainer.errors`. Standard output stays empty.

`trainer.training.loop` builds the run, `trainer.training.loop` trains it. With several devices there is one process
for each; `trainer.distributed.launch` starts them.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from trainer import errors
from trainer.config.parsing import parse_config
from trainer.config.train_config import TrainConfig
from trainer.errors import DamagedDatasetError, ModelError, UserError
from trainer.training.loop import build_run, fit_and_finish
from trainer.training.run import StopRequest

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Environment variable of torch: the file in which a process reports its failure."""


def main(argv: Sequence[str]) -> int:
    """Return the exit code; every failure is reported on standard error."""
    try:
        config = parse_config(argv)
        with StopRequest() as stop:
            if config.devices > 1 and not is_launched():
                from trainer.distributed.launch import launch_processes

                return launch_processes(argv, config.devices, config.out)
            return run_training(config, Console(stderr=True, quiet=not is_first_process()), stop)
    except UserError as error:
        return report_error(errors.to_one_line(error), errors.ExitCode.USER_ERROR)
    except KeyboardInterrupt:
        return report_error("interrupted", errors.ExitCode.INTERRUPTED)


def run_training(config: TrainConfig, console: Console, stop: StopRequest) -> int:
    """Build the run, train it and return the exit code. `UserError`s are raised, other failures are reported."""
    try:
        (config.out / "failure.json").unlink(missing_ok=True)
        run = build_run(config, console)
        try:
            return fit_and_finish(run, console, stop)
        finally:
            run.loader.close()
            run.writer.close()
    except Exception as error:
        return report_failure(config, error)


def report_failure(config: TrainConfig, error: Exception) -> int:
    """Write `failure.json` and print one line, after a traceback for unexpected errors; return the exit code.

    A `UserError` is raised again, except that of a damaged dataset.
    """
    reason = errors.explain_error(error)
    if reason is None:
        traceback.print_exception(error.__cause__ or error)
        what = "" if isinstance(error, ModelError) else f"The training process broke: {type(error).__name__}: "
        reason = f"{what}{errors.to_one_line(error)}"
    fault, is_user_error = errors.find_fault(error, config.graph is not None), isinstance(error, UserError)
    is_user_error = is_user_error and not isinstance(error, DamagedDatasetError)
    if reason:
        errors.write_failure(config.out, fault, errors.to_one_line(error) if is_user_error else reason)
    if is_user_error:
        raise error
    return report_error(reason, errors.ExitCode.MODEL_ERROR if fault == "model" else errors.ExitCode.INFRASTRUCTURE)


def report_error(reason: str, code: int) -> int:
    """Print one line, or leave that to the process that started this one; return the exit code."""
    return code if report_to_launcher(reason) else errors.print_error("dailytrain train", reason, code)


def is_launched() -> bool:
    """Return whether this is one of several processes, started here or by torchrun."""
    return "LOCAL_RANK" in os.environ


def is_first_process() -> bool:
    return os.environ.get("LOCAL_RANK", "0") == "0"


def report_to_launcher(message: str) -> bool:
    """Report this process's failure in torch's format. Return False if no process launched this one."""
    if ERROR_FILE not in os.environ:
        return False
    if message:
        Path(os.environ[ERROR_FILE]).write_text(json.dumps({"message": message, "timestamp": int(time.time())}))
    return True


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
