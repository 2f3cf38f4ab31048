"""LoRA: train a low-rank update of each matrix of a frozen model (arXiv 2106.09685).

An adapted model's weights file holds the model's own tensors under their own names and, for each adapted matrix,
`lora_down` [rank, in], `lora_up` [out, rank] and `lora_scale`. A run resumes from it without the checkpoint that it
started from. The scorer, `sample` and `export` load the merged model.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.errors import UserError
from trainer.models.base import LanguageModel, ParameterGroup, Recipe
from trainer.optim import LoraArgs

DOWN, UP, SCALE = "lora_down", "lora_up", "lora_scale"


class LoraError(UserError):
    """The adapters do not fit the model; the message is one line."""


class LoraLinear(nn.Linear):
    """A linear layer and its adapter: W x + b + scale B A x (eq. 3, section 4.1), with W and b unchanged.

    B starts at zero, so the layer starts unchanged. Training computes two thin products and never B A itself.
    """

    lora_scale: Tensor

    def __init__(self, plain: nn.Linear, rank: int, scale: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight, self.bias = plain.weight, plain.bias
        options = {"dtype": plain.weight.dtype, "device": plain.weight.device}
        self.lora_down = nn.Parameter(torch.randn(rank, self.in_features, **options) * self.in_features**-0.5)
        self.lora_up = nn.Parameter(torch.zeros(self.out_features, rank, **options))
        self.register_buffer(SCALE, torch.tensor(scale, **options))

    def forward(self, x: Tensor) -> Tensor:
        update = F.linear(F.linear(x, self.lora_down), self.lora_up)
        return F.linear(x, self.weight, self.bias) + self.lora_scale * update

    @torch.no_grad()
    def merge(self) -> nn.Linear:
        """Return an equivalent plain layer, which reuses this layer's weight in place."""
        plain = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        self.weight += compute_update(self.lora_down, self.lora_up, self.lora_scale)
        plain.weight, plain.bias = self.weight, self.bias
        return plain


def compute_update(down: Tensor, up: Tensor, scale: Tensor) -> Tensor:
    return scale * (up @ down)


def add_adapters(model: LanguageModel, settings: LoraArgs, vocabulary_size: int) -> list[str]:
    """Freeze a model and add adapters to the chosen matrices; return their names."""
    names = choose_layers(model, settings.targets, vocabulary_size)
    model.requires_grad_(False)
    for name in names:
        layer = LoraLinear(model.get_submodule(name), settings.rank, settings.alpha / settings.rank)
        replace_module(model, name, layer)
    if settings.vectors:
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.requires_grad or parameter.ndim < 2)
    return names


def choose_layers(model: nn.Module, targets: str, vocabulary_size: int) -> list[str]:
    """Return the names of linear layers that match the patterns. Without patterns: all but the head."""
    layers = {name: module for name, module in model.named_modules() if type(module) is nn.Linear}
    if not targets:
        heads = find_token_tables(model, vocabulary_size)
        return [name for name in layers if f"{name}.weight" not in heads]
    found: dict[str, None] = {}
    for pattern in (part.strip() for part in targets.split(",")):
        matched = fnmatch.filter(layers, pattern)
        if not matched:
            raise LoraError(f"lora.targets: no linear layer is named {pattern!r}; there are {abbreviate_names(layers)}")
        found |= dict.fromkeys(matched)
    check_not_shared(model, found)
    return list(found)


def find_token_tables(model: nn.Module, vocabulary_size: int) -> set[str]:
    """Return the names of tensors with one row per token: the embedding and the head."""
    tables = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
    rows = {count for count in tables if count >= vocabulary_size}
    return {name for name, tensor in model.state_dict().items() if tensor.ndim and tensor.size(0) in rows}


def abbreviate_names(names: Iterable[str]) -> str:
    """Return the first eight names, joined."""
    some = list(names)
    return ", ".join(some[:8]) + (", ..." if len(some) > 8 else "")


def check_not_shared(model: nn.Module, names: Iterable[str]) -> None:
    """Raise `LoraError` for a shared matrix: merging would change it in both places."""
    uses: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    shared = next((name for name in names if uses[id(model.get_submodule(name).weight)] > 1), None)
    if shared:
        raise LoraError(f"lora.targets: {shared} shares its matrix with another layer")


def replace_module(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, layer)


def build_adapter_recipe(declared: Recipe, settings: LoraArgs) -> Recipe:
    """Return the recipe for adapters, with the architecture's own schedule.

    The rate is a guess between QLoRA's 2e-4 at 7B (arXiv 2305.14314, table 9) and what small models tolerate.
    """
    groups = [ParameterGroup("adapters", (f"*.{DOWN}", f"*.{UP}"), "adamw", 5e-4, betas=(0.9, 0.999), epsilon=1e-8)]
    if settings.vectors:
        groups.append(ParameterGroup("vectors", ("*",), "adamw", 5e-4, betas=(0.9, 0.999), epsilon=1e-8))
    return dataclasses.replace(declared, groups=tuple(groups))


# --- weights files ----------------------------------------------------------------------------------------------------


def find_adapted_layers(names: Iterable[str]) -> list[str]:
    """Return the adapted layers of a weights file."""
    return [name.removesuffix(f".{DOWN}") for name in names if name.endswith(f".{DOWN}")]


def has_adapters(model: nn.Module) -> bool:
    return any(isinstance(module, LoraLinear) for module in model.modules())


def add_matching_adapters(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Add adapters as in a weights file of these shapes, to be loaded and then merged."""
    for name in find_adapted_layers(shapes):
        try:
            layer = model.get_submodule(name)
        except AttributeError as error:
            raise LoraError(f"the model has no layer {name} to adapt") from error
        if type(layer) is not nn.Linear:
            raise LoraError(f"the model's {name} is not a linear layer to adapt")
        replace_module(model, name, LoraLinear(layer, shapes[f"{name}.{DOWN}"][0], 1.0))


def load_adapted_weights(model: nn.Module, shapes: Mapping[str, tuple[int, ...]], load: Callable[[], None]) -> None:
    """Load a weights file with adapters by `load`; merge them unless the model has adapters, too.

    Raises RuntimeError if they do not fit.
    """
    if has_adapters(model):
        load()
        return
    add_matching_adapters(model, shapes)
    load()
    merge_adapters(model)


def merge_adapters(model: nn.Module) -> None:
    """Merge every adapter into its matrix."""
    for name, module in list(model.named_modules()):
        if isinstance(module, LoraLinear):
            replace_module(model, name, module.merge())


def merge_adapter_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a weights file's tensors as those of a plain model."""
    plain = {name: t for name, t in tensors.items() if name.rpartition(".")[2] not in (DOWN, UP, SCALE)}
    for name in find_adapted_layers(tensors):
        weight, *adapter = (tensors[f"{name}.{part}"] for part in ("weight", DOWN, UP, SCALE))
        plain[f"{name}.weight"] = weight + compute_update(*adapter)
    return plain
