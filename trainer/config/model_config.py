"""Import an architecture and configure its model. Imports no data: the tracing sandbox has none."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from trainer.config.train_config import ConfigError, ResolvedConfig, TrainConfig
from trainer.errors import attribute_to_model, to_one_line
from trainer.models import PRESETS, check_architecture_name, load_architecture
from trainer.models.base import Architecture, ArchitectureConfig


def import_architecture(name: str) -> Architecture:
    """Raises `UserError` for an unknown name, `ModelError` for broken Python."""
    check_architecture_name(name)
    with attribute_to_model(f"while the architecture {name} was imported"):
        return load_architecture(name)


def configure_model(
    module: Architecture,
    config: TrainConfig,
    resolved: ResolvedConfig,
    end_of_text: int,
    vocabulary_size: int,
    inherited: Mapping[str, Any] = MappingProxyType({}),
) -> ArchitectureConfig:
    """Return the model's configuration: the sizes for the depth, then the base checkpoint's fields (`inherited`), then
    the configured fields."""
    sized = module.Config.sized(resolved.depth, vocabulary_size, resolved.sequence_length)
    fields = {field.name for field in dataclasses.fields(sized)}
    known = fields - {"vocabulary_size", "sequence_length", "end_of_text"}
    sized = dataclasses.replace(sized, **{name: value for name, value in inherited.items() if name in known})
    # An architecture of a fixed size ignores the depth that a track or a preset sets for all architectures.
    settable = known - {"depth"} if config.arch in PRESETS else known
    overrides = {name: value for name, value in config.model.items() if name in settable}
    unknown = set(config.model) - known - {"depth"}
    if unknown:
        options = ", ".join(sorted({"depth", *known}))
        raise ConfigError(f"{config.arch} has no option {min(unknown)!r}; it has {options}")
    overrides = {name: convert_field(name, value, getattr(sized, name)) for name, value in overrides.items()}
    special_tokens = {"end_of_text": end_of_text} if "end_of_text" in fields else {}
    try:
        return dataclasses.replace(sized, **overrides, **special_tokens)
    except ValueError as error:
        raise ConfigError(to_one_line(error)) from error


def convert_field(name: str, value: Any, default: Any) -> Any:
    """Return a configured value with the type of the field's default: a number becomes a `float` or text."""
    if isinstance(default, float | str) and type(value) in (int, type(default)):
        return type(default)(value)
    if type(value) is not type(default):
        raise ConfigError(f"model.{name} cannot be {value!r}: it is of type {type(default).__name__}")
    return value
