"""Repeat a part of a run: train from a checkpoint, or from the initial weights, to some steps.

    python -m trainer.training.replay --until 300 400 [--recorded-state FILE] CONFIGURATION...

The configuration is that of `trainer.train`. The replay starts at the checkpoint in `--out`, or at step 0, whose
checkpoint it then writes. It writes one at each of the steps, goes on from its own state and evaluates nothing.
`--recorded-state` holds what
depended on the original machine, from the `state.json` of a later checkpoint: the time charged for each step, which
the schedule of a budget in seconds follows, and `RECORDED_FIELDS`.

It does not see what `trainer.scoring.compare_replay` compares its checkpoints with.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from rich.console import Console

from trainer import errors
from trainer.config.parsing import parse_config
from trainer.config.recipe_overrides import convert_value
from trainer.config.train_config import MACHINE_FIELDS, ConfigError, TrainArgs, TrainConfig, resolve_config
from trainer.distributed.devices import select_device
from trainer.errors import ModelError, UserError
from trainer.training.checkpointing import save_checkpoint
from trainer.training.loop import build_run, charge_step, read_last_step, run_step
from trainer.training.run import Run

RECORDED_FIELDS = (*MACHINE_FIELDS, "micro_batch")


def main(argv: Sequence[str]) -> int:
    """Return the exit code, as `trainer.train` does. Errors are printed on standard error."""
    parser = argparse.ArgumentParser(prog="trainer.training.replay", add_help=False)
    parser.add_argument("--until", type=int, nargs="+", required=True)
    parser.add_argument("--recorded-state", type=Path)
    options, rest = parser.parse_known_args(argv)
    try:
        recorded = read_recorded_state(options.recorded_state) if options.recorded_state else {}
        config = parse_config(rest, "trainer.training.replay")
        replay_run(config, options.until, recorded, Console(stderr=True))
    except ModelError as error:
        traceback.print_exception(error)
        fault = errors.find_fault(error, is_graph=config.graph is not None)
        errors.write_failure(config.out, fault, str(error))
        return errors.ExitCode.MODEL_ERROR if fault == "model" else errors.ExitCode.INFRASTRUCTURE
    except (UserError, OSError) as error:
        return errors.print_error("trainer.training.replay", error, errors.ExitCode.USER_ERROR)
    return errors.ExitCode.OK


def read_recorded_state(path: Path) -> dict[str, Any]:
    """Raises `ConfigError` for a file that is not a JSON object."""
    try:
        recorded = json.loads(path.read_bytes())
    except ValueError:
        recorded = None
    if not isinstance(recorded, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return recorded


def replay_run(config: TrainConfig, until: Sequence[int], recorded: Mapping[str, Any], console: Console) -> None:
    """Train to the last step of `until`, or to the end of the budget if that comes first. Write a checkpoint at each.

    `recorded`: "clock", the microseconds charged for each step of the run, and "train", values of `RECORDED_FIELDS`.
    """
    config = dataclasses.replace(config, keep=len(until) + 1)
    run = build_run(apply_recorded_fields(config, recorded.get("train", {})), console)
    try:
        train_steps(run, until, recorded.get("clock", ()))
    finally:
        run.loader.close()
        run.writer.close()


def apply_recorded_fields(config: TrainConfig, train: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration with the recorded values of fields that are not configured, and the micro-batch.

    The machine that is checked recorded them: impossible ones are ignored, so that they cannot prevent the replay.
    """
    device, hints = select_device(config.device, config.devices), get_type_hints(TrainArgs)
    for name in RECORDED_FIELDS:
        is_configured = name in MACHINE_FIELDS and getattr(config.train, name) not in (None, "auto")
        if name not in train or is_configured:
            continue
        try:
            value = convert_value(name, train[name], hints[name])
            changed = dataclasses.replace(config, train=dataclasses.replace(config.train, **{name: value}))
            resolve_config(changed, device)
        except ConfigError as error:
            sys.stderr.write(f"The recorded {name} is ignored: {error}\n")
        else:
            config = changed
    return config


def train_steps(run: Run, until: Sequence[int], clock: Sequence[int]) -> None:
    first, is_timed = run.usage.steps, run.budget.kind == "seconds"
    if first >= until[0]:
        raise ConfigError(f"the replay ends at step {until[0]}, but the checkpoint is of step {first}")
    if is_timed and len(clock) < until[-1]:
        raise ConfigError(
            f"a budget in seconds needs the recorded time of {until[-1]} steps, and {len(clock)} are known"
        )
    if first == 0:
        save_checkpoint(run)
    for end in until:
        while run.usage.steps < end and run.fraction < 1:
            run_step(run, run.fraction)
            charge_step(run, clock[run.usage.steps] / 1e6 if is_timed else 0.0)
        if run.unread is not None:
            read_last_step(run)
        if run.fraction >= 1:
            save_checkpoint(run, is_final=True)
            return
        save_checkpoint(run)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
