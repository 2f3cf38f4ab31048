"""Weights to start from: a run of ours, one of its checkpoints, or a folder as litgpt writes it.

`dailytrain train --from FOLDER` takes over the architecture, the model's fields, the row length and the tokenizer,
each unless something else is given; keeps every tensor that fits by name and shape; and leaves the others as the
architecture initialises them. What was kept, what is new and where it came from is in `run.json`, under `from`.
`--step N` goes back to an earlier checkpoint of the run; `--version V` goes on to a later version of the architecture,
see `trainer.checkpoint.surgery`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from trainer.checkpoint import store, surgery
from trainer.config.parsing import last_given
from trainer.config.train_config import ConfigError
from trainer.data.dataset import Dataset
from trainer.data.tokenizer import Tokenizer
from trainer.models import PRESETS
from trainer.models.base import LanguageModel
from trainer.optim import lora

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Base:
    """A checkpoint to start from, as it describes itself."""

    folder: Path
    """The checkpoint's own."""
    name: str
    """What run.json calls it: the run's folder and the checkpoint's, without where they are."""
    arch: str
    model: dict[str, Any]
    """The fields of its architecture's Config."""
    step: int
    tokens: int
    """Tokens seen up to here, those of the checkpoints that it started from itself included."""
    tokenizer: Path | None
    tokenizer_sha256: str | None
    """None: it came without, and nobody says."""
    outside: bool
    """Whether litgpt wrote it."""

    def tensors(self) -> dict[str, Tensor]:
        """Read the weights, checked against their manifest where they have one; adapters come merged."""
        if self.outside:
            from trainer.checkpoint.formats import litgpt

            return litgpt.tensors(self.folder)
        store.verified(self.folder, (WEIGHTS, "state.json"))
        return lora.merged(load_file(self.folder / WEIGHTS))

    def sha256(self) -> str:
        """Of the weights' file."""
        return store.reference(self.folder / ("lit_model.pth" if self.outside else WEIGHTS)).sha256

    def speaks(self, tokenizer: Tokenizer) -> bool:
        """Is this its tokenizer? One that came without is taken to speak any that it has room for."""
        if self.tokenizer_sha256 is None:
            return tokenizer.vocabulary_size <= self.model["vocabulary_size"]
        return self.tokenizer_sha256 == tokenizer.sha256


def find(folder: Path) -> Base:
    """Return what is at a folder; raise ValueError, one line, if that is nothing to start from."""
    if (folder / "lit_model.pth").is_file():
        return outside(folder)
    if (folder / "run.json").is_file():
        newest = store.latest(folder)
        if newest is None:
            raise ConfigError(f"--from {folder}: this run has no whole checkpoint")
        return ours(folder, newest)
    if folder.parent.name == store.FOLDER and (folder.parent.parent / "run.json").is_file():
        return ours(folder.parent.parent, folder)
    raise ConfigError(f"--from {folder} is neither a run's folder, nor one of its checkpoints, nor one of litgpt's")


def ours(run_folder: Path, folder: Path) -> Base:
    run, state = store.read_run(run_folder), store.verified(folder, ("state.json",))
    before = (run.get("from") or {}).get("tokens", 0)
    tokenizer = run_folder / "tokenizer.json"
    told = (run.get("dataset") or {}).get("tokenizer_sha256")
    return Base(
        folder=folder,
        name=f"{run_folder.resolve().name}/{folder.name}",
        arch=run["arch"],
        model=run["model"],
        step=state["step"],
        tokens=before + state.get("spent", {}).get("tokens", 0),
        tokenizer=tokenizer if tokenizer.is_file() else None,
        tokenizer_sha256=Tokenizer.load(tokenizer).sha256 if tokenizer.is_file() else told,
        outside=False,
    )


def outside(folder: Path) -> Base:
    from trainer.checkpoint.formats import litgpt

    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise ConfigError(f"--from {folder}: it has no tokenizer.json")
    config = litgpt.configuration(folder, Tokenizer.load(tokenizer).vocabulary_size)
    return Base(
        folder=folder,
        name=folder.resolve().name,
        arch="litgpt",
        model=dataclasses.asdict(config),
        step=0,
        tokens=0,
        tokenizer=tokenizer,
        tokenizer_sha256=Tokenizer.load(tokenizer).sha256,
        outside=True,
    )


