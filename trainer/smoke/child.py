"""The part of a smoke run that has the architecture in it: `python -m trainer.smoke.child`, in the sandbox.

What it finds is in `smoke.json`, rewritten as it goes along: where it is, numbers, and in the end perhaps a failure.
The run that it trains lies beside it, as `dailytrain train` leaves one, for the scorer's checks.
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
from trainer.errors import ModelError, attribute_to_model
from trainer.models import ARCHITECTURES, PRESETS, UnknownArchitectureError, load_architecture
from trainer.models.base import Architecture, Recipe
from trainer.optim import optimizers
from trainer.train import fit_and_finish
from trainer.training import entry_integrity
from trainer.training.setup import build_run, configure_model

ANSWER = "smoke.json"
PARTS = ("Config", "Model", "recipe")
"""What an architecture's file has."""
STATE_BYTES = {"muon": 4, "adamw": 8, "adamw8bit": 2}
"""Of an optimizer, for each parameter; weights and gradients take four each."""
GUESSED_VOCABULARY = 32768
"""Where the tokenizer is a file that is not here."""
UNCOUNTABLE = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException)
MISTAKES = (ValueError, AssertionError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError)
"""What shapes that do not fit raise while a model is built."""


class CpuDeadline:
    """Asks the loop to stop when the time is up, as `Interruption` does for a person. Of the processor's time: others
    may be busy on this machine, too."""

    def __init__(self, seconds: float) -> None:
        self.is_graceful = False
        self._end = time.process_time() + seconds

    @property
    def is_requested(self) -> bool:
        return time.process_time() > self._end


class FindingsWriter:
    """Keeps what is found, on disk at every step: the process may be killed."""

    def __init__(self, out: Path) -> None:
        self._file = out / ANSWER
        self._found: dict[str, Any] = {"hints": []}

    def at(self, stage: str, **numbers: Any) -> None:
        """From now on it is at this stage."""
        self._found |= {"stage": stage, **numbers}
        atomic_write_json(self._file, self._found)

    def hint(self, sentence: str) -> None:
        self._found["hints"].append(sentence)

    def failed(self, reason: str, error: BaseException | None = None) -> None:
        self._found["failure"] = {"reason": reason, **place(error)}
        atomic_write_json(self._file, self._found)


