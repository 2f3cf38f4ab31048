"""The small model asked through the scorer's own door: does it look ahead, or remember what it was asked?"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import IO, Any

from trainer.data.dataset import Dataset
from trainer.sandbox import SandboxDriver
from trainer.sandbox.safe_files import UnsafeFileError, list_folder, open_file
from trainer.scoring import heldout_text, misbehavior
from trainer.scoring.model_client import ModelProcessClient, Timeouts
from trainer.scoring.run_folder import RunFolder, RunFolderError
from trainer.scoring.scorer import score_model
from trainer.smoke.findings import SmokeCheck

TOKENS = 4096
"""Of text that it is asked about."""
PATIENCE = Timeouts(load=120, answer=60, wall=600)


def check_causality(
    left: Path,
    private: Path,
    dataset: Dataset,
    driver: SandboxDriver,
    source: Path | None,
    output: IO[bytes] | None = None,
) -> SmokeCheck:
    """Return the verdict on the run that the sandbox left in `left`; `private`: an empty folder of our own."""
    try:
        copy_run(left, private)
        run = RunFolder.open(private)
    except (OSError, UnsafeFileError, RunFolderError):
        return SmokeCheck("causal", False, "The training left no model to ask.")
    texts = heldout_text.load_test_split(dataset, TOKENS)
    doors = [ModelProcessClient(run, driver, model_source=source, patience=PATIENCE, output=output) for _ in range(2)]
    try:
        with doors[0] as probe, doors[1] as full:
            lengths = dataset.tokenizer.byte_lengths()
            found = score_model(probe, full, texts, lengths, dataset.tokenizer.end_of_text, lambda *_: None)
    except misbehavior.ModelMisbehaviorError as error:
        return SmokeCheck("causal", False, error.sentence + (f" ({error.detail})" if error.detail else ""))
    return SmokeCheck("causal", True, seen(found.checks))


def seen(checks: dict[str, Any]) -> str:
    cuts = checks["prefix"]["cuts"]
    return f"{cuts} texts cut short get the same answers as the whole ones, and so in any order"


def copy_run(left: Path, private: Path) -> None:
    """Copy what the checks need out of a folder that a stranger wrote: plain files of the newest checkpoint."""
    steps = [name for name in list_folder(left, "checkpoints") if name.startswith("step-")]
    if not steps:
        raise UnsafeFileError("There is no checkpoint.")
    folder = f"checkpoints/{max(steps)}"
    for name in ("run.json", *(f"{folder}/{file}" for file in ("manifest.json", "model.safetensors", "state.json"))):
        target = private / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with open_file(left, name) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