def flags(folder: Path, others: Sequence[str]) -> list[str]:
    """Return what a checkpoint brings along as flags, to stand before all others: these win."""
    base = find(folder)
    brought = [f"--arch={base.arch}"]
    if "depth" in base.model:
        brought.append(f"--model.depth={base.model['depth']}")
    if not base.outside:  # litgpt's say how long a row may be, which is more than anybody trains on
        brought.append(f"--train.sequence_length={base.model['sequence_length']}")
    if last_given(others, "dataset") is None and base.tokenizer is not None:
        brought.append(f"--tokenizer={base.tokenizer}")
    return brought


def vocabulary_size(base: Base | None, dataset: Dataset, given: bool) -> int:
    """Return how many tokens the new model tells apart: the tokenizer's, or as many as the checkpoint has room for.

    Raises `ConfigError` for a dataset that was given and speaks other tokens than the checkpoint. A tokenizer that was
    given is another thing: somebody wants the body of the model and a new embedding.
    """
    own = dataset.tokenizer.vocabulary_size
    if base is None:
        return own
    if base.speaks(dataset.tokenizer):
        return max(own, base.model["vocabulary_size"])
    if given:
        raise ConfigError(
            f"--dataset {dataset.folder} was prepared with another tokenizer than {base.name} was trained with: "
            f"prepare it with {f'--tokenizer {base.tokenizer}' if base.tokenizer else 'that one'}, "
            "or give --corpus instead"
        )
    return own


def shape(base: Base | None, arch: str) -> dict[str, Any]:
    """Return the fields of the checkpoint's Config that a model of the same architecture takes over."""
    if base is None or family(base.arch) != family(arch):
        return {}
    return base.model


def family(arch: str) -> str:
    return PRESETS[arch][0] if arch in PRESETS else arch


def start(model: LanguageModel, base: Base, tokenizer: Tokenizer, arch: str) -> dict[str, Any]:
    """Give a new model all of the checkpoint's tensors that fit; return the lineage that `run.json` keeps.

    A tensor with a row for each token fits only where the tokens are the same.
    """
    theirs, mine = base.tensors(), model.state_dict()
    fields = dataclasses.asdict(model.config)  # type: ignore[call-overload]
    versions = surgery.versions(family(base.arch), base.model, fields) if family(base.arch) == family(arch) else None
    made = {} if versions is None else surgery.SURGERIES[family(arch)](theirs, base.model, fields)
    remade = {name for name, tensor in made.items() if name not in theirs or not torch.equal(tensor, theirs[name])}
    theirs = {**theirs, **made}
    strange = set() if base.speaks(tokenizer) else lora.by_token(model, tokenizer.vocabulary_size)
    kept = [n for n, t in mine.items() if n in theirs and theirs[n].shape == t.shape and n not in strange]
    if not kept:
        raise ConfigError(f"--from {base.folder}: none of its tensors fits this model")
    with torch.no_grad():
        for name in kept:
            mine[name].copy_(theirs[name])
    filled = {mine[name].data_ptr() for name in kept}  # tied tensors are stored under one of their names
    return {
        "name": base.name,
        "arch": base.arch,
        "step": base.step,
        "tokens": base.tokens,
        "sha256": base.sha256(),
        "versions": versions,
        "kept": len(set(kept) - remade),
        "remade": sorted(remade.intersection(kept)),
        "new": [name for name, tensor in mine.items() if tensor.data_ptr() not in filled],
        "unused": sorted(theirs.keys() - set(kept)),
    }


def described(lineage: dict[str, Any]) -> str:
    """Say in one line what came of it."""
    new = lineage["new"]
    names = "" if not new else f" ({lora.listed(new)})"
    kept = f"{lineage['kept']} tensors kept"
    if lineage["versions"]:
        before, after = lineage["versions"]
        kept += f", {len(lineage['remade'])} made from those of version {before} for {after}"
    return f"starts from {lineage['name']}: {kept}, {len(new)} new{names}"


def rewound(folder: Path, step: int) -> Path:
    """Return a run's checkpoint of that step; raise `ConfigError`, with those that are kept, if there is none."""
    if not (folder / "run.json").is_file():
        raise ConfigError(f"--step goes with --from a run's folder, and {folder} is none")
    chosen = store.path(folder, step)
    kept = store.complete(folder)
    if chosen not in kept:
        known = ", ".join(str(store.step_of(each)) for each in kept) or "none"
        raise ConfigError(f"--from {folder}: there is no checkpoint of step {step}; those kept are {known}")
    return chosen
