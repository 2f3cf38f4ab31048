"""The causality check of a smoke test: the scorer's checks on the small model."""

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

TOKENS = 4096  # of the text that is scored
TIMEOUTS = Timeouts(load=120, reply=60, wall=600)


def check_causality(
    out: Path,
    private: Path,
    dataset: Dataset,
    driver: SandboxDriver,
    source: Path | None,
    output: IO[bytes] | None = None,
) -> SmokeCheck:
    """Check the run that the sandbox wrote to `out`; `private`: an empty folder that the sandbox cannot access."""
    try:
        copy_run(out, private)
        run = RunFolder.open(private)
    except (OSError, UnsafeFileError, RunFolderError):
        return SmokeCheck("causal", False, "The training wrote no model to check.")
    texts = heldout_text.load_test_split(dataset, TOKENS)
    clients = [ModelProcessClient(run, driver, model_source=source, timeouts=TIMEOUTS, output=output) for _ in range(2)]
    try:
        with clients[0] as probe, clients[1] as full:
            lengths = dataset.tokenizer.byte_lengths()
            score = score_model(probe, full, texts, lengths, dataset.tokenizer.end_of_text, lambda *_: None)
    except misbehavior.ModelMisbehaviorError as error:
        return SmokeCheck("causal", False, error.sentence + (f" ({error.detail})" if error.detail else ""))
    return SmokeCheck("causal", True, summarize(score.checks))


def summarize(checks: dict[str, Any]) -> str:
    cuts = checks["prefix"]["cuts"]
    return f"{cuts} texts that end early get the same predictions as the whole ones, in any order"


def copy_run(out: Path, private: Path) -> None:
    """Copy the files of the newest checkpoint out of an untrusted folder."""
    steps = [name for name in list_folder(out, "checkpoints") if name.startswith("step-")]
    if not steps:
        raise UnsafeFileError("There is no checkpoint.")
    folder = f"checkpoints/{max(steps)}"
    for name in ("run.json", *(f"{folder}/{file}" for file in ("manifest.json", "model.safetensors", "state.json"))):
        target = private / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with open_file(out, name) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
