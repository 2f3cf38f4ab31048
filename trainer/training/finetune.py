"""Start a model from a base checkpoint (`trainer.checkpoint.base_weights`).

Tensors that fit by name and shape are copied; the others keep the architecture's initialization. `run.json` records
under `from` what was copied, what is new and its source. `--version V` first converts the weights to a later version of
the architecture, see `trainer.checkpoint.surgery`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint import surgery
from trainer.checkpoint.base_weights import BaseCheckpoint, get_family
from trainer.config.train_config import ConfigError
from trainer.data.tokenizer import Tokenizer
from trainer.models.base import LanguageModel
from trainer.optim import lora

Versions = tuple[float, float]


def load_base_weights(model: LanguageModel, base: BaseCheckpoint, tokenizer: Tokenizer, arch: str) -> dict[str, Any]:
    """Copy the checkpoint's tensors that fit into a new model; return the lineage for `run.json`.

    A tensor with a row for each token fits only if the tokens are the same.
    """
    source, target = base.load_tensors(), model.state_dict()
    converted, versions = convert_version(model, base, source, arch)
    changed = {n for n, tensor in converted.items() if n not in source or not torch.equal(tensor, source[n])}
    source = {**source, **converted}
    excluded = set() if base.matches_tokenizer(tokenizer) else lora.find_token_tables(model, tokenizer.vocabulary_size)
    copied = [n for n, t in target.items() if n in source and source[n].shape == t.shape and n not in excluded]
    if not copied:
        raise ConfigError(f"--from {base.folder}: none of its tensors fits this model")
    with torch.no_grad():
        for name in copied:
            target[name].copy_(source[name])
    filled = {target[name].data_ptr() for name in copied}  # tied tensors are stored under one of their names
    return {
        "name": base.name,
        "arch": base.arch,
        "step": base.step,
        "tokens": base.tokens,
        "sha256": base.hash_weights(),
        "versions": versions,
        "kept": len(set(copied) - changed),
        "remade": sorted(changed.intersection(copied)),
        "new": [name for name, tensor in target.items() if tensor.data_ptr() not in filled],
        "unused": sorted(source.keys() - set(copied)),
    }


def convert_version(
    model: LanguageModel, base: BaseCheckpoint, tensors: Mapping[str, Tensor], arch: str
) -> tuple[dict[str, Tensor], Versions | None]:
    """Return the tensors for the model's version and both versions; ({}, None) if there is nothing to convert."""
    family = get_family(arch)
    if get_family(base.arch) != family:
        return {}, None
    fields = dataclasses.asdict(model.config)  # type: ignore[call-overload]
    versions = surgery.find_version_change(family, base.model, fields)
    return ({} if versions is None else surgery.CONVERTERS[family](tensors, base.model, fields)), versions


def describe_lineage(lineage: dict[str, Any]) -> str:
    """Return one line about what was copied."""
    new = lineage["new"]
    names = "" if not new else f" ({lora.abbreviate_names(new)})"
    summary = f"{lineage['kept']} tensors kept"
    if lineage["versions"]:
        before, after = lineage["versions"]
        summary += f", {len(lineage['remade'])} converted from version {before} to {after}"
    return f"starts from {lineage['name']}: {summary}, {len(new)} new{names}"
