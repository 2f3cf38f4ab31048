"""The process in the tracing sandbox: `python -m trainer.smoke.child` imports an architecture and traces it.

It has no data. It leaves the graphs of a small model in `small/`, those of the full size in `graph/`, and `smoke.json`,
which it updates at every stage: sizes, hints, and a failure if there is one.
"""

from __future__ import annotations

import argparse
import dataclasses
import linecache
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from trainer import errors
from trainer.checkpoint.files import atomic_write_json
from trainer.config.model_config import configure_model, import_architecture
from trainer.config.parsing import parse_config
from trainer.config.recipe_overrides import override_recipe
from trainer.config.train_config import ResolvedConfig, TrainConfig, resolve_config
from trainer.errors import ModelError, to_one_line
from trainer.graph.files import GraphError, TracedArchitecture
from trainer.graph.model import read_recipe
from trainer.graph.trace import trace_architecture
from trainer.models import ARCHITECTURES, UnknownArchitectureError
from trainer.models.base import Architecture, ArchitectureConfig, LanguageModel

REPORT_FILE = "smoke.json"
REQUIRED_NAMES = ("Config", "Model", "recipe")  # defined by every architecture
DEFAULT_VOCABULARY_SIZE = 32768  # used if the tokenizer is a file outside the sandbox
GPT2_VOCABULARY_SIZE = 50257  # its end-of-text token is the last one; of other tokenizers it is the first
GENERATED_TOKENS = 24
GENERATION_TOLERANCE = 0.01  # of the features' mean size; a cache changes the order of sums only
LOCATION = re.compile(r"(\w+\.py), line (\d+)(?: \(`(.*?)`\))?:? (.*)", re.DOTALL)
"""The place at which a `GraphError` begins, and its reason."""


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

    def set_trace_failure(self, failure: UntraceableError) -> None:
        location = LOCATION.fullmatch(str(failure.error))
        if location is None:
            self.set_failure(f"{failure}: {failure.error}", failure.error)
            return
        file, line, text, reason = location.groups()
        place = {"file": f"trainer/models/{file}", "line": int(line), "text": text or ""}
        self._report["failure"] = {"reason": f"{failure}: {reason}", **place}
        atomic_write_json(self._file, self._report)


class UntraceableError(Exception):
    """An architecture cannot be traced at one of the two sizes."""

    def __init__(self, message: str, error: GraphError) -> None:
        super().__init__(message)
        self.error = error


