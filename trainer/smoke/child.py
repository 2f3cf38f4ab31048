"""The sandboxed process of a smoke test, which imports the architecture: `python -m trainer.smoke.child`.

It writes its report to `smoke.json` and updates it as it proceeds: stage, measurements, and a failure if there is one.
The run that it trains is in the same folder, like one of `dailytrain train`, for the scorer's checks.
"""

from __future__ import annotations

import argparse
import dataclasses
import linecache
import resource
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)

from trainer import errors
from trainer.accounting import flops
from trainer.checkpoint.json_files import atomic_write_json
from trainer.config.parsing import parse_config
from trainer.config.recipe_overrides import override_recipe
from trainer.config.resolve import resolve_config
from trainer.config.train_config import TrainConfig
from trainer.data.tokenizer import Tokenizer
from trainer.errors import ModelError, attribute_to_model, to_one_line
from trainer.graph.schema import GraphError
from trainer.graph.trace import trace_architecture
from trainer.models import ARCHITECTURES, PRESETS, UnknownArchitectureError, load_architecture
from trainer.models.base import Architecture, Recipe
from trainer.optim import optimizers
from trainer.training.loop import fit_and_finish
from trainer.training.model_sources import configure_model
from trainer.training.setup import build_run

REPORT_FILE = "smoke.json"
REQUIRED_NAMES = ("Config", "Model", "recipe")  # defined by every architecture
STATE_BYTES = {"muon": 4, "adamw": 8, "adamw8bit": 2}
"""Bytes of optimizer state per parameter; weights and gradients take four each."""
DEFAULT_VOCABULARY_SIZE = 32768  # used if the tokenizer is a file outside the sandbox
FAKE_TENSOR_ERRORS = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException)
BUILD_ERRORS = (ValueError, AssertionError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError)
"""Raised by mistakes in shapes while a model is built."""


class CpuDeadline:
    """Stops the training loop after some CPU time, with the interface of `StopRequest`.

    CPU time, since other processes may be busy on this machine.
    """

    def __init__(self, seconds: float) -> None:
        self.is_graceful = False
        self._end = time.process_time() + seconds

    @property
    def is_requested(self) -> bool:
        return time.process_time() > self._end


class ReportWriter:
    """Writes the report to disk at every stage, since the process may be killed."""

    def __init__(self, out: Path) -> None:
        self._file = out / REPORT_FILE
        self._report: dict[str, Any] = {"hints": []}

    def enter_stage(self, stage: str, **numbers: Any) -> None:
        self._report |= {"stage": stage, **numbers}
        atomic_write_json(self._file, self._report)

    def add_hint(self, sentence: str) -> None:
        self._report["hints"].append(sentence)

    def set_failure(self, reason: str, error: BaseException | None = None) -> None:
        self._report["failure"] = {"reason": reason, **locate_in_architecture(error)}
        atomic_write_json(self._file, self._report)