def main(argv: Sequence[str]) -> int:
    """Return the exit code, as `trainer.train` does."""
    parser = argparse.ArgumentParser(prog="trainer.smoke.child", add_help=False)
    parser.add_argument("--small-dataset", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--arch", required=True)
    parser.add_argument("--out", type=Path, required=True)
    options, flags = parser.parse_known_args(argv)
    find = FindingsWriter(options.out)
    try:
        examine(options, flags, find)
    except ModelError as failure:
        if not errors.is_expected(failure):
            traceback.print_exception(failure.__cause__ or failure)
        find.failed(sentence(failure), failure.__cause__)
        return errors.ExitCode.MODEL_ERROR
    except UnknownArchitectureError as error:
        find.failed(f"{capital(error)}. A new one needs its line in the dict of trainer/models/__init__.py.")
        return errors.ExitCode.USER_ERROR
    except Exception as error:
        if not isinstance(error, ValueError):
            traceback.print_exception(error)
        if place(error):
            find.failed(f"{type(error).__name__}: {error}", error)
            return errors.ExitCode.MODEL_ERROR
        find.failed(capital(error))
        return errors.ExitCode.USER_ERROR if isinstance(error, ValueError) else errors.ExitCode.INFRASTRUCTURE
    return errors.ExitCode.OK


def examine(options: argparse.Namespace, flags: list[str], find: FindingsWriter) -> None:
    """Everything in its order: what is quick to find comes first."""
    name, out = options.arch, options.out
    find.at("imports")
    full = parse_config([*flags, "--arch", name, "--out", str(out)])
    small = shrink_config(full, options)
    with entry_integrity.EntryIntegrity(
        ARCHITECTURES.get(PRESETS.get(name, (name,))[0], entry_integrity.BASE)
    ) as guard:
        module, early = imported(name)
        run = build_run(small, Console(stderr=True, quiet=True), guard)
        try:
            step = run.flops_per_token * run.resolved.tokens_per_step
            entry_integrity.check_early_flops(early, step)
            shown = (run.resolved.depth, run.resolved.sequence_length)
            find.at("sizes", small_parameters=flops.count_parameters(run.raw_model)["total"], small_size=shown)
            find.at("trains", **measured(module, full, run.dataset.tokenizer, find))
            peculiar(run.flop_count, find)
            learn(run, options, find)
        finally:
            run.loader.close()
            run.writer.close()


def shrink_config(full: TrainConfig, options: argparse.Namespace) -> TrainConfig:
    """Return the configuration that is trained here: tiny, with the recipe and the model's fields that are no sizes."""
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


def imported(name: str) -> tuple[Architecture, float]:
    """Return the architecture, and what it computed on the way."""
    if name not in ARCHITECTURES and name not in PRESETS:
        load_architecture(name)  # names the known ones
    with attribute_to_model(f"while the architecture {name} was imported"), flops.FlopMeter() as meter:
        module = load_architecture(name)
    missing = [part for part in PARTS if not hasattr(module, part)]
    if missing:
        file = ARCHITECTURES[name].replace(".", "/") + ".py"
        raise ModelError(f"{file} has no {missing[0]}: an architecture has a Config, a Model and a recipe.")
    return module, meter.flops


# --- its full size ----------------------------------------------------------------------------------------------------


def measured(module: Architecture, config: TrainConfig, tokenizer: Tokenizer, find: FindingsWriter) -> dict[str, Any]:
    """Return what it is at the size that the configuration asks for: counted on tensors without numbers."""
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
            model_config = configure_model(module, config, resolved, tokenizer, vocabulary(config, find))
            model = module.Model(model_config)
            recipe = override_recipe(module.recipe(model_config), config.recipe)
            numbers |= {"parameters": flops.count_parameters(model), "state_bytes": state_bytes(model, recipe)}
        except UNCOUNTABLE as error:
            find.hint(f"Its full size could not be counted beforehand ({type(error).__name__}).")
            return numbers
        except MISTAKES as error:
            said = " ".join(str(error).split())
            raise ModelError(f"At its full size ({size}) it cannot be built: {type(error).__name__}: {said}") from error
        try:
            counted = flops.count_flops(model, torch.zeros(1, resolved.sequence_length, dtype=torch.int64))
        except Exception as error:  # tensors without numbers are not all that tensors are
            find.hint(f"The FLOPs of its full size could not be counted beforehand ({type(error).__name__}).")
            return numbers
    return {**numbers, "flops_per_token": counted.per_token}


def vocabulary(config: TrainConfig, find: FindingsWriter) -> int:
    """Return how many tokens the tokenizer has, where its name says so."""
    kind, _, rest = (config.tokenizer or "").partition(":")
    if kind == "bpe" and rest.isdigit():
        return int(rest)
    if kind == "gpt2":
        return 50257
    if config.tokenizer:
        find.hint(f"Counted for a vocabulary of {GUESSED_VOCABULARY:,}: the tokenizer is not here.")
    return GUESSED_VOCABULARY


def state_bytes(model: torch.nn.Module, recipe: Recipe) -> int:
    """Return what weights, gradients and optimizers take in all; activations come on top."""
    groups = optimizers.assign(model, recipe)
    states = sum(STATE_BYTES[group.optimizer] * p.numel() for group, mine in groups for p in mine.values())
    return states + sum((8 if p.requires_grad else 4) * p.numel() for p in model.parameters())


def peculiar(counted: flops.FlopCount, find: FindingsWriter) -> None:
    if counted.void:
        names = f" ({', '.join(counted.names)})" if counted.names else ""
        find.hint(f"{counted.void.rstrip('.')}{names}. It can be trained, and holds no record by FLOPs.")


# --- the small one ----------------------------------------------------------------------------------------------------


def learn(run: Any, options: argparse.Namespace, find: FindingsWriter) -> None:
    """Train it, and say how far that came."""
    began = time.process_time()
    code = fit_and_finish(run, Console(stderr=True, quiet=True), CpuDeadline(options.seconds))  # type: ignore[arg-type]
    find.at(
        "trains" if code == errors.ExitCode.INTERRUPTED else "done",
        steps=run.usage.steps,
        train_seconds=round(time.process_time() - began, 3),
        tokens_per_second=run.usage.tokens / max(run.usage.seconds, 1e-9),
        memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


# --- where it went wrong ----------------------------------------------------------------------------------------------


def place(error: BaseException | None) -> dict[str, Any]:
    """Return file, line and text of the innermost line of an architecture that the error came through; {} if none."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        found = [(error.filename, error.lineno)]
    else:
        frames = traceback.extract_tb(error.__traceback__) if error else []
        found = [(frame.filename, frame.lineno or 0) for frame in frames]
    own = [(file, line) for file, line in found if "/trainer/models/" in file and not file.endswith("__init__.py")]
    if not own:
        return {}
    file, line = own[-1]
    return {
        "file": "trainer/models/" + file.rpartition("/trainer/models/")[2],
        "line": line,
        "text": linecache.getline(file, line).strip()[:200],
    }


def sentence(failure: ModelError) -> str:
    """Return what a training says, without its advice where that is for large models."""
    if errors.is_out_of_memory(failure.__cause__):
        return f"{str(failure).partition(':')[0]}, at a small size already"
    return str(failure)


def capital(error: BaseException) -> str:
    said = " ".join(str(error).split()).rstrip(".")
    return said[:1].upper() + said[1:]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
