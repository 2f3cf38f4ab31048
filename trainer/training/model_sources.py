"""Sources of a run's model: graphs, traced from an architecture or given, or the architecture's Python itself."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from trainer.accounting import flops
from trainer.config.model_config import configure_model, import_architecture
from trainer.config.train_config import ConfigError, ResolvedConfig, TrainConfig
from trainer.data.tokenizer import Tokenizer
from trainer.errors import ModelError, attribute_to_model
from trainer.graph.counting import count_training_cost
from trainer.graph.files import GraphError, TracedArchitecture, check_saved_dtype
from trainer.graph.initialization import count_charged_flops
from trainer.graph.model import build_model, build_model_without_data, read_recipe
from trainer.models import PRESETS
from trainer.models.base import Architecture, ArchitectureConfig, LanguageModel, Recipe
from trainer.optim import optimizers as optim

if TYPE_CHECKING:
    from trainer.checkpoint.base_weights import BaseCheckpoint


EAGER_HINT = "`--eager` trains the Python module for debugging"


@dataclass(frozen=True)
class BuiltModel:
    """A model before it is placed on devices."""

    model: LanguageModel
    recipe: Recipe
    fields: Mapping[str, Any]  # of the architecture's Config
    lineage: dict[str, Any] | None = None
    traced: TracedArchitecture | None = None  # None: the model is the architecture's module

    @property
    def graph_hash(self) -> str | None:
        return self.traced and self.traced.compute_hash()

    def count_flops(self, row: Tensor, resolved: ResolvedConfig) -> float:
        """Return the FLOPs per token of a forward and backward pass: of a module, counted over `row [1, T]`.

        Those of a graph are checked for each micro-batch that the run may have. `resolved` has the upper limit.
        """
        if self.traced is None:
            return flops.count_flops(self.model, row)
        sizes = [size for size in range(1, resolved.micro_batch + 1) if resolved.rows_per_device % size == 0]
        return count_training_cost(build_model_without_data(self.traced), sizes, resolved.device).flops_per_token

    def count_initial_flops(self) -> int:
        """Return what the run pays for its initialization before the first step; 0 for a module's."""
        return 0 if self.traced is None else count_charged_flops(self.traced.initialization)

    def count_window_flops(self, row: Tensor) -> float:
        """Return the FLOPs per token of matrix products alone, with attention counted over its windows.

        nanochat counts this way, so MFU by this count can be compared with its. `row`: tokens `[1, T]`.
        """
        if self.traced is None:
            return flops.count_flops(self.model, row, cut_windows=True)
        return flops.count_flops(build_model_without_data(self.traced), row.to("meta"), cut_windows=True)