def main(argv: Sequence[str]) -> int:
    """Return the exit code, as `trainer.train` does."""
    parser = argparse.ArgumentParser(prog="trainer.smoke.child", add_help=False)
    parser.add_argument("--small-dataset", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--arch", required=True)
    parser.add_argument("--out", type=Path, required=True)
    options, flags = parser.parse_known_args(argv)
    report = ReportWriter(options.out)
    try:
        run_smoke_test(options, flags, report)
    except ModelError as failure:
        if not errors.is_expected(failure):
            traceback.print_exception(failure.__cause__ or failure)
        report.set_failure(format_model_error(failure), failure.__cause__)
        return errors.ExitCode.MODEL_ERROR
    except UnknownArchitectureError as error:
        report.set_failure(f"{capitalize(error)}. A new one needs its line in the dict of trainer/models/__init__.py.")
        return errors.ExitCode.USER_ERROR
    except Exception as error:
        is_user_error = isinstance(error, errors.UserError)
        if not is_user_error:
            traceback.print_exception(error)
        if locate_in_architecture(error):
            report.set_failure(f"{type(error).__name__}: {error}", error)
            return errors.ExitCode.MODEL_ERROR
        report.set_failure(capitalize(error))
        return errors.ExitCode.USER_ERROR if is_user_error else errors.ExitCode.INFRASTRUCTURE
    return errors.ExitCode.OK


def run_smoke_test(options: argparse.Namespace, flags: list[str], report: ReportWriter) -> None:
    """Run all stages, the fastest first."""
    name, out = options.arch, options.out
    report.enter_stage("imports")
    full = parse_config([*flags, "--arch", name, "--out", str(out)])
    small = shrink_config(full, options)
    module = import_architecture(name)
    run = build_run(small, Console(stderr=True, quiet=True))
    try:
        size = (run.resolved.depth, run.resolved.sequence_length)
        report.enter_stage("sizes", small_parameters=flops.count_parameters(run.raw_model)["total"], small_size=size)
        report.enter_stage("trains", **measure_full_size(module, full, run.dataset.tokenizer, report))
        hint_uncounted_flops(run.flop_count, report)
        train_small_model(run, options, report)
        with suppress(GraphError):  # the causality check fails without graphs
            trace_architecture(module, module.Config(**run.identity["model"])).write(out / "graph")  # type: ignore[call-arg]
    finally:
        run.loader.close()
        run.writer.close()


def shrink_config(full: TrainConfig, options: argparse.Namespace) -> TrainConfig:
    """Return the tiny configuration that is trained, with the recipe and all fields of the model except sizes."""
    flags = {
        "--preset": "tiny",
        "--arch": options.arch,
        "--dataset": options.small_dataset,
        "--out": options.out,
        "--budget": f"{options.steps}steps",
        "--checkpoint-every": f"{options.steps}steps",
        "--train.sample-tokens": 0,
        "--train.evaluations": 2,
    }
    tiny = parse_config([f"{name}={value}" for name, value in flags.items()])
    fields = {name: value for name, value in full.model.items() if type(value) is not int}
    return dataclasses.replace(tiny, preset=None, model={**tiny.model, **fields}, recipe=full.recipe)


def import_architecture(name: str) -> Architecture:
    if name not in ARCHITECTURES and name not in PRESETS:
        load_architecture(name)  # raises an error that lists the known ones
    with attribute_to_model(f"while the architecture {name} was imported"):
        module = load_architecture(name)
    missing = [name for name in REQUIRED_NAMES if not hasattr(module, name)]
    if missing:
        file = ARCHITECTURES[name].replace(".", "/") + ".py"
        raise ModelError(f"{file} has no {missing[0]}: an architecture has a Config, a Model and a recipe.")
    return module


# --- the full size ----------------------------------------------------------------------------------------------------


def measure_full_size(
    module: Architecture, config: TrainConfig, tokenizer: Tokenizer, report: ReportWriter
) -> dict[str, Any]:
    """Return the measurements of the model at its configured size, on fake tensors (without data)."""
    resolved = resolve_config(config, "cuda" if config.device == "cuda" else "cpu")
    size = f"depth {resolved.depth}, {resolved.sequence_length} tokens a row"
    shape = {"depth": resolved.depth, "sequence_length": resolved.sequence_length}
    numbers: dict[str, Any] = {
        **shape,
        "preset": config.preset,
        "tokens_per_step": resolved.tokens_per_step,
        "budget": str(config.parsed_budget),
    }
    with FakeTensorMode(allow_non_fake_inputs=True):
        try:
            model_config = configure_model(module, config, resolved, tokenizer, get_vocabulary_size(config, report))
            model = module.Model(model_config)
            recipe = override_recipe(module.recipe(model_config), config.recipe)
            numbers |= {"parameters": flops.count_parameters(model), "state_bytes": count_state_bytes(model, recipe)}
        except FAKE_TENSOR_ERRORS as error:
            report.add_hint(f"Its full size could not be counted beforehand ({type(error).__name__}).")
            return numbers
        except BUILD_ERRORS as error:
            reason = f"{type(error).__name__}: {to_one_line(error)}"
            raise ModelError(f"At its full size ({size}) it cannot be built: {reason}") from error
        try:
            counted = flops.count_flops(model, torch.zeros(1, resolved.sequence_length, dtype=torch.int64))
        except Exception as error:  # fake tensors do not support every operation
            report.add_hint(f"The FLOPs of its full size could not be counted beforehand ({type(error).__name__}).")
            return numbers
    return {**numbers, "flops_per_token": counted.per_token}


def get_vocabulary_size(config: TrainConfig, report: ReportWriter) -> int:
    """Return the vocabulary size if the tokenizer's name contains it, else the default."""
    kind, _, rest = (config.tokenizer or "").partition(":")
    if kind == "bpe" and rest.isdigit():
        return int(rest)
    if kind == "gpt2":
        return 50257
    if config.tokenizer:
        report.add_hint(f"Counted for a vocabulary of {DEFAULT_VOCABULARY_SIZE:,}: the tokenizer is not here.")
    return DEFAULT_VOCABULARY_SIZE


def count_state_bytes(model: torch.nn.Module, recipe: Recipe) -> int:
    """Return the bytes of weights, gradients and optimizer states, without activations."""
    groups = optimizers.assign_parameters(model, recipe)
    states = sum(STATE_BYTES[group.optimizer] * p.numel() for group, members in groups for p in members.values())
    return states + sum((8 if p.requires_grad else 4) * p.numel() for p in model.parameters())


def hint_uncounted_flops(counted: flops.FlopCount, report: ReportWriter) -> None:
    if counted.void:
        names = f" ({', '.join(counted.names)})" if counted.names else ""
        report.add_hint(f"{counted.void.rstrip('.')}{names}. It can be trained, but cannot set a record by FLOPs.")


# --- the small model --------------------------------------------------------------------------------------------------


def train_small_model(run: Any, options: argparse.Namespace, report: ReportWriter) -> None:
    started = time.process_time()
    code = fit_and_finish(run, Console(stderr=True, quiet=True), CpuDeadline(options.seconds))  # type: ignore[arg-type]
    report.enter_stage(
        "trains" if code == errors.ExitCode.INTERRUPTED else "done",
        steps=run.usage.steps,
        train_seconds=round(time.process_time() - started, 3),
        tokens_per_second=run.usage.tokens / max(run.usage.seconds, 1e-9),
        memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


# --- errors --------------------------------------------------------------------------------------------------------


def locate_in_architecture(error: BaseException | None) -> dict[str, Any]:
    """Return file, line and text of the innermost frame in an architecture's file; {} if there is none."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        lines = [(error.filename, error.lineno)]
    else:
        frames = traceback.extract_tb(error.__traceback__) if error else []
        lines = [(frame.filename, frame.lineno or 0) for frame in frames]
    frames_in_models = [line for line in lines if "/trainer/models/" in line[0] and not line[0].endswith("__init__.py")]
    if not frames_in_models:
        return {}
    file, line = frames_in_models[-1]
    return {
        "file": "trainer/models/" + file.rpartition("/trainer/models/")[2],
        "line": line,
        "text": linecache.getline(file, line).strip()[:200],
    }


def format_model_error(failure: ModelError) -> str:
    """Return the message, without the advice for large models."""
    if errors.is_out_of_memory(failure.__cause__):
        return f"{str(failure).partition(':')[0]}, at a small size already"
    return str(failure)


def capitalize(error: BaseException) -> str:
    message = to_one_line(error).rstrip(".")
    return message[:1].upper() + message[1:]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
