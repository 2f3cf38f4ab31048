"""Train a stretch of a run once more: from a checkpoint, or from the first weights, up to a step.

    python -m trainer.replay --until 300 [--clock FILE] CONFIGURATION...

The configuration is that of `trainer.train`. With `--out` holding the checkpoint where the stretch begins, the one at
its end is written beside it; without one the stretch begins at step 0, and that is written too. Nothing is measured
and nothing evaluated in between. Where the budget is in seconds the schedule follows `--clock`: what each step was
charged when the run was trained (`state.json` of a later checkpoint).

It runs in the sandbox, with the entry's code, and never sees what it is compared with: `trainer.replay_compare`.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from trainer import failures
from trainer.arguments import Parser
from trainer.config import ConfigError, TrainConfig, parse
from trainer.failures import ModelFailure
from trainer.run import Run, keep
from trainer.train import account, setup, train_step, warm_up


def command(argv: Sequence[str]) -> int:
    """Return the exit code, as `trainer.train` does; all trouble is told on standard error."""
    parser = Parser(prog="trainer.replay", description="Train a stretch of a run once more.", add_help=False)
    parser.add_argument("--until", type=int, required=True)
    parser.add_argument("--clock", type=Path)
    options, rest = parser.parse_known_args(argv)
    try:
        clock = json.loads(options.clock.read_bytes()) if options.clock else []
        replay(parse(rest, "trainer.replay"), options.until, clock, Console(stderr=True))
    except ModelFailure as failure:
        traceback.print_exception(failure)
        return failures.MODEL
    except (ValueError, OSError) as error:
        sys.stderr.write(f"trainer.replay: {' '.join(str(error).split())}\n")
        return failures.USER
    return failures.DONE


def replay(config: TrainConfig, until: int, clock: Sequence[int], console: Console) -> Path:
    """Train up to step `until`, or to the end of the budget if that comes first; return the folder of what came out.

    `clock`: microseconds charged for each step from the first of the run on; used where the budget is in seconds.
    """
    run = setup(config, console)
    begun = run.spent.steps
    if begun >= until:
        raise ConfigError(f"the stretch ends at step {until}, and the checkpoint is of step {begun}")
    if run.budget.kind == "seconds" and len(clock) < until:
        raise ConfigError(f"a budget in seconds needs what {until} steps were charged, and {len(clock)} are known")
    if begun == 0:
        keep(run)
    if run.resolved.compile:
        warm_up(run)
    while run.spent.steps < until and run.fraction < 1:
        loss, _ = train_step(run, run.fraction)
        account(run, loss, charged(run, clock))
    return keep(run)


def charged(run: Run, clock: Sequence[int]) -> float:
    """Return the seconds that the step just made was charged; 0 where the schedule does not depend on it."""
    return clock[run.spent.steps] / 1e6 if run.budget.kind == "seconds" else 0.0


if __name__ == "__main__":
    raise SystemExit(command(sys.argv[1:]))