def main(argv: Sequence[str]) -> int:
    """Return the exit code, as `trainer.train` does."""
    parser = argparse.ArgumentParser(prog="trainer.smoke.child", add_help=False)
    parser.add_argument("--arch", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--small-vocabulary-size", type=int, required=True)
    parser.add_argument("--vocabulary-size", type=int)
    parser.add_argument("--trace-only", action="store_true")
    options, flags = parser.parse_known_args(argv)
    report = ReportWriter(options.out)
    try:
        trace_both_sizes(options, flags, report)
    except UntraceableError as failure:
        report.set_trace_failure(failure)
        return errors.ExitCode.MODEL_ERROR
    except ModelError as failure:
        if errors.explain_error(failure) is None:
            traceback.print_exception(failure.__cause__ or failure)
        report.set_failure(str(failure), failure.__cause__)
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


def trace_both_sizes(options: argparse.Namespace, flags: list[str], report: ReportWriter) -> None:
    """Trace the small model, then the full size."""
    report.enter_stage("imports")
    full = parse_config([*flags, "--arch", options.arch, "--out", str(options.out)])
    module = import_architecture(options.arch)
    check_required_names(module, options.arch)
    if not options.trace_only:
        small = shrink_config(full)
        config = configure_at_size(module, small, options.small_vocabulary_size, 0)
        traced = trace_at_size(module, config, "It cannot be traced")
        override_traced_recipe(traced, full).write(options.out / "small")
        check_generation(module, config, report)
    resolved = resolve_full_size(full)
    report.enter_stage("sizes", **describe_size(full, resolved))
    vocabulary_size = options.vocabulary_size or get_vocabulary_size(full, report)
    message = f"At its full size (depth {resolved.depth}, {resolved.sequence_length} tokens a row) it cannot be traced"
    config = configure_at_size(module, full, vocabulary_size, get_end_of_text(full))
    traced = trace_at_size(module, config, message)
    traced.write(options.out / "graph")
    report.enter_stage("done")


def check_required_names(module: Architecture, name: str) -> None:
    """Raise `ModelError` if an architecture lacks a part."""
    missing = [name for name in REQUIRED_NAMES if not hasattr(module, name)]
    if missing:
        file = ARCHITECTURES[name].replace(".", "/") + ".py"
        raise ModelError(f"{file} has no {missing[0]}: an architecture has a Config, a Model and a recipe.")


def configure_at_size(
    module: Architecture, config: TrainConfig, vocabulary_size: int, end_of_text: int
) -> ArchitectureConfig:
    return configure_model(module, config, resolve_full_size(config), end_of_text, vocabulary_size)


def trace_at_size(module: Architecture, config: ArchitectureConfig, message: str) -> TracedArchitecture:
    """Return the graphs at a size. `message`: of the error if it cannot be traced."""
    try:
        return trace_architecture(module, config)
    except GraphError as error:
        raise UntraceableError(message, error) from error


def check_generation(module: Architecture, config: ArchitectureConfig, report: ReportWriter) -> None:
    """Add a hint if `advance` computes something else than `features`: no score shows it, since graphs have none."""
    if module.Model.advance is LanguageModel.advance:
        return
    try:
        difference, size = compare_generation(module.Model(config), config)
    except Exception as error:
        report.add_hint(f"`advance`, which generates text token by token, raises {type(error).__name__}: {error}")
        return
    if not difference <= GENERATION_TOLERANCE * size:
        report.add_hint(
            f"`advance`, which generates text token by token, differs from `features` by up to {difference:.2g}"
            f" (features are {size:.2g} large): its text is another model's. Remove it, or change it as `features`."
        )


def compare_generation(model: LanguageModel, config: ArchitectureConfig) -> tuple[float, float]:
    """Return the largest difference between features of a row at once and piece by piece, and their mean size."""
    generator = torch.Generator().manual_seed(0)
    length = min(config.sequence_length, GENERATED_TOKENS)
    tokens = torch.randint(config.vocabulary_size, (1, length), generator=generator)
    with torch.no_grad():
        for parameter in model.eval().parameters():  # initial zeros would hide what a block computes
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
        expected, state, found = model.features(tokens), None, []
        for piece in tokens.split([length - length // 2, *[1] * (length // 2)], dim=1):
            features, state = model.advance(piece, state)
            found.append(features)
    return float((torch.cat(found, 1) - expected).abs().max()), float(expected.abs().mean())


# --- sizes ------------------------------------------------------------------------------------------------------------


def shrink_config(full: TrainConfig) -> TrainConfig:
    """Return the tiny configuration that is trained, with all fields of the model except sizes."""
    tiny = parse_config(["--preset", "tiny", "--arch", full.arch, "--out", str(full.out)])
    fields = {name: value for name, value in full.model.items() if type(value) is not int}
    return dataclasses.replace(tiny, preset=None, model={**tiny.model, **fields})


def override_traced_recipe(traced: TracedArchitecture, config: TrainConfig) -> TracedArchitecture:
    """Return the graphs with the recipe that the configuration asks for."""
    recipe = override_recipe(read_recipe(traced), config.recipe)
    return dataclasses.replace(traced, recipe={**traced.recipe, "recipe": dataclasses.asdict(recipe)})


def resolve_full_size(config: TrainConfig) -> ResolvedConfig:
    return resolve_config(config, "cuda" if config.device == "cuda" else "cpu")


def describe_size(config: TrainConfig, resolved: ResolvedConfig) -> dict[str, Any]:
    return {
        "depth": resolved.depth,
        "sequence_length": resolved.sequence_length,
        "tokens_per_step": resolved.tokens_per_step,
        "preset": config.preset,
        "budget": str(config.parsed_budget),
    }


def get_vocabulary_size(config: TrainConfig, report: ReportWriter) -> int:
    """Return the vocabulary size if the tokenizer's name contains it, else the default."""
    kind, _, rest = (config.tokenizer or "").partition(":")
    if kind == "bpe" and rest.isdigit():
        return int(rest)
    if kind == "gpt2":
        return GPT2_VOCABULARY_SIZE
    if config.tokenizer:
        report.add_hint(f"Counted for a vocabulary of {DEFAULT_VOCABULARY_SIZE:,}: the tokenizer is not here.")
    return DEFAULT_VOCABULARY_SIZE


def get_end_of_text(config: TrainConfig) -> int:
    """Return the end-of-text token of the configured tokenizer."""
    return GPT2_VOCABULARY_SIZE - 1 if (config.tokenizer or "").startswith("gpt2") else 0


# --- errors -----------------------------------------------------------------------------------------------------------


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


def capitalize(error: BaseException) -> str:
    message = to_one_line(error).rstrip(".")
    return message[:1].upper() + message[1:]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