@dataclass(frozen=True)
class ModelSource:
    """The source of a run's model."""

    config: TrainConfig
    resolved: ResolvedConfig
    saved: Mapping[str, Any]  # identity of the run that is resumed; empty for a new one
    module: Architecture | None  # None: `config.graph` is trained, and no Python of an architecture runs

    def build(self, tokenizer: Tokenizer, vocabulary_size: int, base: BaseCheckpoint | None) -> BuiltModel:
        """Build the model from the run's seed, with the weights of the base checkpoint and adapters, if any."""
        if self.module is None:
            assert self.config.graph is not None
            from trainer.graph.reading import read_traced

            traced = read_traced(self.config.graph)
            self.check_sizes(traced, tokenizer, vocabulary_size)
            return self.build_from_graphs(traced, traced.recipe["model"])
        inherited = {} if base is None else base.get_inherited_fields(self.config.arch)
        model_config = configure_model(
            self.module, self.config, self.resolved, tokenizer.end_of_text, vocabulary_size, inherited
        )
        if not self.find_eager_reason():
            fields = dataclasses.asdict(model_config)  # type: ignore[call-overload]
            return self.build_from_graphs(self.read_saved_graphs() or self.trace(model_config), fields)
        return self.build_from_module(self.module, model_config, tokenizer, base)

    def find_eager_reason(self) -> str:
        """Return why the architecture's module is trained instead of graphs; empty if graphs are."""
        config = self.config
        if config.graph is not None:
            return ""
        reasons = {
            "--eager": config.eager,
            "a sharded strategy": self.resolved.is_sharded,
            "--from": config.from_ is not None,
            "train.chunk": bool(config.train.chunk),
            "train.activation_checkpointing": config.train.activation_checkpointing,
            "an architecture of a fixed size": config.arch in PRESETS,
            "the run began with it": bool(self.saved) and self.saved.get("graph") is None,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def print_choice(self, built: BuiltModel, console: Console) -> None:
        """Print whether graphs or the module are trained."""
        line = f"training the graphs {built.graph_hash}" if built.traced else "training the Python module"
        reason = self.find_eager_reason()
        console.print(f"{line} ({reason})" if reason else line, highlight=False, soft_wrap=True)

    def read_saved_graphs(self) -> TracedArchitecture | None:
        """Return the graphs of the run that is resumed; None if there is none."""
        folder = self.config.out / "graph"
        if not self.saved or not folder.is_dir():
            return None
        from trainer.graph.reading import read_traced

        return read_traced(folder)

    def trace(self, model_config: ArchitectureConfig) -> TracedArchitecture:
        from trainer.graph.trace import trace_architecture  # imports torch._dynamo, which takes 2 s

        assert self.module is not None
        with attribute_to_model("while the architecture was traced"):
            try:
                return trace_architecture(self.module, model_config)
            except GraphError as error:
                raise ModelError(f"{self.config.arch} cannot be traced: {error}. {EAGER_HINT}.") from None

    def check_sizes(self, traced: TracedArchitecture, tokenizer: Tokenizer, vocabulary_size: int) -> None:
        """Raise `ConfigError` if the graphs were traced for other sizes or another end-of-text token."""
        expected = {
            "vocabulary_size": vocabulary_size,
            "sequence_length": self.resolved.sequence_length,
            "end_of_text": tokenizer.end_of_text,
        }
        given = {"end_of_text": tokenizer.end_of_text, **traced.recipe["model"]}
        for name, value in expected.items():
            if given.get(name) != value:
                raise ConfigError(f"the graph was traced for {name} {given.get(name)}, and this run has {value}")

    def build_from_graphs(self, traced: TracedArchitecture, fields: Mapping[str, Any]) -> BuiltModel:
        seed_everything(self.config.seed)
        with attribute_to_model("while the model was built"):
            model = build_model(traced)
            check_saved_dtypes(model)
        recipe = finish_recipe(read_recipe(traced), self.config)
        return BuiltModel(model, recipe, fields, traced=traced)

    def build_from_module(
        self, module: Architecture, model_config: ArchitectureConfig, tokenizer: Tokenizer, base: BaseCheckpoint | None
    ) -> BuiltModel:
        config = self.config
        seed_everything(config.seed)
        with attribute_to_model("while the model was built"):
            model = module.Model(model_config)
            recipe = module.recipe(model_config)
            check_saved_dtypes(model)
        lineage = None
        if base is not None:
            from trainer.training.finetune import load_base_weights

            lineage = load_base_weights(model, base, tokenizer, config.arch)
        if config.lora.rank:
            from trainer.optim import lora

            lora.add_adapters(model, config.lora, model_config.vocabulary_size)
            recipe = lora.build_adapter_recipe(recipe, config.lora)
        recipe = finish_recipe(recipe, config)
        fields = dataclasses.asdict(model_config)  # type: ignore[call-overload]
        return BuiltModel(model, recipe, fields, lineage)


def finish_recipe(recipe: Recipe, config: TrainConfig) -> Recipe:
    """Return the recipe with the configured changes. Raises `UserError` if it cannot be followed here."""
    if config.recipe:
        from trainer.config.recipe_overrides import override_recipe

        recipe = override_recipe(recipe, config.recipe)
    optim.check_installed(recipe)
    return recipe


def build_model_source(config: TrainConfig, resolved: ResolvedConfig, saved: Mapping[str, Any]) -> ModelSource:
    """Import the architecture (see `import_architecture`), unless a graph is given."""
    return ModelSource(config, resolved, saved, None if config.graph else import_architecture(config.arch))


def check_saved_dtypes(model: LanguageModel) -> None:
    """Raise `GraphError` for a tensor that no checkpoint can hold. Those of graphs include buffers of random values."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
        check_saved_dtype(kind, name, str(tensor.dtype).removeprefix("torch."))


# --- random numbers ---------------------------------------------------------------------------------------------------


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed the random numbers of a process's step, such as those of dropout.

    So no state has to be saved: a run resumes exactly on any number of GPUs, and no two processes draw the same.
    """
    seed_everything(int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0]))
