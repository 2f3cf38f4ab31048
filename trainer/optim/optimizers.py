"""Build the optimizers of a recipe, with its parameter groups."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from trainer.errors import UserError
from trainer.models.base import ParameterGroup, Recipe
from trainer.ops.devices import get_row_gradients
from trainer.optim.muon import Muon, Precision


class OptimizerNotInstalledError(UserError):
    """An optimizer's package is not installed. The message says how to install it."""


def assign_parameters(model: nn.Module, recipe: Recipe) -> list[tuple[ParameterGroup, dict[str, nn.Parameter]]]:
    """Assign every trainable parameter to the first group whose pattern matches its name.

    Raises ValueError if a parameter matches no group, or a group's optimizer is not for it.
    """
    assigned: list[tuple[ParameterGroup, dict[str, nn.Parameter]]] = [(group, {}) for group in recipe.groups]
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        found = next((m for group, m in assigned if any(fnmatch.fnmatchcase(name, p) for p in group.match)), None)
        if found is None:
            raise ValueError(f"no group of the recipe matches the parameter {name}")
        found[name] = parameter
    for group, members in assigned:
        flat = next((name for name, parameter in members.items() if parameter.ndim < 2), None)
        if group.optimizer == "muon" and flat is not None:
            raise ValueError(f"the recipe gives {flat} to Muon, which takes matrices only")
        for name, parameter in members.items():
            if (group.optimizer == "row_adagrad") != (get_row_gradients(parameter) is not None):
                raise ValueError(f"the recipe gives {name} to {group.optimizer}: row_adagrad is for an n-gram memory")
    return [(group, members) for group, members in assigned if members]


def build_optimizers(
    model: nn.Module, recipe: Recipe, muon_precision: Precision | None = None, backend: str | None = None
) -> list[Optimizer]:
    """Return the recipe's optimizers, one per kind in use. The schedule scales each group's `top_rate`.

    AdamW's parameters in bf16 have an optimizer of their own, see `table_adamw`. `backend` is torch.compile's;
    with None no step is compiled.
    """
    kinds: dict[str, list[dict[str, Any]]] = {"muon": [], "adamw": [], "tables": [], "adamw8bit": [], "row_adagrad": []}
    for group, parameters in assign_parameters(model, recipe):
        settings, rest = build_group_settings(group), list(parameters.values())
        if tables := [each for each in rest if each.dtype == torch.bfloat16] if group.optimizer == "adamw" else []:
            kinds["tables"].append({"params": tables, **settings})
            rest = [parameter for parameter in rest if parameter.dtype != torch.bfloat16]
        if rest:
            kinds[group.optimizer].append({"params": rest, **settings})
    optimizers: list[Optimizer] = []
    if kinds["muon"]:
        optimizers.append(build_muon(kinds["muon"], muon_precision, backend))
    if kinds["adamw"]:
        optimizers.append(CautiousDecay.attach(AdamW(kinds["adamw"], fused=True)))
    if kinds["tables"]:
        from trainer.optim.table_adamw import TableAdamW

        optimizers.append(TableAdamW(kinds["tables"], backend=backend))
    if kinds["adamw8bit"]:
        optimizers.append(CautiousDecay.attach(import_adamw8bit()(kinds["adamw8bit"])))
    if kinds["row_adagrad"]:
        from trainer.optim.row_adagrad import RowAdagrad

        optimizers.append(RowAdagrad(kinds["row_adagrad"]))
    return optimizers


