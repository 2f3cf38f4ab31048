"""Where a run's model comes from: the Python of an architecture, or the graphs of a traced one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from torch import Tensor

from trainer import errors
from trainer.accounting import flops
from trainer.accounting.flops import FlopCount
from trainer.checkpoint.base_weights import BaseCheckpoint, get_inherited_fields
from trainer.config.recipe_overrides import override_recipe
from trainer.config.resolve import ResolvedConfig
from trainer.config.train_config import ConfigError, TrainConfig
from trainer.data.tokenizer import Tokenizer
from trainer.errors import attribute_to_model
from trainer.graph.counting import count_training_cost
from trainer.graph.model import build_model, build_model_without_data
from trainer.graph.schema import TracedArchitecture, read_traced
from trainer.graph.trace import read_recipe
from trainer.models import ARCHITECTURES, PRESETS, load_architecture
from trainer.models.base import Architecture, ArchitectureConfig, LanguageModel, Recipe
from trainer.optim import lora
from trainer.optim import optimizers as optim
from trainer.training.finetune import load_base_weights
from trainer.training.random_state import seed_everything


@dataclass(frozen=True)
class BuiltModel:
    """A model before it is placed on devices."""

    model: LanguageModel
    recipe: Recipe
    fields: Mapping[str, Any]  # of the architecture's Config
    lineage: dict[str, Any] | None = None
    traced: TracedArchitecture | None = None

    @property
    def graph_hash(self) -> str | None:
        return self.traced and self.traced.compute_hash()


@dataclass(frozen=True)
class PythonSource:
    """An architecture's module."""

    name: str
    module: Architecture

    @classmethod
    def load(cls, name: str) -> Self:
        """Import the architecture. Raises `UserError` for an unknown name, `ModelError` for broken Python."""
        if name not in ARCHITECTURES:
            load_architecture(name)  # raises a `UserError` that names the known ones
        with attribute_to_model(f"while the architecture {name} was imported"):
            module = load_architecture(name)
        return cls(name, module)

    def build(
        self,
        config: TrainConfig,
        resolved: ResolvedConfig,
        tokenizer: Tokenizer,
        vocabulary_size: int,
        base: BaseCheckpoint | None,
    ) -> BuiltModel:
        """Build the model from the run's seed, with the weights of the base checkpoint and adapters, if any."""
        inherited = get_inherited_fields(base, self.name)
        model_config = configure_model(self.module, config, resolved, tokenizer, vocabulary_size, inherited)
        seed_everything(config.seed)
        with attribute_to_model("while the model was built"):
            model = self.module.Model(model_config)
            recipe = self.module.recipe(model_config)
        lineage = None if base is None else load_base_weights(model, base, tokenizer, self.name)
        if config.lora.rank:
            lora.add_adapters(model, config.lora, model_config.vocabulary_size)
            recipe = lora.build_adapter_recipe(recipe, config.lora)
        recipe = override_recipe(recipe, config.recipe)
        optim.check_installed(recipe)
        fields = dataclasses.asdict(model_config)  # type: ignore[call-overload]
        return BuiltModel(model, recipe, fields, lineage)

    def count_flops(self, model: LanguageModel, row: Tensor, rows_per_step: int) -> FlopCount:
        """Count a forward and backward pass over `row [1, T]`."""
        return flops.count_flops(model, row)


@dataclass(frozen=True)
class GraphSource:
    """A traced architecture: none of its Python runs."""

    traced: TracedArchitecture

    @classmethod
    def read(cls, folder: Path) -> Self:
        return cls(read_traced(folder))

    def build(
        self,
        config: TrainConfig,
        resolved: ResolvedConfig,
        tokenizer: Tokenizer,
        vocabulary_size: int,
        base: BaseCheckpoint | None,
    ) -> BuiltModel:
        """Build the model from the run's seed. Raises `ConfigError` if it was traced for other sizes."""
        fields = self.traced.recipe
        for name, value in (("vocabulary_size", vocabulary_size), ("sequence_length", resolved.sequence_length)):
            if fields.get(name) != value:
                raise ConfigError(f"the graph was traced for {name} {fields.get(name)}, and this run has {value}")
        seed_everything(config.seed)
        with attribute_to_model("while the model was built"):
            model = build_model(self.traced)
        recipe = override_recipe(read_recipe(self.traced), config.recipe)
        optim.check_installed(recipe)
        return BuiltModel(model, recipe, fields["model"], traced=self.traced)

    def count_flops(self, model: LanguageModel, row: Tensor, rows_per_step: int) -> FlopCount:
        """Count the joint forward and backward graph, without computing it."""
        cost = count_training_cost(build_model_without_data(self.traced))
        return FlopCount(cost.flops_per_token(rows_per_step))


def configure_model(
    module: Architecture,
    config: TrainConfig,
    resolved: ResolvedConfig,
    tokenizer: Tokenizer,
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
    for name, value in overrides.items():
        default = getattr(sized, name)
        if type(value) is not type(default) and not (isinstance(default, float) and isinstance(value, int)):
            raise ConfigError(f"model.{name} cannot be {value!r}: it is of type {type(default).__name__}")
    end_of_text = {"end_of_text": tokenizer.end_of_text} if "end_of_text" in fields else {}
    try:
        return dataclasses.replace(sized, **overrides, **end_of_text)
    except ValueError as error:
        raise ConfigError(errors.to_one_line(error)) from error
