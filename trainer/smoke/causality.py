"""The causality check of a smoke test: the scorer's look-ahead correction of the small model's graphs."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from trainer.data.dataset import Dataset
from trainer.errors import ModelError
from trainer.graph.schema import FILES, GraphError, read_traced
from trainer.sandbox.safe_files import UnsafeFileError, list_folder, open_file
from trainer.scoring import heldout_text
from trainer.scoring.model_scorer import ModelScorer
from trainer.scoring.run_folder import RunFolder, RunFolderError
from trainer.scoring.scored_models import load_graph_models
from trainer.scoring.text_score import score_text
from trainer.smoke.findings import SmokeCheck

TOKENS = 4096  # of the text that is scored


def check_causality(out: Path, private: Path, dataset: Dataset) -> SmokeCheck:
    """Check the run that the sandbox wrote to `out`; `private`: an empty folder that the sandbox cannot access."""
    try:
        copy_run(out, private)
        run = RunFolder.open(private)
        models = load_graph_models(read_traced(private / "graph"), run)
    except (OSError, UnsafeFileError, RunFolderError, GraphError):
        return SmokeCheck(
            "causal", False, "It left no model and no graphs to check: `dailytrain trace` says what cannot be traced."
        )
    texts = heldout_text.load_test_split(dataset, TOKENS)
    try:
        trained, untrained = (ModelScorer(model, torch.device("cpu"), run.sequence_length) for model in models)
        lengths = dataset.tokenizer.byte_lengths()
        found = score_text(trained, untrained, texts, lengths, dataset.tokenizer.end_of_text, lambda *_: None)
    except ModelError as error:
        return SmokeCheck("causal", False, str(error))
    nats = found.correction.nats
    if found.correction.is_beyond_rounding:
        sentence = "The model's predictions depend on tokens that come after them"
        return SmokeCheck("causal", False, f"{sentence}: without those it loses {nats:.2g} nats a token more.")
    return SmokeCheck("causal", True, f"without later tokens it loses {nats:+.1g} nats a token more: rounding")


def copy_run(out: Path, private: Path) -> None:
    """Copy the graphs and the files of the newest checkpoint out of an untrusted folder."""
    steps = [name for name in list_folder(out, "checkpoints") if name.startswith("step-")]
    if not steps:
        raise UnsafeFileError("There is no checkpoint.")
    folder = f"checkpoints/{max(steps)}"
    names = ["run.json", *(f"{folder}/{file}" for file in ("manifest.json", "model.safetensors", "state.json"))]
    for name in [*names, *(f"graph/{file}" for file in FILES)]:
        target = private / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with open_file(out, name) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