def list_densely_trained(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that have a gradient and momenta as large as they are: all but tables of n-grams."""
    return [p for p in model.parameters() if p.requires_grad and get_row_gradients(p) is None]


def build_muon(groups: list[dict[str, Any]], precision: Precision | None, backend: str | None) -> Muon:
    if backend is None:
        return Muon(groups, precision=precision)
    from trainer.optim.compiled_muon import CompiledMuon

    return CompiledMuon(groups, backend=backend, precision=precision)


def build_group_settings(group: ParameterGroup) -> dict[str, Any]:
    """Return a group's settings under its optimizer's names."""
    common = {"name": group.name, "lr": group.learning_rate, "top_rate": group.learning_rate}
    if group.optimizer == "muon":
        names = ("weight_decay", "momentum", "normalized", "variance_momentum", "cautious")
        return {**common, **{name: getattr(group, name) for name in names}}
    decay = {"weight_decay": group.weight_decay, "cautious_decay": 0.0}
    if group.cautious:
        decay = {"weight_decay": 0.0, "cautious_decay": group.weight_decay}
    return {**common, **decay, "betas": group.betas, "eps": group.epsilon}


def import_adamw8bit() -> type[Optimizer]:
    """Return AdamW with 8-bit state (Dettmers et al., arXiv 2110.02861). Raises `OptimizerNotInstalledError`."""
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        message = "adamw8bit needs the package bitsandbytes: pip install 'dailytrain[gpu]'"
        raise OptimizerNotInstalledError(message) from error
    return AdamW8bit


def check_installed(recipe: Recipe) -> None:
    """Raise `OptimizerNotInstalledError` if the recipe needs a package that is not installed."""
    if any(group.optimizer == "adamw8bit" for group in recipe.groups):
        import_adamw8bit()


class CautiousDecay:
    """Cautious weight decay around the steps of any optimizer (Chen et al., arXiv 2510.12402, algorithm 1).

    For groups with `cautious_decay` above 0, whose own `weight_decay` is 0: a weight decays only where the step moves
    it towards zero, or not at all. Costs a copy of those groups' parameters during the step.
    """

    def __init__(self) -> None:
        self.before: list[list[Tensor]] = []

    @classmethod
    def attach(cls, optimizer: Optimizer) -> Optimizer:
        if any(group["cautious_decay"] for group in optimizer.param_groups):
            decay = cls()
            optimizer.register_step_pre_hook(decay.save_parameters)
            optimizer.register_step_post_hook(decay.apply_decay)
        return optimizer

    @torch.no_grad()
    def save_parameters(self, optimizer: Optimizer, *_: Any) -> None:
        self.before = [
            [parameter.clone() for parameter in group["params"]] if group["cautious_decay"] else []
            for group in optimizer.param_groups
        ]

    @torch.no_grad()
    def apply_decay(self, optimizer: Optimizer, *_: Any) -> None:
        for group, before in zip(optimizer.param_groups, self.before, strict=True):
            for parameter, old in zip(group["params"] if before else [], before, strict=True):
                is_towards_zero = (old - parameter) * old >= 0
                if (skipped := getattr(optimizer, "found_inf", None)) is not None:
                    is_towards_zero &= skipped == 0
                parameter.sub_(old * is_towards_zero, alpha=group["lr"] * group["cautious_decay"])
        self.before = []


def compile_steps(optimizers: Iterable[Any]) -> None:
    """Compile the steps of the optimizers that compile them."""
    for optimizer in optimizers:
        if hasattr(optimizer, "compile_step"):
            optimizer.compile_step()


def set_skipped(optimizers: Sequence[Optimizer], is_skipped: Tensor) -> bool:
    """Let the next steps change nothing if `is_skipped` is true on the GPU by then. Return false if not all of the
    optimizers can do that, or the tensor is not on a GPU: its value has to be read."""
    originals = [getattr(optimizer, "optimizer", optimizer) for optimizer in optimizers]  # of Fabric's wrappers
    is_known_later = is_skipped.device.type == "cuda"
    if not is_known_later or not all(getattr(each, "_step_supports_amp_scaling", False) for each in originals):
        return False
    for optimizer in originals:
        optimizer.found_inf = is_skipped.float()
    return True


def apply_schedule(optimizers: Sequence[Optimizer], recipe: Recipe, fraction: float, steps: int) -> None:
    """Set rates and momenta for a used budget fraction and after `steps` steps."""
    set_learning_rates(optimizers, recipe.schedule.scale(fraction, steps))
    peaks = {group.name: group.momentum for group in recipe.groups if group.optimizer == "muon"}
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        if group["name"] in peaks:
            group["momentum"] = recipe.schedule.compute_momentum(peaks[group["name"]], fraction)


def set_learning_rates(optimizers: Iterable[Optimizer], scale: float) -> None:
    """Set every group's learning rate to its top rate times the schedule's scale."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["top_rate"] * scale
